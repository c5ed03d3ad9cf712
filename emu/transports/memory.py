"""Registered memory, pieces of it, and how many small rows are copied at once."""

from collections.abc import Callable
from secrets import randbelow
from typing import Generic, TypeVar

import numpy as np

from smartgen.emu.transports.protocol import Memory, Region, Segments
from smartgen.errors import SmartGenError, count
from smartgen.kv.geometry import Int

_PLAIN_BYTES = 4 << 10  # rows of this size are copied one by one as fast as by way of a stage

NONE = np.zeros(0, dtype=np.int64)

R = TypeVar("R", bound=Region)


class Regions(Generic[R]):
    """The regions of one device by key; a key is never given twice."""

    def __init__(self) -> None:
        self._of: dict[int, R] = {}
        self._next_key = randbelow(1 << 31)  # so that another device's key is seldom one of ours

    def add(self, num_bytes: int, allocate: Callable[[int, int], R]) -> R:
        """Register what allocate(key, num_bytes) returns."""
        key = self._next_key
        if key >= 1 << 32:
            raise SmartGenError("this device has no keys left; it must be made anew")
        region = allocate(key, count("num_bytes", num_bytes))
        self._next_key += 1
        self._of[key] = region
        return region

    def remove(self, region: Region) -> R:
        """Forget it; SmartGenError if it is not registered here."""
        if self._of.get(region.key) is not region:
            raise SmartGenError(f"region {region.key} must be one that this device has registered")
        return self._of.pop(region.key)

    def find(self, key: int) -> R | None:
        """The region with this key, null if there is none now."""
        return self._of.get(key)

    def all(self) -> list[R]:
        """Those registered now."""
        return list(self._of.values())

    def checked(self, pieces: Segments) -> Segments:
        """A copy that the caller cannot change; SmartGenError if it leaves registered memory."""
        region, offsets, lengths = pieces
        if self._of.get(region.key) is not region:
            raise SmartGenError(f"region {region.key} must be one that this device has registered")
        if len(offsets) != len(lengths):
            raise SmartGenError(f"{len(offsets)} offsets must have as many lengths: {len(lengths)}")
        offsets, lengths = np.array(offsets, np.int64), np.array(lengths, np.int64)
        if not inside(offsets, lengths, len(region.memory)):
            size = len(region.memory)
            raise SmartGenError(f"segments must lie in the {size} bytes of region {region.key}")
        return Segments(region, offsets, lengths)


def inside(offsets: Int, lengths: Int, num_bytes: int) -> bool:
    """Whether all pieces lie in so many bytes; nothing overflows, whatever the numbers."""
    if not len(offsets):
        return True
    if len(offsets) == 1:  # most pushes; plain numbers spare some calls
        length = int(lengths[0])
        return 0 <= length <= num_bytes and 0 <= int(offsets[0]) <= num_bytes - length
    if offsets.min() < 0 or lengths.min() < 0 or lengths.max() > num_bytes:
        return False
    return bool((offsets <= num_bytes - lengths).all())


def equal(lengths: Int) -> int:
    """The length that all have, or -1 if they differ or there are none."""
    if not len(lengths):
        return -1
    first = int(lengths[0])
    return first if len(lengths) == 1 or (lengths == first).all() else -1


def _rows(memory: Memory, num_bytes: int) -> Memory:
    """All rows of so many bytes that memory has, at any offset, as single elements."""
    shape = (len(memory) - num_bytes + 1,)
    return np.ndarray(shape, f"V{num_bytes}", buffer=memory, strides=(1,))


def gather(memory: Memory, offsets: Int, lengths: Int, into: Memory) -> None:
    """Copy pieces of memory, one after the other, to into, which has exactly their size."""
    row = equal(lengths)
    if row == 0:
        return
    if row < 0:
        _one_by_one(memory, offsets, into, _starts(lengths), lengths)
    elif len(memory) % row == 0 and not (offsets % row).any():
        shape = (len(offsets), row)
        np.take(memory.reshape(-1, row), offsets // row, 0, into.reshape(shape), mode="clip")
    else:
        into.view(f"V{row}")[:] = _rows(memory, row)[offsets]


def scatter(memory: Memory, offsets: Int, lengths: Int, source: Memory) -> None:
    """The reverse of gather: where pieces overlap, the last one stays."""
    row = equal(lengths)
    if row > 0:
        _rows(memory, row)[offsets] = source.view(f"V{row}")
    elif row < 0:
        _one_by_one(source, _starts(lengths), memory, offsets, lengths)


def _one_by_one(source: Memory, at: Int, target: Memory, to: Int, lengths: Int) -> None:
    from_, into = source.data, target.data  # views of bytes are cheaper to cut than arrays
    for start, end, size in zip(at.tolist(), to.tolist(), lengths.tolist(), strict=True):
        into[end : end + size] = from_[start : start + size]


def _starts(lengths: Int) -> Int:
    return np.cumsum(lengths) - lengths


def views(memory: Memory, offsets: Int, lengths: Int) -> list[memoryview]:
    """Pieces of memory that are not empty, as buffers."""
    whole = memory.data
    pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
    return [whole[offset : offset + size] for offset, size in pairs if size]


def advance(buffers: list[memoryview], num_bytes: int) -> int:
    """Drop the first so many bytes of buffers; return how many of them lay beyond the last."""
    done = 0
    while done < len(buffers) and num_bytes >= len(buffers[done]):
        num_bytes -= len(buffers[done])
        done += 1
    del buffers[:done]
    if buffers and num_bytes:
        buffers[0] = buffers[0][num_bytes:]
        return 0
    return num_bytes


def move(source: Segments, target: Memory, offsets: Int, stage: Memory) -> None:
    """Copy segments of source to offsets of target, in order; small rows by way of stage."""
    row = equal(source.lengths)
    memory = source.region.memory
    if row == 0:
        return
    if row < 0 or row >= _PLAIN_BYTES:
        _one_by_one(memory, source.offsets, target, offsets, source.lengths)
        return
    step = len(stage) // row
    for first in range(0, len(offsets), step):
        part = slice(first, first + step)
        lengths = source.lengths[part]
        rows = stage[: row * len(lengths)]
        gather(memory, source.offsets[part], lengths, rows)
        scatter(target, offsets[part], lengths, rows)


def aligned(source: Segments, into: Segments) -> tuple[Int, Int, Int]:
    """Cut both into as many pieces of the same lengths: offsets of both, and the lengths.

    into has room for all of source.
    """
    ends, room = np.cumsum(source.lengths), np.cumsum(into.lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.unique(np.concatenate([NONE, ends, room[room < total]]))
    cuts = cuts[cuts > 0]
    starts = np.concatenate([[0], cuts])[:-1].astype(np.int64)
    found = []
    for offsets, lengths, until in ((source.offsets, source.lengths, ends), (*into[1:], room)):
        at = np.searchsorted(until, starts, "right")
        found.append(offsets[at] + starts - (until - lengths)[at])
    return found[0], found[1], cuts - starts


def cut(lengths: Int, most: int) -> tuple[Int, Int, Int]:
    """Cut what is longer than most bytes: each piece's segment, start in it, and length."""
    num_pieces = np.maximum(1, -(-lengths // most))
    of = np.repeat(np.arange(len(lengths)), num_pieces)
    starts = (np.arange(len(of)) - (np.cumsum(num_pieces) - num_pieces)[of]) * most
    return of, starts, np.minimum(most, lengths[of] - starts)
