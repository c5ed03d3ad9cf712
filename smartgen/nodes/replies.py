"""Replies to fetches that the decoding node waits for."""

from dataclasses import dataclass

from smartgen.engine.protocols import Event, Runtime


@dataclass(slots=True, eq=False)
class Awaited:
    """A fetch's replies: from which peers, and how long the last one waited on the network."""

    peers: set[int]
    event: Event
    waited_s: float = 0.0


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

    def come(self, fetch_id: int, peer: int, waited_s: float) -> None:
        """A peer's reply is here."""
        awaited = self._awaited[fetch_id]
        awaited.peers.remove(peer)
        awaited.waited_s = waited_s
        if not awaited.peers:
            del self._awaited[fetch_id]
            awaited.event.set()

    def lose(self, peer: int) -> None:
        """Nothing will come from this peer any more."""
        self.lost.add(peer)
        for fetch_id, awaited in list(self._awaited.items()):
            if peer in awaited.peers:
                self.come(fetch_id, peer, 0.0)
