"""Links whose rate varies: a factor of the nominal rate, constant from one change to the next.

A factor depends on the variation, the link's name and the time, on nothing that happens in a run.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from smartgen.errors import SmartGenError, count, not_negative, positive, within

INFINITY = float("inf")

_FACTORS = 21
"""Stream of the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The same given factors for every receiving link.

    steps: pairs of a time in seconds, the first 0, and the factor from then on.
    """

    steps: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        right = "a list of pairs [seconds, factor] at rising times, the first 0"
        refusal = SmartGenError(f"network.variation.steps={self.steps!r} must be {right}")
        if not _are_pairs(self.steps):
            raise refusal
        times = [not_negative("network.variation.steps, a time", at_s) for at_s, _ in self.steps]
        if times[0] != 0 or any(a >= b for a, b in pairwise(times)):
            raise refusal
        for _, factor in self.steps:
            _factor("network.variation.steps, a factor", factor)

    def changes(self, link: str) -> Iterator[tuple[float, float]]:
        """Times from 0 on, each with the factor that holds from then on."""
        return ((float(at_s), float(factor)) for at_s, factor in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """A new factor every period_s, drawn for each receiving link on its own.

    Logarithms of factors are normal and first-order autoregressive; then they are clipped to
    [min_factor, max_factor]. mean and cv (standard deviation over mean) are those before clipping,
    which moves the one and pulls in the other. correlation: of the logarithms of two successive
    factors. The first factor is drawn as all others are.
    """

    period_s: float
    cv: float
    seed: int
    mean: float = 1.0
    correlation: float = 0.0
    min_factor: float = 0.1
    max_factor: float = 1.0

    def __post_init__(self) -> None:
        within("network.variation.period_s", self.period_s, 0.001, 1e6)
        within("network.variation.cv", self.cv, 0, 10)
        count("network.variation.seed", self.seed, at_least=0)
        within("network.variation.correlation", self.correlation, 0, 0.999)
        _factor("network.variation.min_factor", self.min_factor)
        within("network.variation.max_factor", self.max_factor, self.min_factor, MOST)
        within("network.variation.mean", self.mean, self.min_factor, self.max_factor)

    def changes(self, link: str) -> Iterator[tuple[float, float]]:
        """Times from 0 on, each with the factor that holds from then on; it never ends."""
        rng = np.random.default_rng([self.seed, _FACTORS, crc32(link.encode())])
        variance = math.log1p(self.cv**2)
        fresh = math.sqrt(1 - self.correlation**2)
        period, state = 0, rng.standard_normal()
        while True:
            factor = self.mean * math.exp(math.sqrt(variance) * state - variance / 2)
            yield period * self.period_s, min(max(factor, self.min_factor), self.max_factor)
            period += 1
            state = self.correlation * state + fresh * rng.standard_normal()


Variation: TypeAlias = Steps | Random

MOST = 100.0
"""A larger factor is a slip: the nominal rate is the card's gbps."""


class Course:
    """One link's factor over time, remembered as far as somebody has asked."""

    def __init__(self, changes: Iterable[tuple[float, float]]) -> None:
        """Changes as Variation.changes gives them."""
        self._changes = iter(changes)
        at_s, factor = next(self._changes)
        self._times, self._factors, self._areas = [at_s], [factor], [0.0]
        self._ends = False

    def piece(self, now: float) -> tuple[float, float]:
        """The factor at now, and when it changes next: after now, or never."""
        last = self._index(now)
        times = self._times
        return self._factors[last], times[last + 1] if last + 1 < len(times) else INFINITY

    def mean(self, first_s: float, last_s: float) -> float:
        """The mean factor from first_s to last_s; at one instant, the factor there."""
        if last_s <= first_s:
            return self.piece(first_s)[0]
        i, k = self._index(first_s), self._index(last_s)
        if i == k:
            return self._factors[i]
        first = self._factors[i] * (self._times[i + 1] - first_s)
        whole = self._areas[k] - self._areas[i + 1]
        return (first + whole + self._factors[k] * (last_s - self._times[k])) / (last_s - first_s)

    def _index(self, now: float) -> int:
        """Which of the pieces holds at now; the one after it is known too, if there is one."""
        while self._times[-1] <= now and not self._ends:
            self._extend()
        return max(0, bisect_right(self._times, now) - 1)

    def _extend(self) -> None:
        following = next(self._changes, None)
        if following is None:
            self._ends = True
            return
        at_s, factor = following
        self._areas.append(self._areas[-1] + self._factors[-1] * (at_s - self._times[-1]))
        self._times.append(at_s)
        self._factors.append(factor)


def courses(variation: Variation | None, links: Iterable[str]) -> dict[str, Course]:
    """The course of each of these links; none where nothing varies."""
    if variation is None:
        return {}
    return {link: Course(variation.changes(link)) for link in links}


def mean_rates(
    rates: Mapping[str, float], varying: Mapping[str, Course], first_s: float, last_s: float
) -> dict[str, float]:
    """Rates of all links, on average over that time."""
    means = {link: rates[link] * course.mean(first_s, last_s) for link, course in varying.items()}
    return {**rates, **means}


def _are_pairs(value: Any) -> bool:
    """Whether it is a list of pairs, and not empty."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return False
    return all(
        isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        for pair in value
    )


def _factor(name: str, value: Any) -> None:
    """Refuse by name what is no factor; never zero, or what is on its way would never arrive."""
    within(name, positive(name, value), 0, MOST)
