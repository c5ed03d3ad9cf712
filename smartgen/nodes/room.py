"""Room in a pool, first come first served."""

from collections import deque
from dataclasses import dataclass

from smartgen.engine.protocols import Event, Runtime
from smartgen.errors import RequestFailed


@dataclass(slots=True, eq=False)
class _Place:
    tokens: int
    event: Event
    granted: bool = False


class Room:
    """Counts tokens in and out of a pool; capacity null means unlimited."""

    def __init__(self, runtime: Runtime, capacity_tokens: int | None) -> None:
        self._runtime, self._left = runtime, capacity_tokens
        self._whole = capacity_tokens
        self._queue: deque[_Place] = deque()

    async def take(self, tokens: int) -> None:
        """Wait for room and take it; RequestFailed if there can never be so much."""
        if self._left is None:
            return
        place = _Place(tokens, self._runtime.event())
        self._queue.append(place)
        self._grant()
        try:
            await place.event.wait()
        except BaseException:  # nobody wants it any more
            if place.granted:
                self._left += tokens
            elif place in self._queue:
                self._queue.remove(place)
            self._grant()
            raise
        if not place.granted:
            raise RequestFailed(f"{tokens} tokens do not fit into what is left of the pool")

    def give(self, tokens: int) -> None:
        """Give room back."""
        if self._left is not None:
            self._left += tokens
            self._grant()

    def lose(self, tokens: int) -> None:
        """Room that was taken never comes back."""
        if self._whole is not None:
            self._whole -= tokens
            self._grant()

    def _grant(self) -> None:
        assert self._left is not None and self._whole is not None
        while self._queue and self._queue[0].tokens <= self._left:
            place = self._queue.popleft()
            self._left -= place.tokens
            place.granted = True
            place.event.set()
        for place in [place for place in self._queue if place.tokens > self._whole]:
            self._queue.remove(place)
            place.event.set()
