"""The KV cache as values: geometry, blocks, and the split of an index. Pure."""

from smartgen.kv.geometry import Geometry
from smartgen.kv.mask import BlockMask
from smartgen.kv.prefix import PrefixCache
from smartgen.kv.split import LOCAL, PADDED, REMOTE, SplitIndex, split_index

__all__ = [
    "LOCAL",
    "PADDED",
    "REMOTE",
    "BlockMask",
    "Geometry",
    "PrefixCache",
    "SplitIndex",
    "split_index",
]
