"""What is posted ahead of the clock: postings of which it is known when they land.

Ledgers take the place of a shaped network, channels pass messages at a time that may lie ahead, and
recorders keep what was decided in the order of its time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from smartgen.cost import Flow
from smartgen.cost.shaper import Land, Posted, Posting, alone
from smartgen.cost.wire import whole_pieces
from smartgen.engine.messages import Fetch
from smartgen.kv.geometry import Int
from smartgen.metrics.records import ActRow, Decision, Recorder
from smartgen.nodes.channel import LocalChannel, TimedRuntime
from smartgen.nodes.timed_prefill import Write
from smartgen.sim.ahead import AheadRuntime
from smartgen.sim.ledger import INFINITY, Ledger


class Receiver(Protocol):
    """A decoding node, as what is sent to it sees it."""

    def announce(self, slot: int, pushes: "Sequence[Sent]", metadata_bytes: int) -> None:
        """A prefill begins that will push this, one a layer."""

    def expect(self, push: "Sent") -> None:
        """Something is pushed speculatively, ahead of the clock."""

    def expect_reply(self, fetch_id: int, reply: "Sent") -> None:
        """A reply is sent, ahead of the clock."""

    def has_landed(self, sent: "Sent") -> bool:
        """Whether something has landed by now, which may lie ahead of the clock."""

    async def wait_for(self, sent: "Sent") -> None:
        """Wait until something has landed."""

    def report(self) -> None:
        """Write down what has landed by now."""


class Sent:
    """A push or a reply of which it is known when it lands: flow and posting in one.

    There are thousands in an iteration, so nothing is kept that can be made when it is asked for.
    landed_pieces are those that a mask shows; data_bytes are bytes of KV.
    """

    __slots__ = (
        "blocks",
        "data_bytes",
        "destination",
        "end_s",
        "fetch",
        "key",
        "landed_pieces",
        "posted_s",
        "receiver",
        "reported",
        "size",
        "source",
        "started_s",
        "withdrawn",
        "write",
    )

    def __init__(
        self,
        key: tuple[int, ...],
        source: str,
        destination: str,
        size: float,
        data_bytes: float,
        posted_s: float,
        receiver: Receiver,
        write: Callable[[], Write],
        blocks: Int | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """Write makes what it carries. blocks are those of a speculative push, fetch a reply's."""
        self.key, self.source, self.destination = key, source, destination
        self.size, self.data_bytes, self.posted_s = size, data_bytes, posted_s
        self.receiver, self.write = receiver, write
        self.blocks, self.fetch = blocks, fetch
        self.started_s = self.end_s = INFINITY
        self.landed_pieces = 0
        self.withdrawn = self.reported = False

    @property
    def is_planned(self) -> bool:
        """Whether it is a planned push, which was announced when its prefill began."""
        return self.blocks is None and self.fetch is None

    @property
    def landed(self) -> bool:
        """Whether all of it has arrived."""
        return self.receiver.has_landed(self)

    def pieces_at(self, now: float, one_way_s: float) -> int:
        """How many of its blocks have arrived in full; as Flow.landed_pieces."""
        assert self.blocks is not None
        if self.end_s + one_way_s <= now:
            return len(self.blocks)
        sent_s = now - one_way_s
        if self.size == 0 or sent_s < self.started_s:
            return 0
        rate = self.size / (self.end_s - self.started_s)
        left = max(0.0, self.size - rate * (sent_s - self.started_s))
        return whole_pieces(left, self.size, len(self.blocks))

    def posting(self) -> Posting[Write]:
        """The same as any other posting that has landed."""
        flow = Flow(self.key, self.source, self.destination, "", self.size)
        flow.posted_s, flow.started_s, flow.end_s = self.posted_s, self.started_s, self.end_s
        return Posting(flow, self.write(), _nothing, 1)


def _nothing(posting: Posting[Write], first: int, stop: int) -> None:
    """Nobody has to be told."""


class Ledgers:
    """A ledger for every decoding node, on which nodes post themselves."""

    def __init__(self, rates: Mapping[str, float], one_way_s: float) -> None:
        self._rates, self._one_way_s = rates, one_way_s
        self.receivers: dict[str, Receiver] = {}
        """Decoding nodes by name."""

    def open(self, name: str, receiver: Receiver) -> Ledger[Sent]:
        """A ledger for a decoding node."""
        self.receivers[name] = receiver
        return Ledger(self._rates[name])

    def post(self, flow: Flow, write: Write, land: Land[Write]) -> Posting[Write]:
        """Nothing is posted at the clock's time."""
        raise RuntimeError(f"{flow.source} cannot post on a ledger as on a wire")

    def settle(self) -> None:
        """Nothing lands by itself: nodes look."""

    def drop(self, queue_pairs: Collection[str]) -> list[Posting[Write]]:
        """Nothing can be dropped: losses are not foreseen."""
        raise RuntimeError(f"{sorted(queue_pairs)} cannot be flushed ahead of the clock")

    def alone(self, flow: Posted) -> list[tuple[str, float, float]]:
        """When a flow was posted on each of its links, and for how long it keeps it busy."""
        return alone(flow, self._rates, self._one_way_s)


class DirectChannel(LocalChannel):
    """A channel whose messages may cross ahead of the clock; they are frozen, so none is copied."""

    def __init__(self, runtime: TimedRuntime, one_way_s: float) -> None:
        super().__init__(runtime, one_way_s)
        assert isinstance(runtime, AheadRuntime)
        self._clock = runtime

    def deliver(self, message: Any) -> None:
        """Take a message in, one way from now."""
        if self._clock.ahead_s is not None and self._one_way_s == 0:
            self._take(message)
        elif self._one_way_s > 0:
            when_s = self._runtime.now + self._one_way_s
            self._runtime.call_at(when_s, lambda _: self._take(message))
        else:
            self._runtime.call_soon(lambda _: self._take(message))

    def _take(self, message: Any) -> None:
        if self._hear is not None:
            self._hear(message)


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
            self._runtime.may_undo(_remove, self._decided, decided)

    def act(self, row: ActRow) -> None:
        """Keep an act, which may lie ahead of the clock."""
        super().act(row)
        self._runtime.may_undo(_remove, self.acts, row)

    def finish(self) -> None:
        """All is decided."""
        self.decisions += [decision for _, decision in sorted(self._decided, key=_time)]
        self._decided.clear()


def _remove(rows: list[Any], row: object) -> None:
    """Take a row off a list, near the end of which it is."""
    for at in reversed(range(len(rows))):
        if rows[at] is row:
            del rows[at]
            return


def _time(decided: tuple[float, Decision]) -> float:
    return decided[0]
