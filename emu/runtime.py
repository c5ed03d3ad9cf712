"""The engine's coroutines on asyncio."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from smartgen.emu.clock import NominalLoop


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
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NominalLoop)
        self._loop = loop
        self._start_s = self._loop.time()
        self._due: dict[float, list[Callable[[], None]]] = {}
        self._as_of_s: float | None = None

    @property
    def now(self) -> float:
        """Seconds since the run's start."""
        return self._loop.time() - self._start_s if self._as_of_s is None else self._as_of_s

    @property
    def real_s(self) -> float:
        """How late it really is; the same as now where nobody keeps pace with a clock."""
        return max(self.now, self._loop.real_s() - self._start_s)

    @contextmanager
    def as_of(self, then_s: float) -> Iterator[None]:
        """What is done within is done at that time, though it may be later by now."""
        self._as_of_s = then_s
        try:
            yield
        finally:
            self._as_of_s = None

    def after(self, seconds: float) -> asyncio.Future[None]:
        """Something that started now and is over so many seconds from now."""
        future: asyncio.Future[None] = self._loop.create_future()
        if seconds > 0:
            self._at(self._start_s + self.now + seconds, partial(_resolve, future))
        else:  # over already: whoever awaits it goes on at once
            future.set_result(None)
        return future

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come."""
        self._at(self._start_s + when_s, partial(callback, when_s))

    def call_soon(self, callback: Callable[[float], None]) -> None:
        """Call back at this instant, after what is running now."""
        self._loop.call_soon(callback, self.now)

    def call_last(self, when_s: float, callback: Callable[[float], None]) -> None:
        """The same, after everything else that happens at that instant."""
        self._loop.call_last(self._start_s + when_s, partial(callback, when_s))

    def _at(self, when_s: float, callback: Callable[[], None]) -> None:
        """Set a timer; those of one instant go off in the order in which they were set."""
        due = self._due.get(when_s)
        if due is None:
            due = self._due[when_s] = []
            self._loop.call_at(when_s, self._go_off, when_s)
        due.append(callback)

    def _go_off(self, when_s: float) -> None:
        for callback in self._due.pop(when_s):
            callback()

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
