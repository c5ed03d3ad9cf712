"""The engine's coroutines on asyncio."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


class EmuScope:
    """Tasks that live and end together: the first failure cancels the others."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """End every task."""
        for task in list(self._tasks):
            task.cancel()

    async def join(self) -> None:
        """Wait until no task is left; raise the first failure."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._failure is not None:
            raise self._failure

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
            self.cancel()


class EmuRuntime:
    """The running loop's clock and concurrency, as the engine and the nodes want them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    @property
    def now(self) -> float:
        """Seconds since the run's start."""
        return self._loop.time() - self._start_s

    def after(self, seconds: float) -> asyncio.Future[None]:
        """Something that started now and is over so many seconds from now."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_at(self._loop.time() + seconds, _resolve, future)
        return future

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come."""
        self._loop.call_at(self._start_s + when_s, callback, when_s)

    def event(self) -> asyncio.Event:
        """A new event."""
        return asyncio.Event()

    def scope(self) -> EmuScope:
        """A new scope."""
        return EmuScope()

    async def gather(self, *acts: Awaitable[Any]) -> None:
        """Run acts side by side until all are done; a failure cancels the others."""
        tasks = [asyncio.ensure_future(act) for act in acts]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
