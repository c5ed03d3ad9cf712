"""What the block model selects, head by head: the numbers that were published of real selections.

Slower than a run, which draws one head a request: every head of every sampled request is drawn
here. Steps are alike (the noise is stationary), so means over requests are taken in step 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import SmartGenError, count
from smartgen.kv import Geometry
from smartgen.kv.geometry import Int
from smartgen.policy import Policy, order_blocks
from smartgen.selection.blocks import BlockDraw, BlockSelection
from smartgen.selection.selector import Selector

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Requests of one length, each with its first heads; keyed by seed, so drawn again alike."""

    law: BlockSelection
    geometry: Geometry
    selector: Selector
    num_tokens: int
    seed: int
    requests: int
    heads: int
    first_request: int = 0

    def __post_init__(self) -> None:
        for name in ("num_tokens", "requests", "heads"):
            count(f"sample.{name}", getattr(self, name))

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and blocks."""
        return self.geometry.num_layers, self.geometry.blocks_per_layer

    @property
    def sizes(self) -> Int:
        """Entries of every block that attention reaches, [L, M]."""
        return self.geometry.reached_sizes(self.num_tokens).reshape(self.shape)

    def draws(self) -> Iterator[BlockDraw]:
        """A draw for each head of each request."""
        for request in range(self.first_request, self.first_request + self.requests):
            for head in range(self.heads):
                yield self._draw(request, head)

    def _draw(self, request: int, head: int) -> BlockDraw:
        return BlockDraw(
            self.law,
            self.geometry,
            self.selector,
            self.num_tokens,
            request,
            self.seed,
            head=head,
        )

    def demand(self) -> Floats:
        """Entries of every block that are selected, the mean over heads and requests, [L, M]."""
        total = np.zeros(self.shape)
        for draw in self.draws():
            total += draw.counts(1)
        return total / (self.requests * self.heads)

    def selected_share(self) -> Floats:
        """Share of pairs of head and request that select a position of the block, [L, M].

        NaN where attention does not reach.
        """
        sizes = self.sizes
        empty = np.full(self.shape, np.nan)
        return np.asarray(np.divide(self.demand(), sizes, out=empty, where=sizes > 0))


# -- from step to step


@dataclass(frozen=True, slots=True)
class Persistence:
    """How selections follow each other, over the sparse layers of all heads and requests.

    overlap: share of a step's selection that the step before selected too. unseen: share that no
    earlier step selected, by step (from 1, where all is unseen).
    """

    overlap: float
    unseen: Floats


def persistence(sample: Sample, steps: int) -> Persistence:
    """Draw so many steps (2 or more) of every head."""
    count("steps", steps, at_least=2)
    first = min(sample.selector.dense_layers, sample.geometry.num_layers)
    kept = selected = 0
    new, whole = np.zeros(steps), np.zeros(steps)
    for draw in sample.draws():
        before = seen = np.zeros(sample.shape, dtype=np.int64)
        for number in range(steps):
            now = draw.counts(number + 1)
            if number:
                kept += int(np.minimum(now, before)[first:].sum())
                selected += int(now[first:].sum())
            # of a block that was selected in part, the same part is selected again
            new[number] += np.maximum(now - seen, 0)[first:].sum()
            whole[number] += now[first:].sum()
            before, seen = now, np.maximum(seen, now)
    if not selected:
        raise SmartGenError("nothing is selected in any sparse layer; there is no persistence")
    return Persistence(kept / selected, new / whole)


# -- what an order of pushing misses


def missing_ratio(order: Int, num_planned: int, demand: Floats, first_layer: int = 0) -> float:
    """Share of what layers from first_layer on select that lies in blocks not planned.

    order: block ids (layer * M + block), the first num_planned of them local.
    """
    local = np.zeros(demand.size, dtype=bool)
    local[order[:num_planned]] = True
    wanted = demand[first_layer:]
    return float(wanted[~local.reshape(demand.shape)[first_layer:]].sum() / wanted.sum())


def missing_curve(order: Int, demand: Floats, first_layer: int, ratios: Floats) -> Floats:
    """The same over the locally available share r of the blocks of layers from first_layer on."""
    sparse = order[order >= first_layer * demand.shape[1]]
    found = np.concatenate([[0.0], np.cumsum(demand.reshape(-1)[sparse])])
    taken = np.rint(np.asarray(ratios) * len(sparse)).astype(np.int64)
    return np.asarray(1 - found[taken] / found[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What each order misses of what a sample selects.

    calibration: requests that the profile is made of, instead of the law's exact profile. The
    order optimal is measured on ``oracle_requests``: each is ordered by what all its heads select
    in ``oracle_steps`` steps, and misses what of just that is not local.
    """

    sample: Sample
    calibration: Sample | None = None
    oracle_requests: int = 2
    oracle_steps: int = 63

    def missing(self, policies: Sequence[Policy], planned_ratio: float, first_layer: int) -> Floats:
        """What each policy's order misses with this share of all L * M blocks planned."""
        planned = round(planned_ratio * self.sample.geometry.num_blocks)
        return self._each(
            policies, lambda order, demand: missing_ratio(order, planned, demand, first_layer)
        )

    def curves(self, policies: Sequence[Policy], ratios: Floats) -> Floats:
        """What of the sparse layers' selection is missing over r, [policy, r]."""
        first = self.sample.selector.dense_layers
        return self._each(
            policies, lambda order, demand: missing_curve(order, demand, first, ratios)
        )

    def _each(self, policies: Sequence[Policy], miss: Callable[[Int, Floats], Any]) -> Floats:
        sample = self.sample
        demand = sample.demand()
        found = []
        for policy in policies:
            if policy.order == "optimal":
                pairs = list(self._oracles(policy))
            elif policy.order == "random":
                pairs = [
                    (self._order(policy, number, demand), demand)
                    for number in range(sample.requests)
                ]
            else:
                pairs = [(self._order(policy, 0, self._importance(policy)), demand)]
            found.append(np.mean([miss(order, wanted) for order, wanted in pairs], axis=0))
        return np.array(found)

    def _importance(self, policy: Policy) -> Floats:
        sample = self.sample
        if policy.order != "profile":
            return np.zeros(sample.shape)
        if self.calibration is not None:
            sizes = np.maximum(self.calibration.sizes, 1)
            return np.asarray(self.calibration.demand() / sizes)
        made = sample.law.profile(sample.geometry, sample.selector, sample.seed, sample.num_tokens)
        return made.importance

    def _oracles(self, policy: Policy) -> Iterator[tuple[Int, Floats]]:
        own = replace(self.sample, requests=self.oracle_requests, heads=1)
        sizes = self.sample.geometry.sizes(own.num_tokens).reshape(own.shape)
        for number, draw in enumerate(own.draws()):
            frequency = draw.frequency(self.oracle_steps)
            yield self._order(policy, number, frequency), frequency * sizes

    def _order(self, policy: Policy, number: int, importance: Floats) -> Int:
        rng = np.random.default_rng([self.sample.seed, 3, number])
        return order_blocks(policy, self.sample.geometry, importance, rng)


# -- fits


def fitted_exponent(ratios: Floats, missing: Floats) -> float:
    """The g of (1 - r) ** g that is closest to a curve, by least squares over the given r."""
    grid = np.arange(0.3, 8.0, 0.005)
    away = (1 - np.asarray(ratios)[:, None]) ** grid - np.asarray(missing)[:, None]
    return float(grid[np.argmin((away**2).sum(axis=0))])
