"""What two ends of shared memory say to each other over a local socket, one packet a message."""

import socket
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import numpy as np

from smartgen.emu.transports.memory import inside
from smartgen.kv.geometry import Int

_LAYOUT = Struct("<BBxxIq")
_MOST_BYTES = 64 << 10
MOST_SEGMENTS = 4000  # of a receive: what one message holds


class Say(IntEnum):
    """What a message is about."""

    GATE = 1  # descriptor: the flags by which the sender of this shuts its memory
    REGION = 2  # value is the key, length its bytes, with a descriptor
    GONE = 3  # value is the key of a region that is one no longer
    ASK = 4  # is there a region with key value
    UNKNOWN = 5  # there is none with key value
    RECEIVE = 6  # posted: value is the key, arrays of offsets and lengths follow
    IMMEDIATE = 7  # value came with a chain of length bytes
    SENT = 8  # a SEND of length bytes was placed
    FAIL = 9  # code is a status


class Message(NamedTuple):
    """What one end says; fd is a descriptor or -1, to be closed by who hears it."""

    say: int
    code: int = 0
    value: int = 0
    length: int = 0
    rest: bytes = b""
    fd: int = -1

    @property
    def pieces(self) -> tuple[Int, Int] | None:
        """Offsets and lengths of a receive; null if they cannot be ones."""
        if len(self.rest) % 16:
            return None
        offsets, lengths = np.frombuffer(self.rest, np.int64).reshape(2, -1)
        return (offsets, lengths) if inside(offsets, lengths, 1 << 48) else None


def tell(to: socket.socket, message: Message) -> None:
    """Send it; OSError as the socket raises it."""
    data = _LAYOUT.pack(message.say, message.code, message.value, message.length)
    socket.send_fds(to, [data, message.rest], [message.fd] if message.fd >= 0 else [])


def hear(from_: socket.socket) -> Message | None:
    """Receive one; null at the end, OSError as the socket raises it. Say 0 is what has no sense."""
    data, fds, _, _ = socket.recv_fds(from_, _MOST_BYTES + _LAYOUT.size, 1)
    fd = fds[0] if fds else -1
    if not data:
        return None
    if len(data) < _LAYOUT.size:
        return Message(0, fd=fd)
    say, code, value, length = _LAYOUT.unpack_from(data)
    return Message(say, code, value, length, data[_LAYOUT.size :], fd)
