"""The block model of selection: how many entries of each block a request selects in each step.

A score per block is drawn from a recency plateau, sinks and layer-specific bumps shared by all
requests, plus what is the request's own, what is the KV head's own, and step noise that persists
from step to step. The blocks with the highest scores are selected, whole but for the last one; in
a layer with a sliding window only what lies inside.

Heads differ, and each can be drawn (smartgen.selection.statistics does). In a run head 0 of each
request stands for all its rows: heads are drawn alike, so expected counts are those of all heads,
and only their scatter is larger (docs/selection.md says by how much).

It is a parametric law, not a measurement: its parameters were fitted to published aggregates.
Draws are keyed by (seed, request, head, step), so that a step can be drawn again.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import not_negative, ratio
from smartgen.kv import BlockMask, Geometry, Mask
from smartgen.policy import Profile
from smartgen.selection.selector import Selector

Scores = NDArray[np.float32]
Counts = NDArray[np.int64]

_MODEL_STREAM, _REQUEST_STREAM, _STEP_STREAM, _HEAD_STREAM = 0, 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSelection:
    """Parameters of the score; positions x run from 0 to 1 over the prompt.

    sharpness scales what all requests share (k); recency_high and recency_low are the plateau's
    heights (b_l) in the layers that look back little or much, recency_high_ratio the share of the
    former; recency_width is the plateau's width (w), sink its height (a_s) over the first 1 %;
    bumps weighs the layer-specific field (c), request_deviation the field of a request (q),
    head_deviation that of a head in a request (h), noise the step's (e), and persistence is the
    noise's correlation from step to step (rho).
    """

    sharpness: float
    recency_high: float
    recency_low: float
    recency_high_ratio: float
    recency_width: float
    sink: float
    bumps: float
    request_deviation: float
    head_deviation: float
    noise: float
    persistence: float

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            not_negative(f"selection.{name}", getattr(self, name))
        for name in ("recency_high_ratio", "recency_width", "persistence"):
            ratio(f"selection.{name}", getattr(self, name))

    def shared_scores(self, geometry: Geometry, seed: int) -> Scores:
        """What every request of the model has in common, [L, M]."""
        layers, blocks = geometry.num_layers, geometry.blocks_per_layer
        rng = np.random.default_rng([seed, _MODEL_STREAM])
        x = (np.arange(blocks) + 0.5) / blocks
        high = self._is_high(layers, rng)
        height = np.where(high, self.recency_high, self.recency_low)
        height = height * np.exp(0.2 * rng.standard_normal(layers))
        slope = max(self.recency_width / 8, 1e-6)
        edge = np.clip((x - (1 - self.recency_width)) / slope, -60, 60)
        scores = self.sharpness * height[:, None] / (1 + np.exp(-edge))
        scores += self.sharpness * self.bumps * _field(rng, layers, blocks, 0.05)
        scores += self.sink * (x < 0.01)
        return np.asarray(scores, dtype=np.float32)

    def is_high(self, num_layers: int, seed: int) -> NDArray[np.bool_]:
        """Which layers have the high plateau, [L]."""
        return self._is_high(num_layers, np.random.default_rng([seed, _MODEL_STREAM]))

    def _is_high(self, num_layers: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        return rng.permutation(num_layers) < round(self.recency_high_ratio * num_layers)

    @property
    def spread(self) -> float:
        """Standard deviation of a block's score over requests, heads and steps."""
        return math.hypot(self.request_deviation, self.head_deviation, self.noise)

    def profile(
        self, geometry: Geometry, selector: Selector, seed: int, num_tokens: int | None = None
    ) -> Profile:
        """Equation 1 in the limit of many calibration requests, without drawing any.

        num_tokens: their length, 8 entries a block unless given. It matters for sliding windows
        only, which are a share of the prompt that depends on its length.
        """
        length = 8 * geometry.blocks_per_layer if num_tokens is None else num_tokens
        return Profile(
            _expected(self, geometry, selector, seed, length),
            f"parametric: expected frequencies at sharpness {self.sharpness}",
            1,
            1 << 31,
        )


class BlockDraw:
    """Entries of every block that one head of a request selects; keeps the noise last drawn."""

    ratios = None

    def __init__(
        self,
        law: BlockSelection,
        geometry: Geometry,
        selector: Selector,
        num_tokens: int,
        request_id: int,
        seed: int,
        reuse: bool = False,
        head: int = 0,
    ) -> None:
        self._law, self._selector, self._key = law, selector, (seed, request_id)
        self._geometry, self._num_tokens, self._head = geometry, num_tokens, head
        self._shape = (geometry.num_layers, geometry.blocks_per_layer)
        sizes = geometry.reached_sizes(num_tokens).reshape(self._shape)
        self._reach = geometry.reach(num_tokens)
        self._ratios = _layer_ratios(geometry, selector, seed)
        self.selected = np.rint(self._ratios * self._reach).astype(np.int64)
        """Prompt entries selected in each layer by each row, [L]."""
        # under reuse, a block's fetched entries are kept: only more of the same block is fetched
        self._held = np.zeros(self._shape, dtype=np.int64) if reuse else None
        whole = self.selected == self._reach
        # nothing is drawn for layers that select everything; below, rows are the other layers
        self._rows = np.flatnonzero(~whole)
        self._sizes, self._wanted = sizes[self._rows], self.selected[self._rows, None]
        self._most = _most_blocks(self._sizes, self._wanted)
        request = np.random.default_rng([seed, _REQUEST_STREAM, request_id])
        own = np.random.default_rng([seed, _HEAD_STREAM, request_id, head])
        scores = _shared_scores(law, geometry, seed)
        scores = scores + (
            law.request_deviation * _field(request, *self._shape, 0.06)
            + law.head_deviation * _field(own, *self._shape, 0.06)
        ).astype(np.float32)
        # empty blocks come last; all different, since equal ones are slow to sort
        last = -1e6 - np.arange(self._shape[1], dtype=np.float32)
        self._scores = np.where(self._sizes > 0, scores[self._rows], last)
        self._noise = own.standard_normal(self._sizes.shape, dtype=np.float32)
        self._initial = self._noise
        self._step, self._counts = 0, np.where(whole[:, None], sizes, 0)

    def counts(self, step: int) -> Counts:
        """Selected entries of every block, [L, M]; steps count from 1."""
        if step < self._step:
            self._step, self._noise = 0, self._initial
        if step > self._step:
            while self._step < step:
                self._advance()
            self._counts = self._select()
        return self._counts

    def selected_at(self, generated: int) -> NDArray[np.float64]:
        """Entries each row selects in every layer, [L], with so many generated ones cached.

        Of those a layer selects its usual share; they are always local. A window that is full
        does not move on: it still holds the last entries of the prompt.
        """
        grown = self._geometry.reach(self._num_tokens + generated) - self._reach
        return np.asarray(self.selected + np.rint(self._ratios * grown), dtype=np.float64)

    def remote(self, step: int, layer: int, mask: Mask) -> float:
        """Entries to fetch in this layer: selected in missing blocks, less what was kept."""
        assert isinstance(mask, BlockMask)
        if not mask.left[layer]:  # whatever would be drawn
            return 0.0
        counts = self.counts(step)[layer]
        wanted = counts * mask.missing[layer]
        if self._held is not None:
            new = np.maximum(0, wanted - self._held[layer])
            self._held[layer] = np.maximum(self._held[layer], wanted)
            wanted = new
        return float(wanted.sum())

    def frequency(self, num_steps: int) -> NDArray[np.float64]:
        """How often each block's entries are selected over a whole run, [L, M]: the oracle.

        The mean over all KV heads, for a block is pushed with the rows of all of them.
        """
        seed, request_id = self._key
        return _frequency(
            self._law, self._geometry, self._selector, self._num_tokens, request_id, seed, num_steps
        )

    def _advance(self) -> None:
        self._step += 1
        rng = np.random.default_rng([*self._key, _STEP_STREAM, self._step, self._head])
        fresh = rng.standard_normal(self._noise.shape, dtype=np.float32)
        keep = np.float32(self._law.persistence)
        self._noise = keep * self._noise + np.sqrt(1 - keep**2) * fresh

    def _select(self) -> Counts:
        counts = self._counts.copy()
        if not self._most:
            return counts
        scores = self._scores + np.float32(self._law.noise) * self._noise
        # only the best that can be needed are sorted
        best = np.argpartition(scores, -self._most, axis=1)[:, -self._most :]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        best = np.take_along_axis(best, order, axis=1)  # [rows, most], best first
        sizes = np.take_along_axis(self._sizes, best, axis=1)
        before = np.cumsum(sizes, axis=1) - sizes
        drawn = np.zeros(self._sizes.shape, dtype=np.int64)
        np.put_along_axis(drawn, best, np.clip(self._wanted - before, 0, sizes), axis=1)
        counts[self._rows] = drawn
        return counts


@lru_cache(maxsize=16)  # both ends of a transfer ask
def _frequency(
    law: BlockSelection,
    geometry: Geometry,
    selector: Selector,
    num_tokens: int,
    request_id: int,
    seed: int,
    num_steps: int,
) -> NDArray[np.float64]:
    sizes = geometry.sizes(num_tokens).reshape(geometry.num_layers, -1)
    total = np.zeros(sizes.shape)
    for head in range(geometry.num_kv_heads):
        drawn = BlockDraw(law, geometry, selector, num_tokens, request_id, seed, head=head)
        for step in range(1, num_steps + 1):
            total += drawn.counts(step)
    total /= geometry.num_kv_heads
    total = np.divide(total, sizes, out=np.zeros(sizes.shape), where=sizes > 0)
    total.setflags(write=False)
    return total


def _most_blocks(sizes: Counts, wanted: Counts) -> int:
    """So many of the best blocks hold what is wanted in every row, whichever these are."""
    if not wanted.size or not wanted.any():
        return 0
    # least first, empty ones never: what the fewest entries need the most blocks for
    least = np.sort(np.where(sizes > 0, sizes, np.iinfo(np.int64).max >> 32), axis=1)
    return int((np.cumsum(least, axis=1) < wanted).sum(axis=1).max()) + 1


@lru_cache(maxsize=4)
def _shared_scores(law: BlockSelection, geometry: Geometry, seed: int) -> Scores:
    return law.shared_scores(geometry, seed)


@lru_cache(maxsize=4)
def _expected(
    law: BlockSelection, geometry: Geometry, selector: Selector, seed: int, num_tokens: int
) -> NDArray[np.float64]:
    """How often an entry of each block is selected on average, [L, M].

    A block is selected where its score exceeds the layer's threshold. Over so many blocks that is
    nearly the same for all heads and steps, so the share that exceeds it is a normal tail.
    """
    shared = _shared_scores(law, geometry, seed).astype(np.float64)
    reached = geometry.reached_sizes(num_tokens).reshape(shared.shape)
    reach = geometry.reach(num_tokens)
    wanted = np.rint(_layer_ratios(geometry, selector, seed) * reach)
    spread = max(law.spread, 1e-9)
    low, high = shared.min(axis=1) - 9 * spread, shared.max(axis=1) + 9 * spread
    for _ in range(50):
        middle = (low + high) / 2
        above = (reached * _normal((shared - middle[:, None]) / spread)).sum(axis=1) > wanted
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    share = _normal((shared - high[:, None]) / spread)
    share[wanted == reach] = 1.0
    sizes = geometry.sizes(num_tokens).reshape(shared.shape)
    return np.divide(share * reached, sizes, out=np.zeros(shared.shape), where=sizes > 0)


def _layer_ratios(geometry: Geometry, selector: Selector, seed: int) -> NDArray[np.float64]:
    return selector.layer_ratios(
        geometry.num_layers, np.random.default_rng([seed, _MODEL_STREAM, 1])
    )


def _normal(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The normal distribution function, within 1e-7 (Abramowitz and Stegun 7.1.26)."""
    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    terms = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    series = sum(term * t ** (power + 1) for power, term in enumerate(terms))
    tail = np.asarray(series * np.exp(-z * z) / 2, dtype=np.float64)
    return np.where(x > 0, 1 - tail, tail)


def _field(
    rng: np.random.Generator, rows: int, blocks: int, correlation: float
) -> NDArray[np.float64]:
    """Unit Gaussian fields [rows, blocks] with a Gaussian correlation of that length."""
    padded = 2 * blocks  # so that the ends of [0, 1] do not correlate
    white = rng.standard_normal((rows, padded))
    distance = np.minimum(np.arange(padded), padded - np.arange(padded)) / blocks
    kernel = np.exp(-((distance / correlation) ** 2))  # its own correlation is twice as wide
    kernel /= np.sqrt(np.sum(kernel**2))
    smooth = np.fft.irfft(np.fft.rfft(white) * np.fft.rfft(kernel), n=padded)
    return smooth[:, :blocks]
