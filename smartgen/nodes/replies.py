"""Replies to fetches that the decoding node waits for."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from smartgen.engine.protocols import Event, Runtime


@dataclass(slots=True, eq=False)
class Awaited:
    """A fetch's replies: from which peers, and what the network made of them.

    alone: for each link of each reply, when the reply was posted and how long it keeps that link
    busy.
    """

    peers: set[int]
    event: Event
    alone: list[tuple[str, float, float]] = field(default_factory=list)


def interference_s(alone: Iterable[tuple[str, float, float]], end_s: float) -> float:
    """How much longer replies took, ending at end_s, because of other transfers.

    alone: as in Awaited. Compared with these replies alone on their links: on each link one after
    the other, and the slowest link decides.
    """
    free_s: dict[str, float] = {}
    for link, posted_s, seconds in sorted(alone, key=_posted):
        free_s[link] = max(free_s.get(link, 0.0), posted_s) + seconds
    return max(0.0, end_s - max(free_s.values())) if free_s else 0.0


def _posted(row: tuple[str, float, float]) -> float:
    return row[1]


class Replies:
    """Numbers fetches and counts their replies; a lost peer's replies count as come."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._awaited: dict[int, Awaited] = {}
        self._num_fetches = 0
        self.lost: set[int] = set()
        """Peers that are gone."""

    def expect(self, peers: set[int]) -> tuple[int, Awaited]:
        """One reply from each of these peers, under one fetch number."""
        self._num_fetches += 1
        awaited = self._awaited[self._num_fetches] = Awaited(peers, self._runtime.event())
        return self._num_fetches, awaited

    def come(self, fetch_id: int, peer: int, alone: list[tuple[str, float, float]]) -> None:
        """A peer's reply is here; KeyError if it has come before."""
        awaited = self._awaited[fetch_id]
        awaited.peers.remove(peer)
        awaited.alone += alone
        self._settle(fetch_id)

    def lose(self, peer: int) -> None:
        """Nothing will come from this peer any more."""
        self.lost.add(peer)
        for fetch_id, awaited in list(self._awaited.items()):
            if peer in awaited.peers:
                awaited.peers.remove(peer)
                self._settle(fetch_id)

    def _settle(self, fetch_id: int) -> None:
        if not self._awaited[fetch_id].peers:
            self._awaited.pop(fetch_id).event.set()
