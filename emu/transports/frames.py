"""What goes over a stream: frames of a header, arrays and bytes, and where such bytes belong.

A WRITE frame is a part of a chain: where the segments go and, after that, what they hold. What a
peer says is believed only after it was checked, and never makes this end allocate memory.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import numpy as np

from smartgen.emu.transports.memory import NONE, advance, equal, scatter, views
from smartgen.emu.transports.protocol import Memory, Region, Segments, Status
from smartgen.kv.geometry import Int

_LAYOUT = Struct("<BBxxIIIq")
HEADER_BYTES = _LAYOUT.size
MOST_SEGMENTS = 4096  # of one frame
ARRAY_BYTES = 2 * 8 * MOST_SEGMENTS

LARGE_BYTES = 2 << 10
"""Segments of this mean size or more move straight between socket and memory, others by staging."""

_HUGE_BYTES = 64 << 10  # a single segment of this size is not staged, whatever the others are

STATUSES = tuple(Status)


class Kind(IntEnum):
    """What a frame is."""

    WRITE = 1  # part of a chain: key, number, length (of all segments, or -1), last
    IMMEDIATE = 2  # ends a chain, takes a receive
    SEND = 3  # length bytes, takes a receive
    ACK = 4  # number requests were executed, credits receives were posted
    FAIL = 5  # the other end has failed: status


class Header(NamedTuple):
    """The start of a frame; which fields mean something depends on the kind.

    code is a status, or of a WRITE whether the chain ends here without an immediate.
    value is a key, an immediate or credits.
    """

    kind: int
    code: int = 0
    value: int = 0
    number: int = 0
    length: int = 0

    def into(self, buffer: bytearray, at: int) -> int:
        """Write it at a place; return where it ends."""
        _LAYOUT.pack_into(buffer, at, self.kind, self.code, self.value, self.number, 0, self.length)
        return at + HEADER_BYTES

    @property
    def array_bytes(self) -> int:
        """How many bytes of offsets and lengths follow."""
        if self.kind != Kind.WRITE:
            return 0
        return 8 * self.number * (2 if self.length < 0 else 1)


def header_from(buffer: bytearray, at: int) -> Header | None:
    """The header at a place; null if it cannot be one."""
    kind, code, value, count, _, length = _LAYOUT.unpack_from(buffer, at)
    known = Kind.WRITE <= kind <= Kind.FAIL
    sized = count <= MOST_SEGMENTS if kind == Kind.WRITE else length >= 0
    if not known or not sized:
        return None
    return Header(kind, code, value, count, length)


def arrays_into(offsets: Int, lengths: Int, buffer: bytearray, at: int) -> tuple[int, int]:
    """Write the arrays of a WRITE at a place; return where they end and the header's length."""
    row = equal(lengths)
    for array in (offsets,) if row >= 0 else (offsets, lengths):
        end = at + array.nbytes
        buffer[at:end] = array.astype("<i8", copy=False).data.cast("B")
        at = end
    return at, row


def arrays_from(header: Header, buffer: bytearray, at: int) -> tuple[Int, Int]:
    """The offsets and lengths that follow a WRITE's header; they are copies."""
    count = header.number
    offsets = np.frombuffer(buffer, "<i8", count, at).astype(np.int64)
    if header.length >= 0:
        return offsets, np.full(count, header.length, np.int64)
    return offsets, np.frombuffer(buffer, "<i8", count, at + 8 * count).astype(np.int64)


def trimmed(pieces: Segments, num_bytes: int) -> Segments:
    """The first so many bytes of pieces."""
    ends = np.cumsum(pieces.lengths)
    lengths = np.clip(num_bytes - (ends - pieces.lengths), 0, pieces.lengths)
    return Segments(pieces.region, pieces.offsets, lengths)


def staged(lengths: Int) -> bool:
    """Whether segments are small enough that copying them is faster than a buffer for each."""
    if not len(lengths):
        return True
    return bool(lengths.sum() < LARGE_BYTES * len(lengths) and lengths.max() < _HUGE_BYTES)


class Sink:
    """Where the bytes of a frame belong: segments that were checked, and how far they are filled.

    direct has the buffers that a socket may fill by itself; it is empty where bytes are staged.
    """

    def __init__(self, pieces: Segments) -> None:
        self.region: Region = pieces.region
        self._memory: Memory = pieces.region.memory
        self._offsets, self._lengths = pieces.offsets, pieces.lengths
        self._ends = NONE
        self._num_full = 0
        self.direct: list[memoryview] = []
        self._staged = staged(pieces.lengths)
        if self._staged:
            self._ends = np.cumsum(pieces.lengths)
        else:
            self.direct = views(self._memory, pieces.offsets, pieces.lengths)

    @property
    def full(self) -> bool:
        """Whether all bytes are where they belong."""
        return self._num_full == len(self._ends) if self._staged else not self.direct

    def feed(self, source: Memory) -> int:
        """Place what source begins with; return how many of its bytes were taken.

        Of staged segments only whole ones are taken.
        """
        if self._staged:
            return self._feed_rows(source)
        taken = 0
        while self.direct and taken < len(source):
            size = min(len(self.direct[0]), len(source) - taken)
            self.direct[0][:size] = source[taken : taken + size].data
            taken += size
            advance(self.direct, size)
        return taken

    def took(self, num_bytes: int) -> int:
        """So many bytes were put into direct; return how many of them lay beyond it."""
        return advance(self.direct, num_bytes)

    def _feed_rows(self, source: Memory) -> int:
        first = self._num_full
        begun = int(self._ends[first - 1]) if first else 0
        last = int(np.searchsorted(self._ends, begun + len(source), "right"))
        if last == first:
            return 0
        taken = int(self._ends[last - 1]) - begun
        part = slice(first, last)
        scatter(self._memory, self._offsets[part], self._lengths[part], source[:taken])
        self._num_full = last
        return taken
