"""One process that holds every role: nodes, channels and network, wired together."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from smartgen.cluster import links, varying_links
from smartgen.cost import Wire
from smartgen.cost.shaper import Land, Links, Shaper
from smartgen.engine.messages import PeerLost
from smartgen.engine.protocols import Scope
from smartgen.experiment import Experiment, Outcome
from smartgen.metrics.records import Recorder
from smartgen.nodes.channel import LocalChannel, channel_pair
from smartgen.nodes.meter import Meter
from smartgen.nodes.roles import joined, make_decode_role, make_prefill_role, make_router, serve
from smartgen.nodes.timed_decode import TimedDecodeNode
from smartgen.nodes.timed_prefill import TimedPrefillNode, WaitingRuntime, Write


class MakePrefillNode(Protocol):
    """Makes prefill node number so and so; lands are those of the decoding nodes."""

    def __call__(
        self,
        runtime: Any,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        lands: Sequence[Land[Write]],
        recorder: Recorder,
    ) -> TimedPrefillNode:
        """Make it."""


class MakeDecodeNode(Protocol):
    """Makes decoding node number so and so."""

    def __call__(
        self,
        runtime: Any,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        meter: Meter,
        recorder: Recorder,
    ) -> TimedDecodeNode[Any]:
        """Make it."""


T = TypeVar("T")


def shaped(runtime: WaitingRuntime, experiment: Experiment) -> Shaper[Write]:
    """The experiment's network on a runtime's clock."""
    network = experiment.network
    varying = varying_links(network, experiment.cluster)
    wire = Wire(network.discipline, links(network, experiment.cluster), varying)
    return Shaper(runtime, wire, network.one_way_s)


class World:
    """Roles share nothing but channels and the network, though they live in one process."""

    def __init__(
        self,
        experiment: Experiment,
        runtime: WaitingRuntime,
        make_prefill_node: MakePrefillNode,
        make_decode_node: MakeDecodeNode,
        network: Links[Write] | None = None,
        make_recorder: Callable[[bool, bool, bool], Recorder] = Recorder,
        channel: type[LocalChannel] = LocalChannel,
    ) -> None:
        """Wire it all up; without a network of its own, with a Wire of the experiment's."""
        self._experiment, self._runtime = experiment, runtime
        self._make_recorder = make_recorder
        cluster, one_way_s = experiment.cluster, experiment.network.one_way_s
        self._meter = Meter(
            links(experiment.network, cluster),
            experiment.window_s,
            varying_links(experiment.network, cluster),
        )
        self._links = network or shaped(runtime, experiment)
        self._recorders: list[Recorder] = []
        self._router = make_router(experiment)
        self.decode_nodes = [
            make_decode_node(
                runtime, experiment, number, self._links, self._meter, self._recorder()
            )
            for number in range(cluster.decode_nodes)
        ]
        lands = [node.land for node in self.decode_nodes]
        self.prefill_nodes = [
            make_prefill_node(runtime, experiment, number, self._links, lands, self._recorder())
            for number in range(cluster.prefill_nodes)
        ]
        # ends[p][d]: those of the channel between a prefill and a decoding node
        self._ends = [
            [channel_pair(runtime, one_way_s, channel) for _ in self.decode_nodes]
            for _ in self.prefill_nodes
        ]
        self._scopes: list[Scope] = []

    async def run(self) -> None:
        """Serve the experiment's workload to its end."""
        for number in range(len(self.prefill_nodes)):
            self._start_prefill_node(number)
        for number, at_s in self._experiment.cluster.losses.items():
            self._runtime.call_last(at_s, partial(self._lose, number))
        # one scope over all: a fault in any role ends the run
        serving = self._runtime.scope()
        for scope in self._scopes:
            serving.spawn(joined(scope))
        serving.spawn(self._serve(serving))
        await serving.join()

    async def _serve(self, serving: Scope) -> None:
        experiment, runtime = self._experiment, self._runtime
        roles = [
            make_decode_role(
                runtime, experiment, node, [ends[number][0] for ends in self._ends], self._router
            )
            for number, node in enumerate(self.decode_nodes)
        ]
        await serve(runtime, experiment.requests, self._router, roles, serving)
        for scope in self._scopes:
            scope.cancel()

    def outcome(self) -> Outcome:
        """What every node recorded."""
        return Outcome(self._recorders, self._runtime.now, self._meter.busy_s)

    def progress(self) -> tuple[int, float]:
        """How many requests are over, and the time; another thread may ask."""
        return self._router.num_over, self._runtime.now

    def _recorder(self) -> Recorder:
        record = self._experiment.record
        recorder = self._make_recorder(record.transfers, record.decisions, record.acts)
        self._recorders.append(recorder)
        return recorder

    def _start_prefill_node(self, number: int) -> None:
        channels = [there for _, there in self._ends[number]]
        node = self.prefill_nodes[number]
        role = make_prefill_role(self._runtime, self._experiment, node, channels)
        scope = self._runtime.scope()
        scope.spawn(role.run())
        self._scopes.append(scope)

    def _lose(self, number: int, _: float) -> None:
        """A prefill node dies: its program ends, its queue pairs are flushed, peers are told."""
        node = self.prefill_nodes[number]
        self._scopes[number].cancel()
        node.die()
        dropped = self._links.drop(node.queue_pairs)
        for decode_node, (here, there) in zip(self.decode_nodes, self._ends[number], strict=True):
            there.cut()
            decode_node.drop([p for p in dropped if p.flow.destination == decode_node.name])
            here.deliver(PeerLost(node.name))
