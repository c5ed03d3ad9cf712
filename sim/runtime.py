"""The engine's coroutines on SimPy's event queue.

A coroutine has what SimPy asks of a generator, ``send`` and ``throw``, so a Task is a SimPy process
in all but two respects that keep layered simulation fast: it starts at once instead of through an
event, and whoever gathers it resumes in the same instant instead of through another one.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import simpy

from smartgen.errors import SmartGenError


class Cancelled(BaseException):
    """Thrown into a task that its scope ends; like asyncio's, it is nobody's to catch."""


class Wait(simpy.Timeout):
    """A timeout that can be awaited."""

    def __await__(self) -> Generator[simpy.Event, Any, None]:
        if self.callbacks is not None:
            yield self


class SimEvent(simpy.Event):
    """An engine event on SimPy's queue."""

    def set(self) -> None:
        """Let it happen, now."""
        if not self.triggered:
            self.succeed()

    def wait(self) -> "SimEvent":
        """Await the result to wait until it has happened."""
        return self

    def __await__(self) -> Generator[simpy.Event, Any, None]:
        if self.callbacks is not None:
            yield self


class Gather:
    """Acts side by side; duck-types what a Task waits for, so that it can be awaited like an event."""

    _value: Any = None

    def __init__(self, env: simpy.Environment, acts: tuple[Awaitable[Any], ...]) -> None:
        self.callbacks: list[Callable[[Any], None]] | None = []
        self._ok = True
        self._defused = False
        self._open = len(acts)
        self._children: list[Task | simpy.Event] = []
        for act in acts:
            if isinstance(act, simpy.Event):
                self._children.append(act)
                if act.callbacks is None:
                    self._open -= 1
                else:
                    act.callbacks.append(self._event_done)
            else:
                assert isinstance(act, Coroutine)
                self._children.append(Task(env, act, self._task_done))
        self._settle()

    def __await__(self) -> Generator[Any, Any, None]:
        if self.callbacks is not None:
            yield self
        elif not self._ok:
            raise self._value

    def cancel(self) -> None:
        """End the children that are still running."""
        for child in self._children:
            if isinstance(child, Task):
                child.cancel()
            elif child.callbacks is not None and self._event_done in child.callbacks:
                child.callbacks.remove(self._event_done)

    def _event_done(self, _: simpy.Event) -> None:
        self._open -= 1
        self._settle()

    def _task_done(self, task: "Task") -> None:
        self._open -= 1
        if task.error is not None and self._ok and not isinstance(task.error, Cancelled):
            self._ok, self._value, self._open = False, task.error, 0
            self.cancel()
        self._settle()

    def _settle(self) -> None:
        if self._open <= 0 and self.callbacks is not None:
            callbacks, self.callbacks = self.callbacks, None
            for callback in callbacks:
                callback(self)


class Task:
    """Drives a coroutine; calls done when it has returned, failed or been cancelled."""

    __slots__ = ("_cancelled", "_coroutine", "_done", "_running", "_target", "error", "finished")

    def __init__(
        self,
        env: simpy.Environment,
        coroutine: Coroutine[Any, Any, Any],
        done: Callable[["Task"], None],
    ) -> None:
        self._coroutine, self._done = coroutine, done
        self._target: Any = None
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
        if target is not None and target.callbacks is not None:
            target.callbacks.remove(self._resume)
            if isinstance(target, Gather):
                target.cancel()
        self._advance(self._coroutine.throw, Cancelled())

    def _resume(self, event: Any) -> None:
        if event is not self._target:  # cancelled while the event was calling back
            return
        self._target = None
        if event._ok:
            self._advance(self._coroutine.send, event._value)
        else:
            event._defused = True
            self._advance(self._coroutine.throw, event._value)

    def _advance(self, step: Callable[[Any], Any], value: Any) -> None:
        self._running = True
        try:
            target = step(value)
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

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._tasks: set[Task] = set()
        self._failure: BaseException | None = None
        self._empty = SimEvent(env)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a task; it runs until it first waits."""
        task = Task(self._env, coroutine, self._done)
        if not task.finished:
            self._tasks.add(task)

    def cancel(self) -> None:
        """End every task."""
        for task in list(self._tasks):
            task.cancel()

    async def join(self) -> None:
        """Wait until no task is left; raise the first failure."""
        while self._tasks:
            self._empty = SimEvent(self._env)
            await self._empty
        if self._failure is not None:
            raise self._failure

    def _done(self, task: Task) -> None:
        self._tasks.discard(task)
        if task.error is not None and not isinstance(task.error, Cancelled):
            self._failure = self._failure or task.error
            self.cancel()
        if not self._tasks:
            self._empty.set()


class SimRuntime:
    """SimPy's clock and concurrency, as the engine and the nodes want them."""

    def __init__(self) -> None:
        self.env = simpy.Environment()

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self.env.now

    def after(self, seconds: float) -> Wait:
        """Something that is over so many seconds from now."""
        return Wait(self.env, seconds)

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come."""
        timeout = simpy.Timeout(self.env, max(0.0, when_s - self.env.now))
        assert timeout.callbacks is not None
        timeout.callbacks.append(lambda _: callback(when_s))

    def event(self) -> SimEvent:
        """A new event."""
        return SimEvent(self.env)

    def scope(self) -> SimScope:
        """A new scope."""
        return SimScope(self.env)

    def gather(self, *acts: Awaitable[Any]) -> Gather:
        """Run acts side by side."""
        return Gather(self.env, acts)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run the world until main is over; raises what main raises."""
        task = Task(self.env, main, lambda _: None)
        while not task.finished:
            try:
                self.env.step()
            except simpy.core.EmptySchedule:
                raise SmartGenError(
                    f"nothing can happen any more at {self.env.now:.6f} s simulated, "
                    "but requests are unfinished; this is a fault of the program, please report it"
                ) from None
        if task.error is not None:
            raise task.error
