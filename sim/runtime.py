"""The engine's coroutines on SimPy's event queue.

A coroutine has what SimPy asks of a generator, ``send`` and ``throw``, so a Task is a SimPy process
in all but three respects that keep layered simulation fast. It starts at once instead of through an
event. What happens at the same instant (an event that is set, a task that ends) is called back
from a plain list between SimPy's events instead of through its heap. And a pause whose end nobody
waits for alone never becomes an event: gathering pauses takes the longest.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from heapq import heappush
from typing import Any, TypeAlias

import simpy

from smartgen.errors import SmartGenError

_LAST = simpy.events.EventPriority(9)
"""A priority behind SimPy's own, which order events of one instant."""

Callback: TypeAlias = Callable[["Waitable"], None]


def _schedule(
    env: simpy.Environment,
    when_s: float,
    priority: simpy.events.EventPriority,
    callback: Callable[[simpy.Event], None],
) -> None:
    """Call back at exactly that time.

    SimPy's own schedule takes a delay, and now + (when - now) may miss when by the last bit, on
    which the order of two things at one instant, and with it equality with the emulator, can hang.
    """
    event = simpy.Event(env)
    event._ok, event._value = True, None
    event.callbacks.append(callback)
    heappush(env._queue, (when_s, priority, next(env._eid), event))


class Cancelled(BaseException):
    """Thrown into a task that its scope ends; like asyncio's, it is nobody's to catch."""


class Waitable:
    """Something a task can wait for: done once, with an error or without."""

    __slots__ = ("callbacks", "done", "error")

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self.done = False
        self.error: BaseException | None = None

    def __await__(self) -> Generator["Waitable", None, None]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Nobody waits any more."""

    def finish(self) -> None:
        """Call back, at once."""
        self.done = True
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback(self)


class Pause(Waitable):
    """Over at a time known from the start; an event of SimPy's only if awaited by itself."""

    __slots__ = ("_env", "end_s")

    def __init__(self, env: simpy.Environment, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a pause of {seconds} s must not be negative")
        self.callbacks, self.done, self.error = [], False, None
        self._env, self.end_s = env, env.now + seconds

    def __await__(self) -> Generator[Waitable, None, None]:
        if self.end_s > self._env.now:
            _schedule(self._env, self.end_s, simpy.events.NORMAL, self._over)
            yield self

    def _over(self, _: simpy.Event) -> None:
        self.finish()


class SimEvent(Waitable):
    """An engine event: whoever waits goes on at this instant, after whoever has set it."""

    __slots__ = ("_ready",)

    def __init__(self, ready: deque[Callable[[], None]]) -> None:
        super().__init__()
        self._ready = ready

    def set(self) -> None:
        """Let it happen, now."""
        if not self.done:
            self.done = True
            if self.callbacks:
                self._ready.append(self.finish)

    def wait(self) -> "SimEvent":
        """Await the result to wait until it has happened."""
        return self


class Gather(Waitable):
    """Acts side by side: done when the last of them is; a failure cancels the others."""

    __slots__ = ("_open", "_tasks")

    def __init__(self, acts: list[Awaitable[Any]]) -> None:
        super().__init__()
        self._tasks: list[Task] = []
        self._open = len(acts)
        for act in acts:
            task = Task(_wait_for(act), self._task_done)
            if not task.finished:
                self._tasks.append(task)

    def cancel(self) -> None:
        """End the tasks that are still running."""
        for task in self._tasks:
            task.cancel()

    def _task_done(self, task: "Task") -> None:
        self._open -= 1
        if task.error is None or self.error is not None or self.done:
            if not self._open and not self.done:
                self.finish()
        elif not isinstance(task.error, Cancelled):
            self.error = task.error
            self.cancel()
            self.finish()


async def _wait_for(act: Awaitable[Any]) -> None:
    await act


class Task:
    """Drives a coroutine; calls done when it has returned, failed or been cancelled."""

    __slots__ = ("_cancelled", "_coroutine", "_done", "_running", "_target", "error", "finished")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], done: Callable[["Task"], None]) -> None:
        self._coroutine, self._done = coroutine, done
        self._target: Waitable | None = None
        self._running = self._cancelled = self.finished = False
        self.error: BaseException | None = None
        self._advance(coroutine.send, None)

    def cancel(self) -> None:
        """End the coroutine where it waits; if it is running, when it next waits."""
        if self.finished or self._cancelled:
            return
        self._cancelled = True
        if not self._running:
            self._throw_cancelled()

    def _throw_cancelled(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.cancel()
        self._advance(self._coroutine.throw, Cancelled())

    def _resume(self, target: Waitable) -> None:
        if target is self._target:  # else cancelled while the target was calling back
            self._target = None
            self._advance(self._coroutine.send, None)

    def _advance(self, step: Callable[[Any], Any], value: Any) -> None:
        self._running = True
        try:
            target: Waitable = step(value)
        except StopIteration:
            self._end(None)
        except (Exception, Cancelled) as error:
            self._end(error)
        else:
            self._running = False
            self._target = target
            target.callbacks.append(self._resume)
            if self._cancelled:
                self._throw_cancelled()

    def _end(self, error: BaseException | None) -> None:
        self._running, self.finished, self.error = False, True, error
        self._done(self)


class SimScope:
    """Tasks that live and end together."""

    def __init__(self, runtime: "SimRuntime") -> None:
        self._runtime = runtime
        self._tasks: set[Task] = set()
        self._failure: BaseException | None = None
        self._empty: SimEvent | None = None

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a task; it runs until it first waits."""
        task = Task(coroutine, self._done)
        if not task.finished:
            self._tasks.add(task)

    def cancel(self) -> None:
        """End every task."""
        for task in list(self._tasks):
            task.cancel()

    async def join(self) -> None:
        """Wait until no task is left; raise the first failure."""
        while self._tasks:
            self._empty = self._runtime.event()
            await self._empty
        if self._failure is not None:
            raise self._failure

    def _done(self, task: Task) -> None:
        self._tasks.discard(task)
        if task.error is not None and not isinstance(task.error, Cancelled):
            self._failure = self._failure or task.error
            self.cancel()
        if not self._tasks and self._empty is not None:
            self._empty.set()


class SimRuntime:
    """SimPy's clock and concurrency, as the engine and the nodes want them."""

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self._ready: deque[Callable[[], None]] = deque()

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self.env.now

    def after(self, seconds: float) -> Pause:
        """Something that is over so many seconds from now."""
        return Pause(self.env, seconds)

    def until(self, when_s: float) -> Pause:
        """Something that is over at that time, which may have passed."""
        pause = Pause(self.env, 0.0)
        pause.end_s = when_s
        return pause

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come."""
        when_s = max(when_s, self.env.now)
        _schedule(self.env, when_s, simpy.events.NORMAL, lambda _: callback(when_s))

    def call_soon(self, callback: Callable[[float], None]) -> None:
        """Call back at this instant, after what is running now."""
        self._ready.append(partial(callback, self.env.now))

    def call_last(self, when_s: float, callback: Callable[[float], None]) -> None:
        """The same, after everything else that happens at that instant."""
        when_s = max(when_s, self.env.now)
        _schedule(self.env, when_s, _LAST, lambda _: callback(when_s))

    def event(self) -> SimEvent:
        """A new event."""
        return SimEvent(self._ready)

    def scope(self) -> SimScope:
        """A new scope."""
        return SimScope(self)

    def gather(self, *acts: Awaitable[Any]) -> Awaitable[None]:
        """Run acts side by side."""
        return self._gather(acts)

    async def _gather(self, acts: Iterable[Awaitable[Any]]) -> None:
        last: Pause | None = None
        others = []
        for act in acts:
            if not isinstance(act, Pause):
                others.append(act)
            elif last is None or act.end_s > last.end_s:
                last = act
        if len(others) == 1:  # nothing to run it beside but pauses
            await others[0]
        elif others:
            await Gather(others)
        if last is not None:
            await last

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run the world until main is over; raises what main raises."""
        task = Task(main, lambda _: None)
        ready, step = self._ready, self.env.step
        while not task.finished:
            while ready:
                ready.popleft()()
            if task.finished:
                break
            try:
                step()
            except simpy.core.EmptySchedule:
                raise SmartGenError(
                    f"nothing can happen any more at {self.env.now:.6f} s simulated, "
                    "but requests are unfinished; this is a fault of the program, please report it"
                ) from None
        if task.error is not None:
            raise task.error
