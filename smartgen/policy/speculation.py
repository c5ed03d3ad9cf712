"""What is pushed speculatively, and how much in each layer of an iteration: pure decisions."""

from collections.abc import Sequence
from functools import lru_cache

from smartgen.kv.geometry import Int
from smartgen.policy.observation import Observation
from smartgen.policy.plan import Plan
from smartgen.policy.policy import Policy

Quotas = tuple[int, ...]
"""The most blocks of one request to be pushed as each layer's attention starts, [L]."""

_EPSILON = 1e-6
"""0.1 * 30 blocks are 3, whatever binary fractions say."""


def speculate(plan: Plan, posted: int, quota: int) -> Int:
    """Return the blocks to push as a layer's attention leaves the network idle.

    Draws from what the plan has left after the posted ones, never from what a mask lacks: that
    would resend blocks in flight.
    """
    return plan.order[posted : posted + quota]


@lru_cache(maxsize=256)
def fixed_quotas(policy: Policy, num_layers: int, blocks_per_layer: int, step: int) -> Quotas:
    """At most speculative_ratio * M blocks on average in each layer of a request's step.

    Where that is no whole number, which layers push the odd block depends on step and layer alone,
    so that a step can be played again.
    """
    per_layer = policy.speculative_ratio * blocks_per_layer
    numbers = range(step * num_layers, (step + 1) * num_layers + 1)
    ends = [int(per_layer * number + _EPSILON) for number in numbers]
    return tuple(ends[i + 1] - ends[i] for i in range(num_layers))


def observed_quotas(
    policy: Policy, blocks_per_layer: int, seen: Observation, unasked: Sequence[int]
) -> tuple[Quotas, ...]:
    """Fill the idle time that each layer's link had in the last iteration, [requests][L].

    unasked: blocks of each of the seen requests that no quota has covered yet; what has not landed
    of the others is on its way and takes its share of the idle time first. Requests take turns. At
    least speculative_floor * M blocks a layer and request, so that all of it comes some day, and
    at most M.
    """
    rooms = _rooms(policy, blocks_per_layer, seen, sum(seen.blocks_left) - sum(unasked))
    ends, total = [], 0.0
    for room in rooms:
        total += room * len(unasked)
        ends.append(int(total + _EPSILON))
    return tuple(
        _capped([(end + turn) // len(unasked) for end in ends], blocks)
        for turn, blocks in enumerate(unasked)
    )


def _rooms(policy: Policy, most: int, seen: Observation, backlog: int) -> list[float]:
    """Blocks a request that fit into each layer's idle time, [L]."""
    least, number = policy.speculative_floor * most, max(1, len(seen.requests))
    rooms, behind = [], float(backlog)
    for idle_s in seen.idle_s:
        fits = (
            most * number if not seen.block_s else policy.speculative_fill * idle_s / seen.block_s
        )
        room = max(0.0, fits - behind)
        behind = max(0.0, behind - fits)
        rooms.append(min(float(most), max(least, room / number)))
    return rooms


def _capped(ends: Sequence[int], most: int) -> Quotas:
    """Turn running totals, of which no more than most count, into shares."""
    capped = [0, *(min(end, most) for end in ends)]
    return tuple(capped[i + 1] - capped[i] for i in range(len(ends)))
