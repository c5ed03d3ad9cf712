"""A runtime that can run a coroutine ahead of the clock.

What an iteration or a prefill does is known when it begins, but for what others announce meanwhile.
So its coroutine is driven at once, against a time of its own: an await moves that time and never
suspends, acts side by side start at the same time and end with the last. What it changes on its
way can be taken back, to run it again.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from smartgen.sim.runtime import Pause, SimRuntime

Acts = Callable[[], Coroutine[Any, Any, None]]
"""Something that can be driven, as often as need be."""

Undo = list[tuple[Callable[..., None], tuple[Any, ...]]]
"""How to take back what was done, in the order in which it was done."""


class Advance(Awaitable[None]):
    """Over at a time known from the start; awaiting it moves the time ahead."""

    __slots__ = ("_runtime", "end_s")

    def __init__(self, runtime: "AheadRuntime", end_s: float) -> None:
        self._runtime, self.end_s = runtime, end_s

    def __await__(self) -> Any:
        self._runtime.ahead_s = self.end_s
        return iter(())


class _Over(Awaitable[None]):
    """What is over already: awaiting it never suspends."""

    __slots__ = ()

    def __await__(self) -> Any:
        return iter(())


_OVER = _Over()


class AheadRuntime(SimRuntime):
    """SimPy's clock, or the time of what is run ahead of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s: float | None = None
        """The time of what is being run ahead; null while nothing is."""
        self._undo: Undo | None = None

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self.env.now if self.ahead_s is None else self.ahead_s

    def time(self) -> float:
        """The same."""
        return self.now

    def run_ahead(
        self,
        coroutine: Coroutine[Any, Any, None],
        undo: Undo,
        from_s: float,
    ) -> float:
        """Drive a coroutine from a time on; return the time of its end.

        How to take back what it changes is appended to undo.
        """
        self.ahead_s, self._undo = from_s, undo
        try:
            self._drive(coroutine)
            return self.ahead_s
        finally:
            self.ahead_s = self._undo = None

    def may_undo(self, act: Callable[..., None], *arguments: Any) -> None:
        """Note how to take back a change; what is not run ahead need not be."""
        if self._undo is not None:
            self._undo.append((act, arguments))

    def after(self, seconds: float) -> Any:
        """Something that is over so many seconds from now."""
        if self.ahead_s is None:
            return Pause(self.env, seconds)
        return Advance(self, self.ahead_s + seconds)

    def until(self, when_s: float) -> Any:
        """Something that is over at that time, which may have passed."""
        if self.ahead_s is None:
            return super().until(when_s)
        return Advance(self, max(when_s, self.ahead_s))

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come; ahead of the clock, at once."""
        if self.ahead_s is None:
            super().call_at(when_s, callback)
        else:
            here_s, self.ahead_s = self.ahead_s, when_s
            callback(when_s)
            self.ahead_s = here_s

    def call_soon(self, callback: Callable[[float], None]) -> None:
        """Call back at this instant; ahead of the clock, at once."""
        if self.ahead_s is None:
            super().call_soon(callback)
        else:
            callback(self.ahead_s)

    def gather(self, *acts: Awaitable[Any]) -> Awaitable[None]:
        """Run acts side by side."""
        start_s = self.ahead_s
        if start_s is None:
            return super().gather(*acts)
        last_s = start_s
        for act in acts:
            if type(act) is Advance:
                end_s = act.end_s
            else:
                self.ahead_s = start_s
                self._drive(act)
                end_s = self.ahead_s
            if end_s > last_s:
                last_s = end_s
        self.ahead_s = last_s
        return _OVER

    def _drive(self, coroutine: Any) -> None:
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise RuntimeError(f"{coroutine!r} waits for something that cannot be known ahead")
