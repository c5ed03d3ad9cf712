"""A channel within one process. It serialises messages: nothing crosses by reference."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from smartgen.engine.messages import Message, decode, encode
from smartgen.engine.protocols import Event, Runtime


class TimedRuntime(Runtime, Protocol):
    """A runtime whose clock nodes and channels may use; the engine may not."""

    @property
    def now(self) -> float:
        """Seconds since the run's start."""

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come."""

    def call_last(self, when_s: float, callback: Callable[[float], None]) -> None:
        """The same, after everything else that happens at that instant.

        For what comes from outside (a client leaves, a node dies), so that it meets the same
        state in every world.
        """


class LocalChannel:
    """One end of a pair; what is sent arrives at the other end one way later, in order."""

    def __init__(self, runtime: TimedRuntime, one_way_s: float) -> None:
        self._runtime, self._one_way_s = runtime, one_way_s
        self._on_its_way: deque[bytes] = deque()
        self._inbox: deque[bytes] = deque()
        self._arrived: Event | None = None
        self._other: LocalChannel | None = None
        self._cut = False

    def send(self, message: Message) -> None:
        """Send to the other end."""
        if not self._cut:
            assert self._other is not None
            self._other.deliver(message)

    def cut(self) -> None:
        """Lose everything that this end sends from now on: its role is dead."""
        self._cut = True

    def deliver(self, message: Message) -> None:
        """Take a message in, one way from now."""
        self._on_its_way.append(encode(message))
        if self._one_way_s > 0:
            self._runtime.call_at(self._runtime.now + self._one_way_s, self._arrive)
        else:
            self._arrive(self._runtime.now)

    async def receive(self) -> Message:
        """The next message."""
        while not self._inbox:
            self._arrived = self._runtime.event()
            await self._arrived.wait()
            self._arrived = None
        return decode(self._inbox.popleft())

    def _arrive(self, _: float) -> None:
        # the first that was sent, whichever timer this is: timers of one instant have no order
        self._inbox.append(self._on_its_way.popleft())
        if self._arrived is not None:
            self._arrived.set()


def channel_pair(runtime: TimedRuntime, one_way_s: float) -> tuple[LocalChannel, LocalChannel]:
    """Two connected ends."""
    left, right = LocalChannel(runtime, one_way_s), LocalChannel(runtime, one_way_s)
    left._other, right._other = right, left
    return left, right
