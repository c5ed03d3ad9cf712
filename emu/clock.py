"""An event loop whose clock jumps: when every task waits, time is the next timer's.

Virtual times are exact floats, so that a run under this loop can be compared with a simulation
to the last digits. A loop with nothing left to wait for says so instead of hanging.
"""

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from smartgen.errors import SmartGenError


class _JumpingSelector(selectors.SelectSelector):
    """A selector that does not sleep: it moves the loop's clock instead."""

    loop: "JumpLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self.loop.jump()
        return ready


class JumpLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, which starts at 0."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
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
        """Virtual seconds."""
        return self._now_s

    def jump(self) -> None:
        """Go to the next timer."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if self._last and (not timers or self._last[0][0] < timers[0].when()):
            when_s, _, callback = heapq.heappop(self._last)
            self._move_to(when_s)
            self.call_soon(callback)
            return
        if not timers:
            raise SmartGenError(
                f"nothing can happen any more at {self._now_s:.6f} s virtual, "
                "but requests are unfinished; this is a fault of the program, please report it"
            )
        self._move_to(timers[0].when())

    def _move_to(self, when_s: float) -> None:
        self._now_s = max(self._now_s, when_s)
        # asyncio fires what lies before now + resolution: the last bit, so none fires early
        self._clock_resolution = math.ulp(self._now_s)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine under a jumping clock; what a timer's callback raises ends it, too."""
    faults: list[BaseException] = []
    running: list[asyncio.Task[None]] = []

    def end(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        faults.append(context.get("exception") or RuntimeError(context["message"]))
        for task in running:
            task.cancel()

    async def watched() -> None:
        running.append(asyncio.get_running_loop().create_task(main))
        await running[0]

    with asyncio.Runner(loop_factory=JumpLoop) as runner:
        runner.get_loop().set_exception_handler(end)
        try:
            runner.run(watched())
        except asyncio.CancelledError:
            if not faults:
                raise
    if faults:
        raise faults[0]
