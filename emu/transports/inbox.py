"""What has arrived on a stream and was not understood yet."""

import socket

import numpy as np

from smartgen.emu.transports.frames import Sink
from smartgen.emu.transports.protocol import Memory

_BYTES = 1 << 20
_AHEAD_BYTES = 16 << 10  # read beyond a large frame: enough for a header and what is small
_MOST_BUFFERS = 1000  # IOV_MAX is 1024


class Inbox:
    """A buffer; bytes from start on are those that were not taken."""

    def __init__(self) -> None:
        self.buffer = bytearray(_BYTES)
        self.start = 0
        self._array: Memory = np.frombuffer(self.buffer, np.uint8)
        self._end = 0
        self._ahead = _AHEAD_BYTES

    @property
    def num_bytes(self) -> int:
        """How many there are."""
        return self._end - self.start

    def clear(self) -> None:
        """Forget them."""
        self.start = self._end = 0

    def feed(self, sink: Sink) -> None:
        """Let a sink take what belongs to it."""
        self.start += sink.feed(self._array[self.start : self._end])

    def read(self, from_: socket.socket, sink: Sink | None) -> int:
        """Read once, past the buffer as far as the sink takes bytes directly.

        Return how many bytes came, 0 at the end; OSError as the socket raises it.
        """
        direct = sink.direct if sink is not None else []
        self._make_room()
        if not direct:
            until = min(_BYTES, self._end + self._ahead)
            num_read = from_.recv_into(memoryview(self.buffer)[self._end : until])
            self._end += num_read
            self._ahead = _BYTES if self._end == until else _AHEAD_BYTES
            return num_read
        assert sink is not None
        self._ahead = _AHEAD_BYTES
        tail = memoryview(self.buffer)[self._end : self._end + _AHEAD_BYTES]
        num_read = from_.recvmsg_into([*direct[:_MOST_BUFFERS], tail])[0]
        self._end += sink.took(num_read)
        return num_read

    def _make_room(self) -> None:
        if self.start == self._end:
            self.start = self._end = 0
        elif self.start > _BYTES // 2 or self._end + _AHEAD_BYTES > _BYTES:
            left = self._end - self.start
            self.buffer[:left] = self.buffer[self.start : self._end]
            self.start, self._end = 0, left
