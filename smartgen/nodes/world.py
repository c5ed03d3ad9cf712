"""One process that holds every role: nodes, channels and network, wired together."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from smartgen.cluster import links
from smartgen.cost import Wire
from smartgen.cost.shaper import Land, Shaper
from smartgen.engine import DecodeRole, PrefillRole
from smartgen.engine.messages import PeerLost
from smartgen.engine.protocols import Event, Scope
from smartgen.experiment import Experiment, Outcome
from smartgen.metrics.records import Recorder
from smartgen.nodes.channel import LocalChannel, channel_pair
from smartgen.nodes.timed_decode import TimedDecodeNode
from smartgen.nodes.timed_prefill import TimedPrefillNode, WaitingRuntime, Write
from smartgen.workload import arrivals_of, departures_of


class MakePrefillNode(Protocol):
    """Makes prefill node number so and so."""

    def __call__(
        self,
        runtime: Any,
        experiment: Experiment,
        number: int,
        shaper: Shaper[Write],
        land: Land[Write],
        recorder: Recorder,
    ) -> TimedPrefillNode:
        """Make it."""


T = TypeVar("T")

MakeDecodeNode = Callable[[Any, Experiment, Shaper[Write], Recorder], TimedDecodeNode[Any]]


class World:
    """Roles share nothing but channels and the network, though they live in one process."""

    def __init__(
        self,
        experiment: Experiment,
        runtime: WaitingRuntime,
        make_prefill_node: MakePrefillNode,
        make_decode_node: MakeDecodeNode,
    ) -> None:
        self._experiment, self._runtime = experiment, runtime
        self._make_prefill_node = make_prefill_node
        network, cluster = experiment.network, experiment.cluster
        wire = Wire(network.discipline, links(network, cluster))
        self._shaper: Shaper[Write] = Shaper(runtime, wire, network.one_way_s)
        self._recorders: list[Recorder] = []
        self.decode_node = make_decode_node(runtime, experiment, self._shaper, self._recorder())
        self._here: list[LocalChannel] = []
        self._there: list[LocalChannel] = []
        self._prefill_nodes: list[TimedPrefillNode] = []
        self._scopes: list[Scope] = []

    async def run(self) -> None:
        """Serve the experiment's workload to its end."""
        experiment = self._experiment
        for number in range(experiment.cluster.prefill_nodes):
            self._start_prefill_node(number)
        for number, at_s in experiment.cluster.losses.items():
            self._runtime.call_last(at_s, partial(self._lose, number))
        role = DecodeRole(
            self._runtime,
            self.decode_node,
            self._here,
            experiment.policy,
            experiment.planner().plans_of,
            experiment.cost.looks_ahead,
            experiment.geometry.num_layers,
            self.decode_node.recorder,
        )
        # one scope over all: a fault in any role ends the run
        serving = self._runtime.scope()
        for scope in self._scopes:
            serving.spawn(_join(scope))
        serving.spawn(self._serve(role))
        await serving.join()

    async def _serve(self, role: DecodeRole) -> None:
        requests = self._experiment.requests
        await role.run(
            self._at_their_times(arrivals_of(requests)),
            self._at_their_times(departures_of(requests)),
        )
        for scope in self._scopes:
            scope.cancel()

    def outcome(self) -> Outcome:
        """What every node recorded."""
        return Outcome(self._recorders, self._runtime.now)

    def _recorder(self) -> Recorder:
        record = self._experiment.record
        recorder = Recorder(record.transfers, record.decisions, record.acts)
        self._recorders.append(recorder)
        return recorder

    def _start_prefill_node(self, number: int) -> None:
        experiment, runtime = self._experiment, self._runtime
        here, there = channel_pair(runtime, experiment.network.one_way_s)
        recorder = self._recorder()
        node = self._make_prefill_node(
            runtime, experiment, number, self._shaper, self.decode_node.land, recorder
        )
        role = PrefillRole(
            runtime, node, there, experiment.policy, experiment.planner().plan_of, recorder
        )
        scope = runtime.scope()
        scope.spawn(role.run())
        self._prefill_nodes.append(node)
        self._here.append(here)
        self._there.append(there)
        self._scopes.append(scope)

    async def _at_their_times(self, rows: Sequence[tuple[float, T]]) -> AsyncIterator[T]:
        for at_s, what in rows:
            come = self._runtime.event()
            self._runtime.call_last(at_s, partial(_set, come))
            await come.wait()
            yield what

    def _lose(self, number: int, _: float) -> None:
        """A prefill node dies: its program ends, its queue pair is flushed, its peer is told."""
        node = self._prefill_nodes[number]
        self._scopes[number].cancel()
        node.die()
        self._there[number].cut()
        self.decode_node.drop(self._shaper.drop(node.queue_pairs))
        self._here[number].deliver(PeerLost(node.name))


async def _join(scope: Scope) -> None:
    await scope.join()


def _set(event: Event, _: float) -> None:
    event.set()
