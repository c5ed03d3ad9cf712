"""How much is pushed proactively, and what is pushed speculatively: pure decisions."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
    """The blocks of one request in pushing order, of which the first num_planned are proactive."""

    order: Int  # [L * M], layer * M + block
    num_planned: int
    blocks_per_layer: int

    @cached_property
    def by_layer(self) -> tuple[Int, ...]:
        """The planned blocks of each layer, in pushing order."""
        planned = self.order[: self.num_planned]
        layer = planned // self.blocks_per_layer
        grouped = planned[np.argsort(layer, kind="stable")]
        num_layers = len(self.order) // self.blocks_per_layer
        ends = np.cumsum(np.bincount(layer, minlength=num_layers))
        return tuple(np.split(grouped, ends[:-1]))


class Progress(NamedTuple):
    """How far a request's plan has been posted, and the fraction of a block carried over."""

    posted: int
    credit: float = 0.0


def speculate(policy: Policy, plan: Plan, progress: Progress) -> tuple[Int, Progress]:
    """Return the blocks to push now that one attention layer leaves the network idle.

    Draws from what the plan has left, never from what a mask lacks: that would resend blocks in
    flight. At most speculative_ratio * M blocks on average per call.
    """
    credit = progress.credit + policy.speculative_ratio * plan.blocks_per_layer
    quota = int(credit + 1e-9)  # 0.1 * 30 blocks are 3, whatever binary fractions say
    stop = min(progress.posted + quota, len(plan.order))
    return plan.order[progress.posted : stop], Progress(stop, credit - quota)
