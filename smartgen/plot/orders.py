"""Orders of pushing side by side: what must be fetched, and what that costs (as Figure 15)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smartgen.metrics.labels import differences
from smartgen.metrics.store import Run
from smartgen.plot.style import GUIDE, PAGE_INCHES, canvas, legend_above, name_ticks, scheme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROFILE = "partial_parallel"
"""The scheme that others are compared with: the order ``profile``, without speculation."""

STATED_LESS = {"order_random": 0.51, "order_sequential": 0.38, "order_streaming_llm": 0.18}
"""By how much less is fetched in the profile's order, at most (C062, C063, C065)."""

STATED_FASTER = {"order_random": 1.3, "order_sequential": 1.2, "order_streaming_llm": 1.1}
"""How much faster it is, at most (C060, C061, C064)."""

STATED = "the paper's largest difference"

_WIDTH = 0.84  # of all bars of a group together
_SEEDS = ("seed", "workload.seed")

Points = Mapping[tuple[str, str], Sequence[Run]]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Chart:
    """Runs by group (what else they differ in) and scheme, one for each seed."""

    points: Points
    groups: Sequence[str]
    schemes: Sequence[str]

    @property
    def base(self) -> str:
        """The scheme to compare with: the first one where the profile's is not there."""
        return PROFILE if PROFILE in self.schemes else self.schemes[0]

    def left(self, group: str, name: str) -> float:
        """Where a bar begins."""
        width = _WIDTH / len(self.schemes)
        return self.groups.index(group) - _WIDTH / 2 + self.schemes.index(name) * width

    def fetched(self, group: str, name: str) -> Values:
        """On-demand ratios in %, one a seed; NaN where nothing is selected."""
        found = [run.metrics["on_demand_ratio"] for run in self.points.get((group, name), ())]
        return np.array([np.nan if value is None else 100 * value for value in found])

    def slower(self, group: str, name: str) -> Values:
        """TBT over that of the base, each seed's over its own."""
        mine, base = (self._tbt(group, each) for each in (name, self.base))
        return np.array([mine[seed] / base[seed] for seed in mine if seed in base])

    def _tbt(self, group: str, name: str) -> dict[object, float]:
        found = {}
        for run in self.points.get((group, name), ()):
            mean = run.metrics["tbt_s"]["mean"]
            found[run.config.get("seed")] = np.nan if mean is None else mean
        return found


def draw(runs: Sequence[Run], path: Path) -> None:
    """On-demand ratio on the left, TBT over that of the profile's order on the right.

    Bars are means over runs that differ in the seed alone, error bars their standard deviation.
    Short lines mark what the paper states as the largest difference: on the left, what the other
    order would fetch if the profile's fetched so much less than it (left out above 100 %).
    """
    chart = _sorted(runs)
    with canvas(path, PAGE_INCHES, 2.2) as figure:
        left, right = figure.subplots(1, 2)
        for group in chart.groups:
            for name in chart.schemes:
                _bar(left, chart, group, name, chart.fetched(group, name))
                _bar(right, chart, group, name, chart.slower(group, name))
        _mark_stated(left, right, chart)  # drawn last, told last
        right.axhline(1, color=GUIDE, linewidth=0.6)
        left.set_ylabel("on-demand ratio (%)")
        right.set_ylabel(f"TBT over {chart.base}'s")
        for axes in (left, right):
            axes.margins(y=0.08)
        name_ticks(figure, chart.groups)
        legend_above(figure)


def _sorted(runs: Sequence[Run]) -> _Chart:
    found = {key: values for key, values in differences(runs).items() if key not in _SEEDS}
    points: dict[tuple[str, str], list[Run]] = {}
    for number, run in enumerate(runs):
        group = ", ".join(str(values[number]) for values in found.values())
        points.setdefault((group, run.label), []).append(run)
    groups = list(dict.fromkeys(group for group, _ in points))
    return _Chart(points, groups, list(dict.fromkeys(name for _, name in points)))


def _bar(axes: "Axes", chart: _Chart, group: str, name: str, values: Values) -> None:
    width = _WIDTH / len(chart.schemes) * 0.94
    known = values[~np.isnan(values)]
    axes.bar(
        chart.left(group, name),
        known.mean() if len(known) else 0.0,
        width,
        align="edge",
        color=scheme(name)[0],
        label=name,
    )
    if len(known) > 1:
        middle = chart.left(group, name) + width / 2
        error = known.std(ddof=1)
        axes.errorbar(
            middle, known.mean(), error, color="black", elinewidth=0.7, capsize=1.5, capthick=0.7
        )


def _mark_stated(left: "Axes", right: "Axes", chart: _Chart) -> None:
    if PROFILE not in chart.schemes:
        return
    width = _WIDTH / len(chart.schemes) * 0.94
    for group in chart.groups:
        profile = chart.fetched(group, PROFILE)
        for name in (name for name in chart.schemes if name in STATED_LESS):
            start = chart.left(group, name)
            if len(profile) and profile.mean() <= 100 * (1 - STATED_LESS[name]):
                _line(left, start, width, profile.mean() / (1 - STATED_LESS[name]))
            _line(right, start, width, STATED_FASTER[name])


def _line(axes: "Axes", start: float, width: float, height: float) -> None:
    # an error bar, since legends tell containers last
    axes.errorbar(
        start + width / 2,
        height,
        xerr=width / 2,
        fmt="none",
        color="black",
        elinewidth=1.6,
        label=STATED,
    )
