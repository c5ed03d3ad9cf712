"""Runs an experiment in simulated time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from smartgen.cluster import links
from smartgen.errors import truth
from smartgen.experiment import Experiment, Outcome, Watch
from smartgen.nodes.world import World
from smartgen.selection import BlockSelection
from smartgen.sim.ahead import AheadRuntime
from smartgen.sim.folded_decode import FoldedDecodeNode
from smartgen.sim.folded_prefill import FoldedPrefillNode
from smartgen.sim.foreseen import DirectChannel, FoldedRecorder, Ledgers
from smartgen.sim.nodes import SimDecodeNode, SimPrefillNode
from smartgen.sim.runtime import SimRuntime


@dataclass(frozen=True)
class SimBackend:
    """The simulator. It needs nothing from the machine.

    fold: run prefills and iterations ahead of the clock where that is exact; else, and where it is
    not, every act of every layer takes its turn.
    """

    name: str = "sim"
    fold: bool = True

    def __post_init__(self) -> None:
        truth("backend.fold", self.fold)

    def run(self, experiment: Experiment, watch: Watch | None = None) -> Outcome:
        """Simulate; returns what every node recorded."""
        with _few_collections():
            if self.fold and why_not_folded(experiment) is None:
                return _run_folded(experiment, watch)
            return _run_layered(experiment, watch)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Look for cycles of garbage seldom: nearly all that a run makes dies without."""
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _run_layered(experiment: Experiment, watch: Watch | None) -> Outcome:
    runtime = SimRuntime()
    world = World(experiment, runtime, SimPrefillNode, SimDecodeNode)
    if watch is not None:
        watch(world.progress)
    runtime.run(world.run())
    return world.outcome()


def why_not_folded(experiment: Experiment) -> str | None:
    """What of an experiment cannot be run ahead exactly; null if all of it can."""
    network, cluster = experiment.network, experiment.cluster
    receivers = cluster.decode_nodes * network.receiver_bytes_per_s
    reasons = {
        f"network.discipline={network.discipline} is not fifo": network.discipline != "fifo",
        "prefill hosts may be slower than all decoding nodes together": (
            network.sender_bytes_per_s < receivers
        ),
        "network.variation": network.variation is not None,
        "cluster.lost_s": bool(cluster.lost_s),
        "cluster.prefill_lease_s": cluster.prefill_lease_s is not None,
        "workload.abort_s": any(request.abort_s is not None for request in experiment.requests),
        "policy.reuse with selection=blocks": (
            experiment.policy.reuse and isinstance(experiment.selection, BlockSelection)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _run_folded(experiment: Experiment, watch: Watch | None) -> Outcome:
    runtime = AheadRuntime()
    rates = links(experiment.network, experiment.cluster)
    recorders: list[FoldedRecorder] = []

    def recorder(transfers: bool, decisions: bool, acts: bool) -> FoldedRecorder:
        recorders.append(FoldedRecorder(runtime, transfers, decisions, acts))
        return recorders[-1]

    world = World(
        experiment,
        runtime,
        FoldedPrefillNode,
        FoldedDecodeNode,
        Ledgers(rates, experiment.network.one_way_s),
        recorder,
        DirectChannel,
    )
    if watch is not None:
        watch(world.progress)
    runtime.run(world.run())
    for made in recorders:
        made.finish()
    return world.outcome()
