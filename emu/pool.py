"""Real bytes: a pool of rows for KV, and a pattern that says what each byte must be.

Entries lie as [layer, token, KV head, row], so that a block of one layer is one
contiguous WRITE wherever its tokens are contiguous.
"""

import math

import numpy as np
from numpy.typing import NDArray

from smartgen.kv import Geometry
from smartgen.kv.geometry import Int

Bytes = NDArray[np.uint8]

_MIX = np.uint64(0x9E3779B97F4A7C15)


def pattern(
    geometry: Geometry, request_id: int, layer: int, tokens: Int, heads: Int | None = None
) -> Bytes:
    """What a model would have computed: bytes that belong to this request, layer, token, head.

    tokens of any shape; the result has two more axes, [heads, row_bytes], or with heads (of the
    shape of tokens) one more, [row_bytes].
    """
    seed = np.uint64(request_id * 1_000_003 + layer * 8_191 + 1)
    token = tokens.astype(np.uint64) * np.uint64(131_071)
    if heads is None:
        token = token[..., None]
        head = np.arange(geometry.num_kv_heads, dtype=np.uint64)
    else:
        head = heads.astype(np.uint64)
    row = (seed + token + head * np.uint64(524_287)) * _MIX
    byte = np.arange(geometry.row_bytes, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    return ((row[..., None] ^ byte) * _MIX >> np.uint64(56)).astype(np.uint8)


def metadata_token_bytes(geometry: Geometry, metadata_ratio: float) -> int:
    """Selector metadata of one token in one layer, in whole bytes."""
    return math.ceil(round(metadata_ratio * geometry.entry_bytes, 6))


def metadata_pattern(request_id: int, layer: int, tokens: Int, num_bytes: int) -> Bytes:
    """Bytes that stand for metadata where no selector computes any, [tokens, num_bytes]."""
    seed = np.uint64(request_id * 1_000_003 + layer * 8_191 + 3)
    token = (seed + tokens.astype(np.uint64) * np.uint64(131_071)) * _MIX
    byte = np.arange(num_bytes, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    return ((token[:, None] ^ byte) * _MIX >> np.uint64(56)).astype(np.uint8)


class Pool:
    """Memory for a number of tokens in all layers; pages are rows of it, reused soon after.

    Memory of that shape may be given.
    """

    def __init__(self, geometry: Geometry, num_tokens: int, entries: Bytes | None = None) -> None:
        shape = (geometry.num_layers, num_tokens, geometry.num_kv_heads, geometry.row_bytes)
        self.entries: Bytes = np.zeros(shape, dtype=np.uint8) if entries is None else entries
        self._free = np.arange(num_tokens, dtype=np.int64)

    def take(self, num_tokens: int) -> Int:
        """Pages for so many tokens: row numbers, in order of the tokens."""
        if num_tokens > len(self._free):
            raise RuntimeError(f"the pool has {len(self._free)} rows left, not {num_tokens}")
        rows, self._free = self._free[:num_tokens], self._free[num_tokens:]
        return rows

    def give(self, rows: Int) -> None:
        """Give pages back; they are the first to be used again."""
        self._free = np.concatenate([rows, self._free])
