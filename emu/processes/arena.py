"""Where things lie in registered memory, at both ends: one region each, the arena.

So one chain of WRITEs can carry a block, its mask values, the next block, and so on. A decoding
process's arena: entries [L, tokens, KV heads, row], the mask [L, tokens], metadata [L, tokens,
bytes of one token], then buffers for rows that are gathered. A prefill process's: the same without
buffers, its mask being what it writes: every byte says local.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartgen.emu.pool import Bytes
from smartgen.emu.transports.protocol import Memory
from smartgen.kv import LOCAL, Geometry
from smartgen.kv.geometry import Int

ALIGNMENT = 64


@dataclass(frozen=True)
class Layout:
    """Offsets within an arena that has room for so many tokens; the same at both ends, but for it.

    metadata_bytes: of one token in one layer. gather_bytes: for rows that are gathered.
    """

    geometry: Geometry
    tokens: int
    metadata_bytes: int
    gather_bytes: int = 0

    @property
    def mask_at(self) -> int:
        """Where the mask begins."""
        return _aligned(self.geometry.num_layers * self.tokens * self.geometry.entry_bytes)

    @property
    def metadata_at(self) -> int:
        """Where metadata begin."""
        return _aligned(self.mask_at + self.geometry.num_layers * self.tokens)

    @property
    def gather_at(self) -> int:
        """Where buffers for gathered rows begin."""
        size = self.geometry.num_layers * self.tokens * self.metadata_bytes
        return _aligned(self.metadata_at + size)

    @property
    def num_bytes(self) -> int:
        """The whole arena."""
        return max(1, self.gather_at + self.gather_bytes)

    def entries(self, memory: Memory) -> Memory:
        """[L, tokens, KV heads, row_bytes]."""
        shape = (self.geometry.num_layers, self.tokens, self.geometry.num_kv_heads)
        return self._view(memory, 0, (*shape, self.geometry.row_bytes))

    def mask(self, memory: Memory) -> Memory:
        """[L, tokens]."""
        return self._view(memory, self.mask_at, (self.geometry.num_layers, self.tokens))

    def metadata(self, memory: Memory) -> Memory:
        """[L, tokens, metadata_bytes]."""
        shape = (self.geometry.num_layers, self.tokens, self.metadata_bytes)
        return self._view(memory, self.metadata_at, shape)

    def _view(self, memory: Memory, at: int, shape: tuple[int, ...]) -> Memory:
        size = int(np.prod(shape))
        return memory[at : at + size].reshape(shape)

    def at_entry(self, layers: Int, rows: Int) -> Int:
        """Where entries begin that lie in these rows of the pool."""
        return (layers * self.tokens + rows) * self.geometry.entry_bytes

    def at_mask(self, layers: Int, rows: Int) -> Int:
        """Where their mask values do."""
        return self.mask_at + layers * self.tokens + rows

    def at_metadata(self, layer: int, rows: Int) -> Int:
        """Where their metadata do."""
        return self.metadata_at + (layer * self.tokens + rows) * self.metadata_bytes


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT


def extents_of(rows: Int) -> tuple[tuple[int, int], ...]:
    """Runs of consecutive rows: first row and length of each."""
    if not len(rows):
        return ()
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1])
    lengths = np.diff(np.concatenate([firsts, [len(rows)]]))
    return tuple(zip(rows[firsts].tolist(), lengths.tolist(), strict=True))


def rows_of(extents: Sequence[tuple[int, int]]) -> Int:
    """Rows of runs, one after the other."""
    return np.concatenate([np.arange(first, first + length) for first, length in extents])


@dataclass(frozen=True)
class Chain:
    """WRITEs in order: from bytes of the local arena to bytes of the remote one."""

    sources: Int
    targets: Int
    lengths: Int

    def parts(self, most: int) -> list["Chain"]:
        """The same in chains of at most so many WRITEs; one empty chain if there is nothing."""
        starts = range(0, max(1, len(self.lengths)), most)
        return [
            Chain(*(x[i : i + most] for x in (self.sources, self.targets, self.lengths)))
            for i in starts
        ]


@dataclass(frozen=True)
class Road:
    """From a request's pages at a prefill process to its pages at the decoding process.

    here, there: the layouts at both ends; first_row: where the request lies here, in one run;
    rows: where it lies there, [tokens].
    """

    here: Layout
    there: Layout
    first_row: int
    rows: Int

    def blocks(self, layers: Int, firsts: Int, stops: Int) -> Chain:
        """Blocks, tokens [firsts, stops) of their layers, each followed by its mask values."""
        layers, firsts, stops = self._cut(layers, firsts, stops)
        sources = np.empty(2 * len(layers), dtype=np.int64)
        targets, lengths = sources.copy(), sources.copy()
        at_here, at_there = self.first_row + firsts, self.rows[firsts]
        sources[0::2] = self.here.at_entry(layers, at_here)
        sources[1::2] = self.here.at_mask(layers, at_here)
        targets[0::2] = self.there.at_entry(layers, at_there)
        targets[1::2] = self.there.at_mask(layers, at_there)
        lengths[1::2] = stops - firsts
        lengths[0::2] = lengths[1::2] * self.here.geometry.entry_bytes
        return Chain(sources, targets, lengths)

    def metadata(self, layer: int, first: int, stop: int) -> Chain:
        """A layer's metadata of tokens [first, stop)."""
        if first >= stop or not self.here.metadata_bytes:
            return Chain(*(np.empty(0, dtype=np.int64) for _ in range(3)))
        _, firsts, stops = self._cut(np.array([layer]), np.array([first]), np.array([stop]))
        return Chain(
            self.here.at_metadata(layer, self.first_row + firsts),
            self.there.at_metadata(layer, self.rows[firsts]),
            (stops - firsts) * self.here.metadata_bytes,
        )

    def _cut(self, layers: Int, firsts: Int, stops: Int) -> tuple[Int, Int, Int]:
        """Leave out what is empty, and cut what crosses from one run of rows into another."""
        full = stops > firsts
        layers, firsts, stops = layers[full], firsts[full], stops[full]
        breaks = np.flatnonzero(np.diff(self.rows) != 1) + 1
        left, right = np.searchsorted(breaks, firsts, "right"), np.searchsorted(breaks, stops)
        pieces = 1 + np.maximum(0, right - left)
        if not len(pieces) or pieces.max() == 1:
            return layers, firsts, stops
        cut = [
            [first, *breaks[i:j].tolist(), stop]
            for first, stop, i, j in zip(firsts, stops, left, right, strict=True)
        ]
        return (
            np.repeat(layers, pieces),
            np.array([edge for edges in cut for edge in edges[:-1]]),
            np.array([edge for edges in cut for edge in edges[1:]]),
        )


def join(*chains: Chain) -> Chain:
    """One chain after the other."""
    return Chain(
        *(
            np.concatenate([getattr(chain, name) for chain in chains])
            for name in ("sources", "targets", "lengths")
        )
    )


def all_local(layout: Layout, memory: Memory) -> None:
    """Make a prefill process's mask, the source of every mask WRITE."""
    layout.mask(memory)[:] = LOCAL


def checksums_of(
    entries: Bytes, layers: Int, firsts: Int, stops: Int, rows: Int | None = None
) -> bytes:
    """CRC-32 of every block's bytes, as uint32; rows says where tokens lie, if not in order."""
    sums = []
    for layer, first, stop in zip(layers, firsts, stops, strict=True):
        block = entries[layer, first:stop] if rows is None else entries[layer, rows[first:stop]]
        sums.append(zlib.crc32(block.tobytes()))
    return np.array(sums, dtype=np.uint32).tobytes()
