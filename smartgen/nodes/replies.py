"""Replies to fetches that the decoding node waits for."""

from dataclasses import dataclass, field

from smartgen.engine.protocols import Event, Runtime


@dataclass(slots=True, eq=False)
class Awaited:
    """A fetch's replies: from which peers, and what the network made of them.

    postings: when each reply was posted, and how long it would take with nothing else on its links.
    """

    peers: set[int]
    event: Event
    postings: list[tuple[float, float]] = field(default_factory=list)

    def interference_s(self, end_s: float) -> float:
        """How much longer the replies took, ending at end_s, because of other transfers.

        Compared with these replies alone on the receiving link, one after the other.
        """
        alone_s = 0.0
        for posted_s, seconds in sorted(self.postings):
            alone_s = max(alone_s, posted_s) + seconds
        return max(0.0, end_s - alone_s) if self.postings else 0.0


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

    def come(self, fetch_id: int, peer: int, posted_s: float, alone_s: float) -> None:
        """A peer's reply is here; KeyError if it has come before."""
        awaited = self._awaited[fetch_id]
        awaited.peers.remove(peer)
        awaited.postings.append((posted_s, alone_s))
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
