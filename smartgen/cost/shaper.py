"""Drives a Wire with whatever clock it is given: simulated timeouts or an event loop's timers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

from smartgen.cost.wire import Flow, Wire

Write = TypeVar("Write")


class Posted(Protocol):
    """What was posted of so many wire bytes, and on which links."""

    source: str
    destination: str
    size: float
    posted_s: float
    started_s: float
    end_s: float


def alone(
    flow: Posted, rates: Mapping[str, float], one_way_s: float
) -> list[tuple[str, float, float]]:
    """For each of a flow's links: when it was posted, and how long it keeps the link busy.

    Posting times are those after which it could have landed: one way is added.
    """
    posted_s, links = flow.posted_s + one_way_s, (flow.source, flow.destination)
    return [(link, posted_s, flow.size / rates[link]) for link in links]


class Clock(Protocol):
    """A clock that can call back; the runtime of a backend."""

    @property
    def now(self) -> float:
        """Seconds since the run's start."""

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come."""


@dataclass(slots=True, eq=False)
class Posting(Generic[Write]):
    """A flow, what it carries, and what to do as its pieces land.

    land(posting, first, stop) is called with the pieces [first, stop) that have arrived since the
    last call; with the last of them, the posting is landed.
    """

    flow: Flow
    write: Write
    land: "Land[Write]"
    landed_pieces: int = 0

    @property
    def landed(self) -> bool:
        """Whether all of it has arrived."""
        return self.landed_pieces == self.flow.pieces


Land: TypeAlias = Callable[[Posting[Write], int, int], None]


class Links(Protocol[Write]):
    """A network to post on: a Shaper, or what foresees one."""

    def post(self, flow: Flow, write: Write, land: Land[Write]) -> Posting[Write]:
        """Post now."""

    def settle(self) -> None:
        """Let everything that has arrived by now land."""

    def drop(self, queue_pairs: Collection[str]) -> list[Posting[Write]]:
        """Flush queue pairs; returns what was dropped."""

    def alone(self, flow: Posted) -> list[tuple[str, float, float]]:
        """When a flow was posted on each of its links, and for how long it keeps it busy."""


class Shaper(Generic[Write]):
    """Posts flows on a wire and has them land, one way later than the wire ends them."""

    def __init__(self, clock: Clock, wire: Wire, one_way_s: float) -> None:
        self._clock, self._wire, self._one_way_s = clock, wire, one_way_s
        self._postings: dict[Flow, Posting[Write]] = {}
        self._armed_s = float("inf")

    def post(self, flow: Flow, write: Write, land: Land[Write]) -> Posting[Write]:
        """Post now; land is called as pieces arrive, the last time when it is complete."""
        now = self._clock.now
        self._advance(now, posted_before_s=now)
        posting = self._postings[flow] = Posting(flow, write, land)
        self._wire.post(now, flow)
        self._arm()
        return posting

    def settle(self) -> None:
        """Let everything that has arrived by now land, in whole pieces."""
        now = self._clock.now
        self._advance(now)
        for posting in list(self._postings.values()):
            if posting.flow.started_s < now:
                pieces = posting.flow.landed_pieces(now, self._one_way_s)
                if pieces > posting.landed_pieces:
                    self._land(posting, pieces)

    def drop(self, queue_pairs: Collection[str]) -> list[Posting[Write]]:
        """Flush queue pairs: what has not landed never will. Returns what was dropped."""
        self.settle()
        self._wire.drop(self._clock.now, queue_pairs)
        dropped = [p for p in self._postings.values() if p.flow.queue_pair in queue_pairs]
        for posting in dropped:
            del self._postings[posting.flow]
        self._arm()
        return dropped

    def withdraw(self, posting: Posting[Write]) -> None:
        """Take one posting back, which will not be sent; none if it has landed."""
        if self._postings.pop(posting.flow, None) is not None:
            self._wire.withdraw(self._clock.now, posting.flow)
            self._arm()

    def alone(self, flow: Posted) -> list[tuple[str, float, float]]:
        """For each of a flow's links: when it was posted, and how long it keeps the link busy.

        Posting times are those after which it could have landed: one way is added. A link that
        varies counts with its mean rate while the flow moved.
        """
        rates = self._wire.mean_rates(flow.started_s, flow.end_s)
        return alone(flow, rates, self._one_way_s)

    def _arm(self) -> None:
        if self._wire.next_end_s < self._armed_s:
            self._armed_s = self._wire.next_end_s
            self._clock.call_at(self._armed_s, self._wake)

    def _wake(self, when_s: float) -> None:
        if when_s >= self._armed_s:
            self._armed_s = float("inf")
        self._advance(when_s)
        self._arm()

    def _advance(self, now: float, posted_before_s: float = float("inf")) -> None:
        arriving: dict[float, list[Posting[Write]]] = {}
        for flow in self._wire.advance(now, posted_before_s):
            posting = self._postings[flow]
            if self._one_way_s == 0:
                self._land(posting, flow.pieces)
            else:
                arriving.setdefault(flow.end_s + self._one_way_s, []).append(posting)
        for when_s, postings in arriving.items():
            self._clock.call_at(when_s, partial(self._arrive, postings))

    def _arrive(self, postings: list[Posting[Write]], _: float) -> None:
        """All of one instant land before anybody can react to one of them."""
        for posting in postings:
            if posting.flow in self._postings:  # neither flushed nor settled meanwhile
                self._land(posting, posting.flow.pieces)

    def _land(self, posting: Posting[Write], pieces: int) -> None:
        first, posting.landed_pieces = posting.landed_pieces, pieces
        if posting.landed:
            self._postings.pop(posting.flow, None)
        posting.land(posting, first, pieces)
