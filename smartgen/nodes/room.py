"""Room in a pool, first come first served."""

from collections import deque

from smartgen.engine.protocols import Event, Runtime


class Room:
    """Counts tokens in and out of a pool; capacity null means unlimited."""

    def __init__(self, runtime: Runtime, capacity_tokens: int | None) -> None:
        self._runtime, self._left = runtime, capacity_tokens
        self._queue: deque[tuple[int, Event]] = deque()

    async def take(self, tokens: int) -> None:
        """Wait for room and take it."""
        if self._left is None:
            return
        event = self._runtime.event()
        place = (tokens, event)
        self._queue.append(place)
        self._grant()
        try:
            await event.wait()
        except BaseException:  # nobody wants it any more
            if place in self._queue:
                self._queue.remove(place)
            else:
                self._left += tokens
            self._grant()
            raise

    def give(self, tokens: int) -> None:
        """Give room back."""
        if self._left is not None:
            self._left += tokens
            self._grant()

    def _grant(self) -> None:
        assert self._left is not None
        while self._queue and self._queue[0][0] <= self._left:
            tokens, event = self._queue.popleft()
            self._left -= tokens
            event.set()
