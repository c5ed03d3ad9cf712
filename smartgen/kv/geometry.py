"""The shape of a KV cache: how many bytes an entry has, and which tokens a block holds."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import count, truth

Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The KV cache of one model, cut into blocks.

    An entry is what attention keeps of one token in one layer: a row of ``row_values`` values for
    each KV head (K and V; of latent attention one row for all heads). Each layer's entries are cut
    into ``blocks_per_layer`` (M) blocks of consecutive tokens, whatever the prompt's length:
    blocks are relative positions, so one profile serves every length of its range. Where the
    length does not divide, sizes differ by one; where it is shorter than M, some blocks are empty.

    ``windows`` has one value a layer: how many last tokens its attention reaches, null for all.
    Under ``window_only`` a layer caches no more than these, and its blocks are cut from them.

    Arrays that methods return may be shared: they are read-only.
    """

    num_layers: int
    num_kv_heads: int
    row_values: int
    dtype_bytes: int = 2
    blocks_per_layer: int = 1000
    windows: tuple[int | None, ...] | None = None
    window_only: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "row_values", "dtype_bytes", "blocks_per_layer"):
            count(name, getattr(self, name))
        truth("window_only", self.window_only)
        if self.windows is not None and len(self.windows) != self.num_layers:
            raise ValueError(f"{len(self.windows)} windows for {self.num_layers} layers")

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in one layer for one KV head: what a fetched row is."""
        return self.row_values * self.dtype_bytes

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry: one token in one layer, all KV heads."""
        return self.num_kv_heads * self.row_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of one request over all layers, L * M."""
        return self.num_layers * self.blocks_per_layer

    def reach(self, num_tokens: int) -> Int:
        """Tokens that each layer's attention reaches, [L]: the last ones, as many as its window."""
        if self.windows is None:
            return np.full(self.num_layers, num_tokens, dtype=np.int64)
        return np.minimum(num_tokens, _limits(self.windows))

    def layer_tokens(self, num_tokens: int) -> Int:
        """Entries that each layer caches, [L]: the last ones."""
        if self.window_only:
            return self.reach(num_tokens)
        return np.full(self.num_layers, num_tokens, dtype=np.int64)

    def entries(self, num_tokens: int) -> int:
        """Entries cached in all layers together."""
        return int(self.layer_tokens(num_tokens).sum())

    def bounds(self, num_tokens: int) -> Int:
        """First token of every block and, last, num_tokens, [L, M + 1].

        Block m of layer l is [bounds[l, m], bounds[l, m + 1]).
        """
        return _bounds(self, num_tokens)

    def is_held(self, num_tokens: int, held_tokens: int) -> NDArray[np.bool_]:
        """Whether each block lies whole within the first held_tokens of a prompt, [L * M].

        What a layer with a window caches of a prompt is its end, of no use to a longer one.
        """
        held = self.bounds(num_tokens)[:, 1:] <= held_tokens
        if self.window_only and self.windows is not None:
            held = held & np.array([[window is None] for window in self.windows])
        return np.reshape(held, -1)

    def sizes(self, num_tokens: int) -> Int:
        """Entries of every block by its id (layer * M + block), [L * M]; they add up to entries."""
        return _sizes(self, num_tokens)

    def reached_sizes(self, num_tokens: int) -> Int:
        """Entries of every block that attention reaches, [L * M]."""
        return _reached_sizes(self, num_tokens)


@lru_cache(maxsize=64)
def _limits(windows: tuple[int | None, ...]) -> Int:
    return _frozen([np.iinfo(np.int64).max if window is None else window for window in windows])


@lru_cache(maxsize=32)
def _bounds(geometry: Geometry, num_tokens: int) -> Int:
    blocks = geometry.blocks_per_layer
    edges = np.arange(blocks + 1, dtype=np.int64)
    if not geometry.window_only:
        return np.broadcast_to(edges * num_tokens // blocks, (geometry.num_layers, blocks + 1))
    kept = geometry.layer_tokens(num_tokens)[:, None]
    return _frozen(num_tokens - kept + edges * kept // blocks)


@lru_cache(maxsize=32)
def _sizes(geometry: Geometry, num_tokens: int) -> Int:
    if geometry.window_only:
        return _frozen(np.diff(_bounds(geometry, num_tokens), axis=1).reshape(-1))
    return _frozen(np.tile(np.diff(_bounds(geometry, num_tokens)[0]), geometry.num_layers))


@lru_cache(maxsize=32)
def _reached_sizes(geometry: Geometry, num_tokens: int) -> Int:
    if geometry.windows is None or geometry.window_only:
        return _sizes(geometry, num_tokens)
    first = num_tokens - geometry.reach(num_tokens)
    return _frozen(
        np.diff(np.maximum(_bounds(geometry, num_tokens), first[:, None]), axis=1).reshape(-1)
    )


def _frozen(values: object) -> Int:
    array = np.asarray(values, dtype=np.int64)
    array.setflags(write=False)
    return array
