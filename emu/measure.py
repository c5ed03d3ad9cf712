"""Times what a host and a network do on this very machine; what they make of it is for calibrate.

There is no GPU in it: the device's buffer is host memory, apart from the pool.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smartgen.emu.loopback import call_seconds, echoes, writes
from smartgen.errors import SmartGenError, count

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds that the same amount of work (bytes, pairs, messages) took, time after time."""

    amount: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is moved at a time, and how many times.

    The pool is larger than usual caches. A row is K and V of one token and head (128 numbers of 16
    bits each), a layer is about what 8,000 tokens have in 8 heads. num_pairs: how many pairs of
    WRITEs are posted at a time, in ascending order.
    """

    row_bytes: int = 512
    gathered_rows: int = 32_768
    layer_bytes: int = 32 * 2**20
    chunk_bytes: int = 2**20
    pool_layers: int = 8
    copies: int = 100
    streams: int = 60
    messages: int = 5_000
    num_pairs: tuple[int, ...] = (2_000, 4_000, 6_000, 8_000, 10_000)
    pair_repeats: int = 60

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name != "num_pairs":
                count(f"sizes.{name}", getattr(self, name))
        if self.layer_bytes % self.row_bytes or self.layer_bytes % self.chunk_bytes:
            raise SmartGenError(
                f"sizes.layer_bytes={self.layer_bytes} must be whole rows of {self.row_bytes} and "
                f"whole chunks of {self.chunk_bytes} bytes"
            )
        if self.gathered_rows * self.row_bytes > self.layer_bytes:
            raise SmartGenError(
                f"sizes.gathered_rows={self.gathered_rows} must be at most "
                f"{self.layer_bytes // self.row_bytes}, the rows of a layer"
            )
        if len(self.num_pairs) < 2 or sorted(set(self.num_pairs)) != list(self.num_pairs):
            raise SmartGenError(f"sizes.num_pairs={self.num_pairs} must ascend, two or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was timed on one machine on one day.

    gather: scattered rows of the pool into one buffer. load: the same, then a copy to the device's
    buffer. dense_load: a layer of the pool to the device's buffer at once. offload: the other way,
    in chunks. The others are over loopback to another process. round_trip: a byte there and back,
    by sockets that block. call: a control message there and back, through asyncio at both ends. By
    the emulator's tcp: stream, one WRITE of a layer; acknowledged, a chain of no WRITEs; pairs,
    chains of so many pairs of small WRITEs.
    """

    machine: str
    day: str
    sizes: Sizes
    gather: Timings
    load: Timings
    dense_load: Timings
    offload: Timings
    stream: Timings
    round_trip: Timings
    acknowledged: Timings
    call: Timings
    pairs: tuple[Timings, ...]


def measure(sizes: Sizes, tell: Tell) -> Measured:
    """Measure everything, which takes some seconds; tell is told what is measured now."""
    gather, load, dense_load, offload = _memory(sizes, tell)
    tell("control messages")
    called = call_seconds(sizes.messages, num_before=1 + sizes.messages // 10)
    round_trip, stream, acknowledged, *pairs = _loopback(sizes, tell)
    return Measured(
        machine=_machine(),
        day=date.today().isoformat(),
        sizes=sizes,
        gather=gather,
        load=load,
        dense_load=dense_load,
        offload=offload,
        stream=stream,
        round_trip=round_trip,
        acknowledged=acknowledged,
        call=Timings(amount=1, seconds=tuple(called)),
        pairs=tuple(pairs),
    )


def _in_turn(
    acts: Sequence[tuple[int, Callable[[], None]]], times: int, tell: Tell
) -> list[Timings]:
    """Time acts in turn, so that what else the machine does meets them alike.

    Each has its amount of work. The first turn does not count.
    """
    seconds: list[list[float]] = [[] for _ in acts]
    for turn in range(times + 1):
        tell(f"turn {turn} of {times}")
        for (_, act), kept in zip(acts, seconds, strict=True):
            begun_s = time.perf_counter()
            act()
            kept.append(time.perf_counter() - begun_s)
    return [
        Timings(amount=amount, seconds=tuple(kept[1:]))
        for (amount, _), kept in zip(acts, seconds, strict=True)
    ]


def _memory(sizes: Sizes, tell: Tell) -> list[Timings]:
    """Gather, gather and copy, copy to the device's buffer, copy from it."""
    layer_rows = sizes.layer_bytes // sizes.row_bytes
    pool = np.ones((sizes.pool_layers, layer_rows, sizes.row_bytes), dtype=np.uint8)
    rows = pool.reshape(-1, sizes.row_bytes)
    gathered = np.ones((sizes.gathered_rows, sizes.row_bytes), dtype=np.uint8)
    device = np.ones((layer_rows, sizes.row_bytes), dtype=np.uint8)
    scattered = np.random.default_rng(0).permutation(len(rows))
    choices = len(rows) // sizes.gathered_rows
    chosen = cycle(scattered[: choices * sizes.gathered_rows].reshape(choices, -1))
    layers = cycle(pool)  # what is moved next is in no cache any more

    def gather() -> None:
        np.take(rows, next(chosen), axis=0, out=gathered, mode="clip")

    def load() -> None:
        gather()
        np.copyto(device[: sizes.gathered_rows], gathered)

    def dense_load() -> None:
        np.copyto(device, next(layers))

    def offload() -> None:
        _copy_chunks(device.reshape(-1), next(layers).reshape(-1), sizes.chunk_bytes)

    few, many = gathered.nbytes, device.nbytes
    acts = ((few, gather), (few, load), (many, dense_load), (many, offload))
    return _in_turn(acts, sizes.copies, lambda what: tell(f"host memory, {what}"))


def _copy_chunks(source: NDArray[np.uint8], target: NDArray[np.uint8], num_bytes: int) -> None:
    for start in range(0, len(source), num_bytes):
        target[start : start + num_bytes] = source[start : start + num_bytes]


def _loopback(sizes: Sizes, tell: Tell) -> list[Timings]:
    """Round trips, bytes, empty chains, then pairs of small WRITEs by their number."""
    with echoes() as echo:
        round_trip = _in_turn([(1, echo)], sizes.messages, lambda what: tell(f"echoes, {what}"))
    with writes(sizes.layer_bytes, sizes.num_pairs[-1]) as other:
        alone = [(sizes.layer_bytes, other.stream)], [(1, other.nothing)]
        chains = [(number, partial(other.pairs, number)) for number in sizes.num_pairs]
        return [
            *round_trip,
            *_in_turn(alone[0], sizes.streams, lambda what: tell(f"loopback, {what}")),
            *_in_turn(alone[1], sizes.messages, lambda what: tell(f"empty chains, {what}")),
            *_in_turn(chains, sizes.pair_repeats, lambda what: tell(f"small WRITEs, {what}")),
        ]


def _machine() -> str:
    """What to call its processors."""
    name = platform.machine()
    told = Path("/proc/cpuinfo")
    if told.exists():
        lines = told.read_text(encoding="utf-8", errors="replace").splitlines()
        names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
        name = next(names, name)
    return f"{' '.join(name.split())}, {os.cpu_count()} cores"
