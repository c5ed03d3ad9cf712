"""Runs an experiment in simulated time."""

from dataclasses import dataclass

from smartgen.experiment import Experiment, Outcome
from smartgen.nodes.world import World
from smartgen.sim.nodes import SimDecodeNode, SimPrefillNode
from smartgen.sim.runtime import SimRuntime


@dataclass(frozen=True)
class SimBackend:
    """The simulator. It needs nothing from the machine."""

    name: str = "sim"

    def run(self, experiment: Experiment) -> Outcome:
        """Simulate; returns what every node recorded."""
        runtime = SimRuntime()
        world = World(experiment, runtime, SimPrefillNode, SimDecodeNode)
        runtime.run(world.run())
        return world.outcome()
