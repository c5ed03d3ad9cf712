"""The shape of a KV cache: how many bytes an entry has, and which tokens a block holds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import count

Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The KV cache of one model, cut into blocks.

    An entry is K and V of one token in one layer, all KV heads. Each layer's entries are cut
    into ``blocks_per_layer`` (M) blocks of consecutive tokens, whatever the prompt's length:
    blocks are relative positions, so one profile serves every length of its range. Where the
    length does not divide, sizes differ by one; where it is shorter than M, some blocks are empty.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int = 2
    blocks_per_layer: int = 1000

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "dtype_bytes", "blocks_per_layer"):
            count(name, getattr(self, name))

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K and V in one layer for one KV head: what a fetched row is."""
        return 2 * self.head_dim * self.dtype_bytes

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry: one token in one layer, all KV heads."""
        return self.num_kv_heads * self.row_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of one request over all layers, L * M."""
        return self.num_layers * self.blocks_per_layer

    def bounds(self, num_tokens: int) -> Int:
        """First token of every block and, last, num_tokens: block m is [bounds[m], bounds[m+1])."""
        edges: Int = np.arange(self.blocks_per_layer + 1, dtype=np.int64)
        return edges * num_tokens // self.blocks_per_layer

    def block_entries(self, num_tokens: int) -> Int:
        """Entries of every block of one layer, shape [M]; they add up to num_tokens."""
        return np.diff(self.bounds(num_tokens))

    def is_held(self, num_tokens: int, held_tokens: int) -> NDArray[np.bool_]:
        """Whether each block lies whole within the first held_tokens of a prompt, [L * M]."""
        return np.tile(self.bounds(num_tokens)[1:] <= held_tokens, self.num_layers)
