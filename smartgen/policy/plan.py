"""How much of a request is pushed proactively, and in which order: pure decisions."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smartgen.kv import Geometry
from smartgen.kv.geometry import Int
from smartgen.policy.policy import Policy

ALWAYS_PLANNED_LAYERS = 2
"""Equation 2 clips K_r from below at 2M, so that layers 0 and 1 are always sent."""


def proactive_budget(
    policy: Policy, geometry: Geometry, prefill_s: float, transfer_s: float, metadata_s: float
) -> int:
    """Blocks of one request to push during prefill: K_r of Equation 2, clipped to [2M, L*M].

    prefill_s is T_p and transfer_s T_t, the full transfer of the whole batch; metadata_s is the
    wire time of the selectors' metadata, subtracted only under ``metadata_in_budget``.
    """
    if policy.proactive != "overlap":
        return geometry.num_blocks if policy.proactive == "all" else 0
    layers, blocks = geometry.num_layers, geometry.blocks_per_layer
    window_s = prefill_s * (layers - 1) / layers
    if policy.metadata_in_budget:
        window_s -= metadata_s
    hidden = int(geometry.num_blocks * window_s / transfer_s) if transfer_s > 0 else layers * blocks
    return max(min(ALWAYS_PLANNED_LAYERS, layers) * blocks, min(hidden, layers * blocks))


@dataclass(frozen=True, eq=False)
class Plan:
    """The blocks of one request that must be sent, in pushing order; the first are proactive.

    order holds layer * M + block, at most num_layers * M of them: what the decoding node holds
    already is left out. num_planned of them are pushed during prefill.
    """

    order: Int
    num_planned: int
    blocks_per_layer: int
    num_layers: int

    @cached_property
    def by_layer(self) -> tuple[Int, ...]:
        """The planned blocks of each layer, in pushing order."""
        planned, layer = self.order[: self.num_planned], self.planned_layers
        grouped = planned[np.argsort(layer, kind="stable")]
        ends = np.cumsum(np.bincount(layer, minlength=self.num_layers))
        return tuple(np.split(grouped, ends[:-1]))

    @cached_property
    def planned_layers(self) -> Int:
        """The layer of each planned block, in pushing order."""
        return self.order[: self.num_planned] // self.blocks_per_layer

    def sum_by_layer(self, sizes: Int) -> tuple[list[int], list[int]]:
        """Sizes of the planned blocks summed by layer, [L], and how many are not empty, [L].

        sizes holds one for each block of the cache, [L * M].
        """
        planned = sizes[self.order[: self.num_planned]]
        total = np.bincount(self.planned_layers, weights=planned, minlength=self.num_layers)
        full = np.bincount(self.planned_layers, weights=planned > 0, minlength=self.num_layers)
        return total.astype(np.int64).tolist(), full.astype(np.int64).tolist()

    @property
    def left(self) -> Int:
        """The blocks that are not pushed during prefill."""
        return self.order[self.num_planned :]
