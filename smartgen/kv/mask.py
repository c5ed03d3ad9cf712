"""Which blocks of a request are local: the block-resolution view of a mask."""

import numpy as np
from numpy.typing import NDArray

from smartgen.kv.geometry import Geometry, Int


class BlockMask:
    """Local blocks of one request, [L, M]. Planned blocks count from the start.

    That is safe because a layer's selection waits until that layer's planned blocks have landed.
    """

    def __init__(self, geometry: Geometry, planned: Int, dense_layers: int) -> None:
        blocks, layers = geometry.blocks_per_layer, geometry.num_layers
        self._blocks = blocks
        self.missing: NDArray[np.bool_] = np.ones((layers, blocks), dtype=np.bool_)
        """Whether each block is remote, [L, M]."""
        self.left: Int = np.full(layers, blocks, dtype=np.int64)
        """Remote blocks of each layer, [L]."""
        self._first_sparse = dense_layers * blocks
        self._num_sparse = max(0, layers - dense_layers) * blocks
        self._sparse_landed = 0
        self.num_left = geometry.num_blocks
        """Remote blocks of all layers."""
        self.land(planned)

    @property
    def sparse_ratio(self) -> float:
        """Locally available share of the sparse layers' blocks, r."""
        return self._sparse_landed / self._num_sparse if self._num_sparse else 1.0

    def land(self, blocks: Int) -> None:
        """Blocks (layer * M + block) have become local, each of them once."""
        if not len(blocks):
            return
        flat = self.missing.reshape(-1)
        if not flat[blocks].all():
            raise RuntimeError("a block was delivered twice")
        flat[blocks] = False
        self.left -= np.bincount(blocks // self._blocks, minlength=len(self.left))
        self._sparse_landed += int(np.count_nonzero(blocks >= self._first_sparse))
        self.num_left -= len(blocks)
