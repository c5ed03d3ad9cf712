"""Who still writes for a request: pages may go only when nobody does."""

from collections.abc import Iterable

from smartgen.engine.protocols import Event, Runtime


class Writers:
    """Counts writes that are being prepared or in flight, by request."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[int, int] = {}
        self._waiting: dict[int, list[Event]] = {}

    def begin(self, request_ids: Iterable[int]) -> None:
        """A write for these requests is on its way."""
        for request_id in request_ids:
            self._open[request_id] = self._open.get(request_id, 0) + 1

    def end(self, request_ids: Iterable[int]) -> None:
        """It has landed, or never will."""
        for request_id in request_ids:
            self._open[request_id] -= 1
            if not self._open[request_id]:
                del self._open[request_id]
                for event in self._waiting.pop(request_id, ()):
                    event.set()

    async def drained(self, request_id: int) -> None:
        """Wait until no write for the request is under way."""
        while request_id in self._open:
            event = self._runtime.event()
            self._waiting.setdefault(request_id, []).append(event)
            await event.wait()
