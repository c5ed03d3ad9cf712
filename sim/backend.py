"""Runs an experiment in simulated time: wires roles, nodes, channels and the network together."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from smartgen.cost import Wire
from smartgen.cost.shaper import Shaper
from smartgen.engine import DecodeRole, PrefillRole
from smartgen.engine.messages import PeerLost
from smartgen.experiment import Experiment, Outcome, links
from smartgen.metrics.records import Recorder
from smartgen.sim.decode_node import SimDecodeNode
from smartgen.sim.prefill_node import SimPrefillNode, SimWrite
from smartgen.sim.runtime import SimChannel, SimRuntime, SimScope, channel_pair
from smartgen.workload import Request, timetable


@dataclass(frozen=True)
class SimBackend:
    """The simulator. It needs nothing from the machine."""

    name: str = "sim"

    def run(self, experiment: Experiment) -> Outcome:
        """Simulate; returns what every node recorded."""
        return _World(experiment).run()


class _World:
    """One simulation."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._runtime = runtime = SimRuntime()
        network, cluster = experiment.network, experiment.cluster
        wire = Wire(network.discipline, links(network, cluster))
        self._shaper: Shaper[SimWrite] = Shaper(runtime, wire, network.one_way_s)
        self._recorders: list[Recorder] = []
        self._decode_node = SimDecodeNode(runtime, experiment, self._shaper, self._recorder())
        self._here: list[SimChannel] = []
        self._there: list[SimChannel] = []
        self._prefill_scopes: list[SimScope] = []
        for number in range(cluster.prefill_nodes):
            self._add_prefill_node(number)

    def run(self) -> Outcome:
        experiment = self._experiment
        role = DecodeRole(
            self._runtime,
            self._decode_node,
            self._here,
            experiment.policy,
            experiment.planner().plans_of,
            experiment.cost.looks_ahead,
            experiment.geometry.num_layers,
            self._decode_node.recorder,
        )
        for number, at_s in experiment.cluster.lost_s.items():
            self._runtime.call_at(at_s, lambda _, number=number: self._lose(number))
        self._runtime.run(role.run(self._arrivals(experiment.workload.make())))
        return Outcome(self._recorders, self._runtime.now)

    def _recorder(self) -> Recorder:
        record = self._experiment.record
        recorder = Recorder(record.transfers, record.decisions)
        self._recorders.append(recorder)
        return recorder

    def _add_prefill_node(self, number: int) -> None:
        experiment, runtime = self._experiment, self._runtime
        here, there = channel_pair(runtime, experiment.network.one_way_s)
        recorder = self._recorder()
        node = SimPrefillNode(
            runtime, experiment, number, self._shaper, self._decode_node.land, recorder
        )
        role = PrefillRole(
            runtime, node, there, experiment.policy, experiment.planner().plan_of, recorder
        )
        scope = runtime.scope()
        scope.spawn(role.run())
        self._here.append(here)
        self._there.append(there)
        self._prefill_scopes.append(scope)

    async def _arrivals(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request] | int]:
        for at_s, arrival in timetable(requests):
            if at_s > self._runtime.now:
                await self._runtime.after(at_s - self._runtime.now)
            yield arrival

    def _lose(self, number: int) -> None:
        """A prefill node dies: its program ends, its queue pair is flushed, its peer is told."""
        self._prefill_scopes[number].cancel()
        self._there[number].cut = True
        self._decode_node.drop(self._shaper.drop(f"prefill{number}"))
        one_way_s = self._experiment.network.one_way_s
        self._here[number].deliver(PeerLost(f"prefill{number}"), one_way_s)
