"""Runs that differ only in what was drawn for them are one point: a value and its spread."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smartgen.metrics.columns import Numbers
from smartgen.metrics.labels import differences
from smartgen.metrics.store import Run

SEEDS = ("seed", "workload.seed")
SPREAD = "workload.length_cv"

Read = Callable[[Run], float | None]
"""A number of a run; null where it has none."""


@dataclass(frozen=True)
class Point:
    """Runs of one configuration over seeds, and their places among all runs that are drawn.

    Beside runs of drawn lengths there may be one of the nominal batch (workload.length_cv=0): it
    then gives the value, and the others the spread. Without it the value is the mean.
    """

    runs: Sequence[Run]
    numbers: Sequence[int]

    @property
    def nominal(self) -> Sequence[Run]:
        """Runs that give the value."""
        without = [run for run in self.runs if not _spread(run)]
        return without or self.runs

    @property
    def drawn(self) -> Sequence[Run]:
        """Runs that give the spread."""
        return [run for run in self.runs if _spread(run)] or self.runs

    @property
    def run(self) -> Run:
        """The run that stands for all, where only one can be told of."""
        return self.nominal[0]

    @property
    def is_many(self) -> bool:
        """Whether there is a spread to be drawn."""
        return len(self.runs) > 1

    @property
    def saturated(self) -> bool:
        """Whether any of the runs was saturated."""
        return any(run.saturated for run in self.runs)

    def value(self, read: Read) -> float:
        """The nominal run's number or the mean; NaN where no run has one."""
        known = _known(self.nominal, read)
        return sum(known) / len(known) if known else math.nan

    def ends(self, read: Read) -> tuple[float, float]:
        """The least and the most over seeds."""
        known = _known(self.drawn, read) or [math.nan]
        return min(known), max(known)

    def curves(self, read: Callable[[Run], Numbers]) -> tuple[Numbers, Numbers, Numbers]:
        """As value and ends for a row of numbers; as long as the shortest run's."""
        found = {id(run): np.asarray(read(run), np.float64) for run in self.runs}
        many = min(map(len, found.values()))
        nominal, drawn = (
            np.array([found[id(run)][:many] for run in runs]) for runs in (self.nominal, self.drawn)
        )
        return nominal.mean(axis=0), drawn.min(axis=0), drawn.max(axis=0)


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Differences of runs but for seeds, and for a spread that some runs have and others not."""
    found = differences(runs)
    seeds = [found.pop(key, None) for key in SEEDS]
    spreads = set(found.get(SPREAD, ()))
    if any(seeds) and len(spreads) == 2 and not all(spreads):
        found.pop(SPREAD)
    return found


def points(runs: Sequence[Run]) -> list[Point]:
    """Runs put together over seeds, in the order of the first of each.

    Runs that are the same in their seeds, too, such as those of two versions, stay apart.
    """
    found = differing(runs)
    seen: Counter[tuple[str, ...]] = Counter()
    grouped: dict[tuple[Any, ...], list[int]] = {}
    for number, run in enumerate(runs):
        key = (run.label, *(repr(values[number]) for values in found.values()))
        drawn = (*key, repr(_drawn_by(run)))
        grouped.setdefault((*key, seen[drawn]), []).append(number)
        seen[drawn] += 1
    return [Point([runs[number] for number in numbers], numbers) for numbers in grouped.values()]


def _known(runs: Sequence[Run], read: Read) -> list[float]:
    return [value for value in map(read, runs) if value is not None and not math.isnan(value)]


def _spread(run: Run) -> Any:
    return _workload(run).get("length_cv")


def _drawn_by(run: Run) -> tuple[Any, ...]:
    return run.config.get("seed"), _workload(run).get("seed"), _spread(run)


def _workload(run: Run) -> Any:
    return run.config.get("workload") or {}
