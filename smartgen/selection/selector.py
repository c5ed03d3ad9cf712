"""A selector's card: how much it selects, what metadata it ships, whether it looks ahead."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import SmartGenError, count, not_negative, ratio, truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A KV selection method, as far as transfers can tell one from another.

    Attributes:
        looks_ahead: selects a layer's entries while the previous layer attends.
        metadata_ratio: bytes shipped with each entry (partial keys, codes) over the entry's bytes.
        dense_layers: so many first layers attend everything.
        selection_ratio: cap on the selected share of a sparse layer.
        natural_ratio: mean share a layer would select uncapped, exponential over layers; null
            means that the cap always binds.
        scale: corrects the mean share for what one ratio per layer leaves out (heads).
    """

    name: str
    looks_ahead: bool
    metadata_ratio: float
    dense_layers: int
    selection_ratio: float
    natural_ratio: float | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        truth("selector.looks_ahead", self.looks_ahead)
        not_negative("selector.metadata_ratio", self.metadata_ratio)
        count("selector.dense_layers", self.dense_layers, at_least=0)
        ratio("selector.selection_ratio", self.selection_ratio)
        ratio("selector.scale", self.scale)
        if (
            self.natural_ratio is not None
            and not_negative("selector.natural_ratio", self.natural_ratio) == 0
        ):
            raise SmartGenError("selector.natural_ratio=0 must be a positive number or null")

    @property
    def mean_ratio(self) -> float:
        """Mean selected share of the sparse layers: scale * mu * (1 - exp(-cap / mu))."""
        cap, mean = self.selection_ratio, self.natural_ratio
        return self.scale * (cap if mean is None else mean * (1 - math.exp(-cap / mean)))

    def layer_ratios(self, num_layers: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Selected share of every layer, [L]: 1 for dense ones, else min(cap, exponential).

        The exponential's quantiles are dealt to the layers at random, so that the mean share
        does not depend on the seed.
        """
        ratios = np.ones(num_layers)
        num_sparse = max(0, num_layers - self.dense_layers)
        if self.natural_ratio is None:
            sparse = np.full(num_sparse, self.selection_ratio)
        else:
            quantiles = (np.arange(num_sparse) + 0.5) / max(1, num_sparse)
            natural = -self.natural_ratio * np.log1p(-quantiles)
            sparse = rng.permutation(np.minimum(self.selection_ratio, natural))
        ratios[num_layers - num_sparse :] = self.scale * sparse
        return ratios
