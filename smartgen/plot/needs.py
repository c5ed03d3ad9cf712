"""How much is needed, most often of bandwidth, until enough requests keep their targets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smartgen.errors import SmartGenError
from smartgen.metrics.store import Run
from smartgen.plot.style import COLUMN_INCHES, GUIDE, canvas, explain_band, legend_above
from smartgen.plot.swept import Line, explain_saturated, swept

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WANTED = 0.9
"""The share of requests that should keep every target, as planners usually ask for."""


def draw(runs: Sequence[Run], path: Path) -> None:
    """A line a scheme: the share of requests that kept every target over the swept number.

    Where a line comes to stay above WANTED it is marked, and the legend says at which number;
    between two points it is interpolated linearly. Over seeds a line is
    the mean and a band spans the least and the most. Points of saturated runs are hollow.
    """
    found = swept("needs", runs)
    if any(run.metrics.get("attained_ratio") is None for run in runs):
        raise SmartGenError(
            "plot='needs' needs runs with targets; set targets.ttft_s, targets.ttst_s or "
            "targets.tbt_s"
        )
    with canvas(path, COLUMN_INCHES, 2.2) as figure:
        axes = figure.subplots()
        label = f"wanted: {WANTED:.0%} (between points: linear)"
        axes.axhline(WANTED * 100, color=GUIDE, linewidth=0.8, linestyle=(0, (1, 1)), label=label)
        for number, line in enumerate(found.lines):
            _draw_line(axes, line, number)
        explain_saturated(axes, runs)
        explain_band(axes, found.points)
        axes.set_ylim(-4, 106)
        axes.set_xlabel(found.axis)
        axes.set_ylabel("requests that keep targets (%)")
        legend_above(figure)


def _draw_line(axes: "Axes", line: Line, number: int) -> None:
    told, at = needed(line.x, line.values(_attained))
    line.draw(axes, _attained, line.dashes, f"{line.label}: {told}", scale=100)
    if at is not None:
        axes.plot([at, at], [-4, WANTED * 100], color=line.color, linewidth=0.7, linestyle=":")
        axes.plot(at, WANTED * 100, color=line.color, marker="|", markersize=9, markeredgewidth=1.5)
        place = (at, 2 + 14 * number % 70)
        offset: dict[str, Any] = {"xytext": (2, 0), "textcoords": "offset points"}
        axes.annotate(f"{at:.3g}", place, color=line.color, fontsize=6.5, **offset)


def _attained(metrics: Mapping[str, Any]) -> float | None:
    share: float | None = metrics["attained_ratio"]
    return share


def needed(
    x: npt.NDArray[np.float64], share: npt.NDArray[np.float64], wanted: float = WANTED
) -> tuple[str, float | None]:
    """From which x on all measured shares reach wanted: in words, and as a number if known."""
    short = np.flatnonzero(share < wanted)
    if not len(short):
        return f"at most {x[0]:.3g}", None
    last = int(short[-1])
    if last + 1 == len(x):
        return f"more than {x[-1]:.3g}", None
    part = (wanted - share[last]) / (share[last + 1] - share[last])
    at = float(x[last] + part * (x[last + 1] - x[last]))
    return f"{at:.3g}", at
