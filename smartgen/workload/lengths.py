"""Lengths of prompts and outputs: one number, or a distribution."""

import math
from dataclasses import dataclass

import numpy as np

from smartgen.errors import SmartGenError, count, within


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths in tokens: lognormal, rounded, and clipped to [min_tokens, max_tokens].

    mean_tokens and cv (standard deviation over mean) are those before clipping, which pulls both
    in; the echo of a workload says what was drawn. cv=0 makes all lengths the mean.
    """

    mean_tokens: float
    cv: float
    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        count("lengths.min_tokens", self.min_tokens)
        count("lengths.max_tokens", self.max_tokens, at_least=self.min_tokens)
        within("lengths.mean_tokens", self.mean_tokens, self.min_tokens, self.max_tokens)
        within("lengths.cv", self.cv, 0, 10)

    def draw(self, rng: np.random.Generator, num: int) -> list[int]:
        """So many lengths; the first of them do not depend on num."""
        variance = math.log1p(self.cv**2)
        normal = rng.standard_normal(num)
        tokens = self.mean_tokens * np.exp(math.sqrt(variance) * normal - variance / 2)
        clipped = np.clip(np.rint(tokens), self.min_tokens, self.max_tokens)
        return [int(length) for length in clipped]


def check_lengths(name: str, lengths: int | Lengths) -> None:
    """Refuse by name what is neither a number of tokens nor a distribution of them."""
    if isinstance(lengths, bool) or not isinstance(lengths, int | Lengths):
        raise SmartGenError(f"{name}={lengths!r} must be a number of tokens or a workload.Lengths")
    if isinstance(lengths, int):
        count(name, lengths)


def draw_lengths(lengths: int | Lengths, rng: np.random.Generator, num: int) -> list[int]:
    """So many lengths, drawn or all the same."""
    return lengths.draw(rng, num) if isinstance(lengths, Lengths) else [lengths] * num
