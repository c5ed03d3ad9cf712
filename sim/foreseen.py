"""What is posted ahead of the clock: postings of which it is known when they land.

Ledgers take the place of a shaped network, channels pass messages at a time that may lie ahead, and
recorders keep what was decided in the order of its time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from smartgen.cost import Flow
from smartgen.cost.shaper import Land, Posting
from smartgen.metrics.records import Decision, Recorder
from smartgen.nodes.channel import LocalChannel
from smartgen.nodes.landings import Landings
from smartgen.nodes.timed_prefill import Write
from smartgen.sim.ahead import AheadRuntime
from smartgen.sim.ledger import INFINITY, Ledger, Movable


class Receiver(Protocol):
    """A decoding node, as what is posted to it sees it."""

    def has_landed(self, flow: Movable) -> bool:
        """Whether a flow has landed by now, which may lie ahead of the clock."""

    def expect(self, posting: "Foreseen") -> None:
        """Something was posted to this node."""

    async def wait_for(self, flow: Movable) -> None:
        """Wait until a flow has landed."""

    def report(self) -> None:
        """Write down what has landed by now."""


@dataclass(slots=True, eq=False)
class Foreseen(Posting[Write]):
    """A posting of which it is known when it lands. landed_pieces are those that a mask shows."""

    receiver: Receiver | None = None
    withdrawn: bool = False
    reported: bool = False

    @property
    def landed(self) -> bool:
        """Whether all of it has arrived."""
        assert self.receiver is not None
        return self.receiver.has_landed(self.flow)


class PlannedPush:
    """A layer's planned push: flow and posting in one, and nothing that need not be kept.

    There are as many as a request has layers, of which mostly nothing matters but the times.
    """

    __slots__ = (
        "destination",
        "end_s",
        "key",
        "posted_s",
        "receiver",
        "reported",
        "size",
        "slot",
        "source",
        "started_s",
        "write_of",
    )

    def __init__(
        self,
        key: tuple[int, ...],
        source: str,
        destination: str,
        size: float,
        posted_s: float,
        slot: int,
        receiver: Receiver,
        write_of: Callable[[int], Write],
    ) -> None:
        self.key, self.source, self.destination, self.size = key, source, destination, size
        self.posted_s, self.slot = posted_s, slot
        self.receiver, self.write_of = receiver, write_of
        self.started_s = self.end_s = INFINITY
        self.reported = False

    @property
    def layer(self) -> int:
        """Whose blocks it carries."""
        return self.key[2]

    @property
    def landed(self) -> bool:
        """Whether all of it has arrived."""
        return self.receiver.has_landed(self)

    def move(self, start_s: float, end_s: float, bytes_per_s: float) -> None:
        """Move at one rate from start to end."""
        self.started_s, self.end_s = start_s, end_s

    def posting(self) -> Posting[Write]:
        """The same as any other posting."""
        flow = Flow(self.key, self.source, self.destination, "", self.size)
        flow.posted_s = self.posted_s
        flow.move(self.started_s, self.end_s, 0.0)
        return Posting(flow, self.write_of(self.layer), _nothing, 1)


def _nothing(posting: Posting[Write], first: int, stop: int) -> None:
    """Nobody has to be told."""


class Ledgers:
    """A ledger for every decoding node: what nodes post on instead of a shaped network."""

    def __init__(self, runtime: AheadRuntime, rates: Mapping[str, float], one_way_s: float) -> None:
        self._runtime, self._rates, self._one_way_s = runtime, rates, one_way_s
        self._ledgers: dict[str, Ledger[Foreseen | PlannedPush]] = {}
        self.receivers: dict[str, Receiver] = {}
        """Decoding nodes by name."""

    def open(self, name: str, receiver: Receiver) -> Ledger[Foreseen | PlannedPush]:
        """A ledger for a decoding node."""
        self.receivers[name] = receiver
        self._ledgers[name] = Ledger(self._rates[name])
        return self._ledgers[name]

    def post(self, flow: Flow, write: Write, land: Land[Write]) -> Foreseen:
        """Post at the present time, which may lie ahead of the clock."""
        flow.posted_s = self._runtime.now
        receiver = self.receivers[flow.destination]
        posting = Foreseen(flow, write, land, 0, receiver)
        self._ledgers[flow.destination].add(flow, posting)
        receiver.expect(posting)
        return posting

    def settle(self) -> None:
        """Nothing lands by itself: nodes look."""

    def drop(self, queue_pairs: Collection[str]) -> list[Posting[Write]]:
        """Nothing can be dropped: losses are not foreseen."""
        raise RuntimeError(f"{sorted(queue_pairs)} cannot be flushed ahead of the clock")

    def alone(self, flow: Flow) -> list[tuple[str, float, float]]:
        """When a flow was posted on each of its links, and for how long it keeps it busy."""
        posted_s = flow.posted_s + self._one_way_s
        links = (flow.source, flow.destination)
        return [(link, posted_s, flow.size / self._rates[link]) for link in links]


class DirectChannel(LocalChannel):
    """A channel whose messages may cross ahead of the clock; they are frozen, so none is copied."""

    def deliver(self, message: Any) -> None:
        """Take a message in, one way from now."""
        if self._one_way_s > 0:
            when_s = self._runtime.now + self._one_way_s
            self._runtime.call_at(when_s, lambda _: self._take(message))
        else:
            self._runtime.call_soon(lambda _: self._take(message))

    def _take(self, message: Any) -> None:
        if self._hear is not None:
            self._hear(message)


class ForeseenLandings(Landings):
    """Planned pushes of one slot, of which it is known when they land once they are posted."""

    def __init__(self, runtime: AheadRuntime, node: Receiver, num_layers: int) -> None:
        super().__init__(runtime, num_layers)
        self._node = node
        self._pushes: Sequence[PlannedPush] = ()  # by layer
        self.proactive_bytes = self.metadata_bytes = 0
        """What all pushes carry together."""

    def expect(
        self, pushes: Sequence[PlannedPush], proactive_bytes: int, metadata_bytes: int
    ) -> None:
        """All layers' pushes are announced, and what they carry together."""
        self._pushes = pushes
        self.proactive_bytes, self.metadata_bytes = proactive_bytes, metadata_bytes

    def land_in_order(self, layer: int) -> None:
        """A layer's push has landed; nobody has to be woken."""
        if layer != len(self._pushes) - self.num_in_flight:
            raise RuntimeError(f"the planned blocks of layer {layer} were delivered out of order")
        self.num_in_flight -= 1

    def in_flight(self, layer: int) -> bool:
        """Whether the layer's planned push is still to come."""
        return self.num_in_flight > 0 and not self._node.has_landed(self._pushes[layer])

    async def layer(self, layer: int) -> None:
        """Wait for one layer."""
        if self.num_in_flight:
            await self._node.wait_for(self._pushes[layer])

    async def all(self) -> None:
        """Wait for all layers: they are pushed in order."""
        await self._node.wait_for(self._pushes[-1])


class FoldedRecorder(Recorder):
    """A recorder that keeps decisions in the order of their time, and can take them back."""

    def __init__(
        self,
        runtime: AheadRuntime,
        wants_transfers: bool = False,
        wants_decisions: bool = False,
        wants_acts: bool = False,
    ) -> None:
        super().__init__(wants_transfers, wants_decisions, wants_acts)
        self._runtime = runtime
        self._decided: list[tuple[float, Decision]] = []

    def decide(
        self, kind: str, request_id: int, step: int, layer: int, values: Iterable[float]
    ) -> None:
        """Log a decision at the present time, which may lie ahead of the clock."""
        if self.wants_decisions:
            told = tuple(float(value) for value in values)
            decided = (self._runtime.now, Decision(kind, request_id, step, layer, told))
            self._decided.append(decided)
            self._runtime.may_undo(self._take_back, decided)

    def _take_back(self, decided: tuple[float, Decision]) -> None:
        for at in reversed(range(len(self._decided))):
            if self._decided[at] is decided:
                del self._decided[at]
                return

    def finish(self) -> None:
        """All is decided."""
        self.decisions += [decision for _, decision in sorted(self._decided, key=_time)]
        self._decided.clear()


def _time(decided: tuple[float, Decision]) -> float:
    return decided[0]
