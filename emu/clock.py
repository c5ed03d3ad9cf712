"""Event loops in nominal time: what happens next happens at exactly the time it was planned for.

Under a JumpLoop nobody waits: when every task waits, time is the next timer's. Virtual times are
exact floats, so that a run can be compared with a simulation to the last digits. Under a PacedLoop
the machine's clock has to come that far, too; a timer that goes off late still goes off at its
nominal time, so that what follows it is not late as well (docs/decisions/0017-nominal-time.md).
"""

import asyncio
import heapq
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any

from smartgen.errors import SmartGenError

Ready = list[tuple[selectors.SelectorKey, int]]


class _Selector(selectors.SelectSelector):
    """Asks its loop what to do when nothing is ready; select() waits more finely than epoll."""

    loop: "NominalLoop"

    def select(self, timeout: float | None = None) -> Ready:
        return self.loop.wait(timeout, super().select)


class NominalLoop(asyncio.SelectorEventLoop):
    """A loop whose time is that of its timers; it starts at 0."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self._now_s = 0.0
        self._last: list[tuple[float, int, Callable[[], None]]] = []
        self._num_last = 0
        super().__init__(selector)
        self._clock_resolution = math.ulp(0.0)

    def call_last(self, when_s: float, callback: Callable[[], None]) -> None:
        """Call back at a time, after everything else that happens at that instant."""
        self._num_last += 1
        heapq.heappush(self._last, (when_s, self._num_last, callback))

    def time(self) -> float:
        """Nominal seconds."""
        return self._now_s

    def real_s(self) -> float:
        """How late it really is, in nominal seconds."""
        return self._now_s

    def wait(self, timeout: float | None, select: Callable[[float | None], Ready]) -> Ready:
        """What is ready; where nothing is, wait, or let the next timer go off.

        timeout is null or positive if no callback is ready, as asyncio tells it.
        """
        raise NotImplementedError

    def _next_s(self) -> float:
        """When the next timer goes off; never, if there is none."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        times_s = [timers[0].when()] if timers else []
        if self._last:
            times_s.append(self._last[0][0])
        return min(times_s, default=math.inf)

    def _jump(self) -> None:
        """Go to the next timer, of which there is one."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if self._last and (not timers or self._last[0][0] < timers[0].when()):
            when_s, _, callback = heapq.heappop(self._last)
            self._move_to(when_s)
            self.call_soon(callback)
        else:
            self._move_to(timers[0].when())

    def _move_to(self, when_s: float) -> None:
        self._now_s = max(self._now_s, when_s)
        # asyncio fires what lies before now + resolution: the last bit, so none fires early
        self._clock_resolution = math.ulp(self._now_s)


class JumpLoop(NominalLoop):
    """A loop in virtual time; with nothing left to wait for it says so instead of hanging."""

    def wait(self, timeout: float | None, select: Callable[[float | None], Ready]) -> Ready:
        """Go to the next timer at once."""
        ready = select(0)
        if ready or timeout == 0:
            return ready
        if self._next_s() == math.inf:
            raise SmartGenError(
                f"nothing can happen any more at {self._now_s:.6f} s virtual, "
                "but requests are unfinished; this is a fault of the program, please report it"
            )
        self._jump()
        return []


class PacedLoop(NominalLoop):
    """A loop that keeps pace with the machine's clock, dilation real seconds a nominal one.

    One thing happens at a time, with all that it leads to before the next: what has come in from
    outside, else the earliest timer. lateness_s: of every timer since the pace was set, by how many
    nominal seconds it was late.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dilation = 1.0
        self._epoch_s = time.monotonic()
        self.lateness_s: list[float] = []

    def pace(self, epoch_s: float, dilation: float) -> None:
        """Time is 0 at that reading of time.monotonic(); no timer may be waiting."""
        self._epoch_s, self._dilation = epoch_s, dilation
        self._now_s = 0.0
        self.lateness_s = []

    def real_s(self) -> float:
        """How late it really is, in nominal seconds."""
        return (time.monotonic() - self._epoch_s) / self._dilation

    def wait(self, timeout: float | None, select: Callable[[float | None], Ready]) -> Ready:
        """Finish what has begun; else take what is there; else wait for it, or for a timer."""
        self._clock_resolution = -math.inf  # no timer goes off beside anything else
        if self._ready or self._stopping:  # type: ignore[attr-defined]
            return []
        ready = select(0) or self._sleep(select)
        if ready:
            # as late as it really is, unless a timer is still to go off before
            self._now_s = max(self._now_s, min(self.real_s(), self._next_s()))
        return ready[:1]

    def _sleep(self, select: Callable[[float | None], Ready]) -> Ready:
        next_s = self._next_s()
        wait_s = (next_s - self.real_s()) * self._dilation
        if wait_s > 0:
            ready = select(None if wait_s == math.inf else wait_s)
            if ready or self.real_s() < next_s:  # or woken by a signal
                return ready
        self.lateness_s.append(self.real_s() - next_s)
        self._jump()
        return []


def run(main: Coroutine[Any, Any, None], make_loop: Callable[[], NominalLoop] = JumpLoop) -> None:
    """Run a coroutine under such a loop; what a timer's callback raises ends it, too."""
    faults: list[BaseException] = []
    running: list[asyncio.Task[None]] = []

    def end(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        faults.append(context.get("exception") or RuntimeError(context["message"]))
        for task in running:
            task.cancel()

    async def watched() -> None:
        running.append(asyncio.get_running_loop().create_task(main))
        await running[0]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.get_loop().set_exception_handler(end)
        try:
            runner.run(watched())
        except asyncio.CancelledError:
            if not faults:
                raise
    if faults:
        raise faults[0]
