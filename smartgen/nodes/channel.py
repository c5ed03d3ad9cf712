"""A channel within one process. It serialises messages: nothing crosses by reference."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from smartgen.engine.messages import Message, decode, encode
from smartgen.engine.protocols import Runtime


class TimedRuntime(Runtime, Protocol):
    """A runtime whose clock nodes and channels may use; the engine may not."""

    @property
    def now(self) -> float:
        """Seconds since the run's start."""

    def call_at(self, when_s: float, callback: Callable[[float], None]) -> None:
        """Call back with when_s once that time has come."""

    def call_soon(self, callback: Callable[[float], None]) -> None:
        """Call back with the present time, at this instant, after what is running now."""

    def call_last(self, when_s: float, callback: Callable[[float], None]) -> None:
        """The same, after everything else that happens at that instant.

        For what comes from outside (a client leaves, a node dies), so that it meets the same
        state in every world.
        """


class LocalChannel:
    """One end of a pair; what is sent is heard at the other end one way later, in order."""

    def __init__(self, runtime: TimedRuntime, one_way_s: float) -> None:
        self._runtime, self._one_way_s = runtime, one_way_s
        self._on_its_way: deque[bytes] = deque()
        self._hear: Callable[[Message], None] | None = None
        self._other: LocalChannel | None = None

    def send(self, message: Message) -> None:
        """Send to the other end."""
        if self._other is not None:
            self._other.deliver(message)

    def listen(self, hear: Callable[[Message], None]) -> None:
        """Have every message heard from now on, each after its sender's present act."""
        self._hear = hear

    def cut(self) -> None:
        """Send and hear nothing any more: the role at this end is dead."""
        self._other, self._hear = None, None

    def deliver(self, message: Message) -> None:
        """Take a message in, one way from now."""
        self._on_its_way.append(encode(message))
        if self._one_way_s > 0:
            self._runtime.call_at(self._runtime.now + self._one_way_s, self._arrive)
        else:
            self._runtime.call_soon(self._arrive)

    def _arrive(self, _: float) -> None:
        # the first that was sent, whichever timer this is: timers of one instant have no order
        message = decode(self._on_its_way.popleft())
        if self._hear is not None:
            self._hear(message)


def channel_pair(
    runtime: TimedRuntime, one_way_s: float, kind: type[LocalChannel] = LocalChannel
) -> tuple[LocalChannel, LocalChannel]:
    """Two connected ends."""
    left, right = kind(runtime, one_way_s), kind(runtime, one_way_s)
    left._other, right._other = right, left
    return left, right
