"""The closed selection law of the fitted model: the missing share is (1 - r) ** g.

r is the locally available share of the sparse layers' blocks; g depends on the order of pushing.
Positions do not exist here, so plans are spread evenly over the layers (order ``even``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import SmartGenError, positive, ratio
from smartgen.kv import BlockMask, Geometry
from smartgen.selection.selector import Selector


@dataclass(frozen=True, kw_only=True)
class ExponentSelection:
    """The law's parameters.

    exponents: g by order. novelty: share of a late step's selection never fetched before, which
    is what is missing when fetched entries are reused; it falls from 1 with e-folding 2 steps.
    """

    exponents: Mapping[str, float]
    novelty: float

    def __post_init__(self) -> None:
        for order, exponent in self.exponents.items():
            positive(f"selection.exponents.{order}", exponent)
        ratio("selection.novelty", self.novelty)

    def exponent(self, order: str) -> float:
        """G of an order."""
        if order not in self.exponents:
            raise SmartGenError(
                f"policy.order={order!r} has no exponent; selection.exponents must name it"
            )
        return self.exponents[order]

    def missing_ratio(self, exponent: float, local_ratio: float, step: int, reuse: bool) -> float:
        """Share of a sparse layer's selected entries that must be fetched in this step (from 1)."""
        missing = (1.0 - local_ratio) ** exponent if local_ratio < 1 else 0.0
        if not reuse:
            return missing
        return missing * (self.novelty + (1 - self.novelty) * math.exp(-(step - 1) / 2))


class ExponentDraw:
    """One request under the closed law; counts are fractions of entries."""

    def __init__(
        self,
        law: ExponentSelection,
        geometry: Geometry,
        selector: Selector,
        num_tokens: int,
        exponent: float,
        reuse: bool,
    ) -> None:
        dense = min(selector.dense_layers, geometry.num_layers)
        self.ratios = np.full(geometry.num_layers, selector.mean_ratio)
        self.ratios[:dense] = 1.0
        self._law, self._exponent, self._reuse = law, exponent, reuse
        self._dense, self._selected = dense, selector.mean_ratio * num_tokens
        self._num_tokens = num_tokens

    def selected_at(self, generated: int) -> NDArray[np.float64]:
        """Entries each row selects in every layer, [L], with so many generated ones cached."""
        return self.ratios * (self._num_tokens + generated)

    def remote(self, step: int, layer: int, mask: BlockMask) -> float:
        """Entries to fetch in this layer."""
        if layer < self._dense:  # always planned
            return 0.0
        ratio = self._law.missing_ratio(self._exponent, mask.sparse_ratio, step, self._reuse)
        return self._selected * ratio
