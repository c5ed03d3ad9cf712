"""The block model of selection: how many entries of each block a request selects in each step.

A score per block is drawn from a recency plateau, sinks and
layer-specific bumps shared by all requests, plus the request's own deviation and step noise that
persists from step to step. The blocks with the highest scores are selected, whole but for the last
one. All rows (KV heads) of a request select equally many entries of each block.

It is a parametric law, not a measurement: its parameters were fitted to published aggregates.
Draws are keyed by (seed, request, step), so that a step can be drawn again.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import not_negative, ratio
from smartgen.kv import BlockMask, Geometry
from smartgen.policy import Profile
from smartgen.selection.selector import Selector

Scores = NDArray[np.float32]
Counts = NDArray[np.int64]

_MODEL_STREAM, _REQUEST_STREAM, _STEP_STREAM = 0, 1, 2
_CALIBRATION_REQUESTS = range(1 << 30, (1 << 30) + 24)
_CALIBRATION_STEPS = (1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSelection:
    """Parameters of the score; positions x run from 0 to 1 over the prompt.

    sharpness scales what all requests share (k); recency_high and recency_low are the plateau's
    heights (b_l) in the layers that look back little or much, recency_high_ratio the share of the
    former; recency_width is the plateau's width (w), sink its height (a_s) over the first 1 %;
    bumps weighs the layer-specific field (c), deviation the request's own field (q and h
    together), noise the step's (e) and persistence its correlation over steps (rho).
    """

    sharpness: float
    recency_high: float
    recency_low: float
    recency_high_ratio: float
    recency_width: float
    sink: float
    bumps: float
    deviation: float
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
        high = rng.permutation(layers) < round(self.recency_high_ratio * layers)
        height = np.where(high, self.recency_high, self.recency_low)
        height = height * np.exp(0.2 * rng.standard_normal(layers))
        slope = max(self.recency_width / 8, 1e-6)
        edge = np.clip((x - (1 - self.recency_width)) / slope, -60, 60)
        scores = self.sharpness * height[:, None] / (1 + np.exp(-edge))
        scores += self.sharpness * self.bumps * _field(rng, layers, blocks, 0.05)
        scores += self.sink * (x < 0.01)
        return np.asarray(scores, dtype=np.float32)

    def profile(self, geometry: Geometry, selector: Selector, seed: int) -> Profile:
        """Equation 1 over drawn calibration requests, none of which is ever served."""
        return Profile(
            _calibrate(self, geometry, selector, seed),
            f"parametric: {len(_CALIBRATION_REQUESTS)} drawn requests, sharpness {self.sharpness}",
            1,
            1 << 31,
        )


class BlockDraw:
    """Entries selected of every block by one request; keeps the noise of the step last drawn."""

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
    ) -> None:
        self._law, self._key = law, (seed, request_id)
        self._shape = (geometry.num_layers, geometry.blocks_per_layer)
        self._sizes = geometry.block_entries(num_tokens)
        self._ratios = selector.layer_ratios(
            geometry.num_layers, np.random.default_rng([seed, _MODEL_STREAM, 1])
        )
        self.selected = np.rint(self._ratios * num_tokens).astype(np.int64)
        """Prompt entries selected in each layer by each row, [L]."""
        # under reuse, a block's fetched entries are kept: only more of the same block is fetched
        self._held = np.zeros(self._shape, dtype=np.int64) if reuse else None
        rng = np.random.default_rng([seed, _REQUEST_STREAM, request_id])
        self._scores = _shared_scores(law, geometry, seed) + law.deviation * _field(
            rng, *self._shape, 0.06
        ).astype(np.float32)
        self._noise = rng.standard_normal(self._shape, dtype=np.float32)
        self._initial = self._noise
        self._step, self._counts = 0, np.zeros(self._shape, dtype=np.int64)

    def counts(self, step: int) -> Counts:
        """Selected entries of every block, [L, M], the same for each row; steps count from 1."""
        if step < self._step:
            self._step, self._noise = 0, self._initial
        if step > self._step:
            while self._step < step:
                self._advance()
            self._counts = self._select()
        return self._counts

    def selected_at(self, generated: int) -> NDArray[np.float64]:
        """Entries each row selects in every layer, [L], with so many generated ones cached.

        Of those a layer selects its usual share; they are always local.
        """
        return np.asarray(self.selected + np.rint(self._ratios * generated), dtype=np.float64)

    def remote(self, step: int, layer: int, mask: BlockMask) -> float:
        """Entries to fetch in this layer: selected in missing blocks, less what was kept."""
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
        """How often each block's entries are selected over a whole run, [L, M]: the oracle."""
        total = np.zeros(self._shape)
        for step in range(1, num_steps + 1):
            total += self.counts(step)
        return np.divide(total, self._sizes, out=np.zeros(self._shape), where=self._sizes > 0)

    def _advance(self) -> None:
        self._step += 1
        rng = np.random.default_rng([*self._key, _STEP_STREAM, self._step])
        fresh = rng.standard_normal(self._shape, dtype=np.float32)
        keep = np.float32(self._law.persistence)
        self._noise = keep * self._noise + np.sqrt(1 - keep**2) * fresh

    def _select(self) -> Counts:
        scores = self._scores + np.float32(self._law.noise) * self._noise
        order = np.argsort(-scores, axis=1)  # [L, M], best first
        sizes = self._sizes[order]
        before = np.cumsum(sizes, axis=1) - sizes
        taken = np.clip(self.selected[:, None] - before, 0, sizes)
        counts = np.empty(self._shape, dtype=np.int64)
        np.put_along_axis(counts, order, taken, axis=1)
        return counts


@lru_cache(maxsize=4)
def _shared_scores(law: BlockSelection, geometry: Geometry, seed: int) -> Scores:
    return law.shared_scores(geometry, seed)


@lru_cache(maxsize=4)
def _calibrate(
    law: BlockSelection, geometry: Geometry, selector: Selector, seed: int
) -> NDArray[np.float64]:
    num_tokens = 8 * geometry.blocks_per_layer
    total = np.zeros((geometry.num_layers, geometry.blocks_per_layer))
    for request_id in _CALIBRATION_REQUESTS:
        request = BlockDraw(law, geometry, selector, num_tokens, request_id, seed)
        for step in _CALIBRATION_STEPS:
            total += request.counts(step)
    return total / geometry.block_entries(num_tokens)


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
