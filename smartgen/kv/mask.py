"""Which blocks of a request are local: the block-resolution view of a mask."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from smartgen.kv.geometry import Geometry, Int


class BlockMask:
    """Local blocks of one request, [L, M]. Planned blocks count from the start.

    That is safe because a layer's selection waits until that layer's planned blocks have landed.
    """

    def __init__(self, geometry: Geometry, remote: Int, dense_layers: int) -> None:
        """Start with these blocks remote, each named once."""
        blocks, layers = geometry.blocks_per_layer, geometry.num_layers
        self._blocks = blocks
        self.missing: NDArray[np.bool_] = np.zeros((layers, blocks), dtype=np.bool_)
        """Whether each block is remote, [L, M]."""
        self.missing.reshape(-1)[remote] = True
        self.left: Int = self.missing.sum(axis=1)
        """Remote blocks of each layer, [L]."""
        self._first_sparse = dense_layers * blocks
        self._num_sparse = max(0, layers - dense_layers) * blocks
        self._sparse_left = int(self.left[dense_layers:].sum())
        self.num_left = len(remote)
        """Remote blocks of all layers."""

    @property
    def sparse_ratio(self) -> float:
        """Locally available share of the sparse layers' blocks, r."""
        if not self._num_sparse:
            return 1.0
        return (self._num_sparse - self._sparse_left) / self._num_sparse

    def land(self, blocks: Int) -> None:
        """Blocks (layer * M + block) have become local, each of them once."""
        if not len(blocks):
            return
        flat = self.missing.reshape(-1)
        if not flat[blocks].all():
            raise RuntimeError("a block was delivered twice")
        flat[blocks] = False
        self.left -= np.bincount(blocks // self._blocks, minlength=len(self.left))
        self._sparse_left -= int(np.count_nonzero(blocks >= self._first_sparse))
        self.num_left -= len(blocks)

    def unland(self, blocks: Int) -> None:
        """Take back what was told to land."""
        flat = self.missing.reshape(-1)
        flat[blocks] = True
        self.left += np.bincount(blocks // self._blocks, minlength=len(self.left))
        self._sparse_left += int(np.count_nonzero(blocks >= self._first_sparse))
        self.num_left += len(blocks)

    @property
    def lacks_first_layer(self) -> bool:
        """Whether blocks of layer 0 are remote."""
        return bool(self.left[0])


class CountMask:
    """How many blocks of one request are local, where it does not matter which.

    For plans that send whole what dense layers have, and then the same share of every other layer.
    """

    def __init__(self, geometry: Geometry, remote: Int, dense_layers: int) -> None:
        blocks = geometry.blocks_per_layer
        self._num_sparse = max(0, geometry.num_layers - dense_layers) * blocks
        self.num_left = len(remote)
        """Remote blocks of all layers."""
        self._first_layer_left = bool((remote < blocks).any())
        if (remote < dense_layers * blocks).any():
            raise RuntimeError("blocks of a dense layer are remote; they must be planned")

    @property
    def sparse_ratio(self) -> float:
        """Locally available share of the sparse layers' blocks, r."""
        if not self._num_sparse:
            return 1.0
        return (self._num_sparse - self.num_left) / self._num_sparse

    def land(self, blocks: Int) -> None:
        """So many blocks have become local."""
        self.num_left -= len(blocks)
        if self.num_left < 0:
            raise RuntimeError("a block was delivered twice")

    def unland(self, blocks: Int) -> None:
        """Take back what was told to land."""
        self.num_left += len(blocks)

    @property
    def lacks_first_layer(self) -> bool:
        """Whether blocks of layer 0 are remote: until all are local, where none can be told."""
        return self._first_layer_left and self.num_left > 0


Mask: TypeAlias = BlockMask | CountMask
