"""What a selector selects, where no model runs: a closed law and a drawn block model. Pure."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from smartgen.kv import BlockMask
from smartgen.selection.blocks import BlockDraw, BlockSelection
from smartgen.selection.exponent import ExponentDraw, ExponentSelection
from smartgen.selection.selector import Selector


class Draw(Protocol):
    """The selections of one request."""

    @property
    def ratios(self) -> NDArray[np.float64] | None:
        """Selected shares of cached entries, [L], where selected_at is just that; else null."""

    def selected_at(self, generated: int) -> NDArray[np.float64]:
        """Entries each row selects in every layer, [L], with so many generated ones cached."""

    def remote(self, step: int, layer: int, mask: BlockMask) -> float:
        """Entries to fetch in a layer in this step (from 1)."""


__all__ = [
    "BlockDraw",
    "BlockSelection",
    "Draw",
    "ExponentDraw",
    "ExponentSelection",
    "Selector",
]
