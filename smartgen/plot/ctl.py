"""CTL over time: how fast the answer has come so far, as its reader feels it."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smartgen.metrics.columns import Numbers
from smartgen.metrics.store import Run
from smartgen.metrics.tokens import mean_gaps, requests_with
from smartgen.plot.panels import drawn_panels, panels
from smartgen.plot.seeds import Point
from smartgen.plot.style import band, explain_band, log_axis, looks, marked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STALL_RATIO = 2.0
"""A gap so many times the run's median is a stall."""

FEWEST = 0.1
"""A mean over a smaller share of the requests is not drawn: it would tell of those few."""


def draw(runs: Sequence[Run], path: Path) -> None:
    """A line a run: seconds since the first token across, CTL in ms up (logarithmic).

    Means over requests that have the token. A line ends where fewer than FEWEST of the requests
    that made a second token are left. Each run's stalls are shaded in its colour. Models, workloads
    and the like have panels of their own. Over seeds a band spans the least and the most of each
    token, at the time of the line's.
    """
    grouped = panels(runs)
    with drawn_panels(path, grouped, _panel, "time since the first token (s)") as grid:
        grid[0].set_ylabel("CTL (ms, log)")
        if any(_line(point)[2] for inside in grouped.values() for point in inside):
            note = f"stall (> {STALL_RATIO:g}x median)"
            grid[0].fill([], [], color="black", alpha=0.15, linewidth=0, label=note)
        explain_band(grid[0], [point for inside in grouped.values() for point in inside])


def _panel(axes: "Axes", inside: Sequence[Point]) -> None:
    found = looks([point.run for point in inside])
    for number, (point, look) in enumerate(zip(inside, found, strict=True)):
        times_s, (ctl_ms, low, high), stalled = _line(point)
        if point.is_many:
            band(axes, times_s, low, high, look.color)
        axes.plot(times_s, ctl_ms, markevery=marked(number, len(ctl_ms)), **look.line())
        for start_s, end_s in stalled:
            axes.axvspan(start_s, end_s, color=look.color, alpha=0.15, linewidth=0)
    log_axis(axes)
    axes.set_xlim(left=0)


def _line(point: Point) -> tuple[Numbers, Sequence[Numbers], list[tuple[float, float]]]:
    """Times since the first token, CTL in ms and its least and most, and stalls."""
    gaps_s, _, _ = point.curves(lambda run: mean_gaps(run.tokens)[: well_known(run)])
    ctl_ms = point.curves(lambda run: np.array(run.metrics["ctl_s"][: well_known(run)]) * 1e3)
    times_s = np.array(list(accumulate(gaps_s.tolist())))
    return times_s, ctl_ms, stalls(gaps_s.tolist())


def well_known(run: Run) -> int:
    """How many tokens after the first enough requests have."""
    left = requests_with(run.tokens)
    return int(np.count_nonzero(left >= FEWEST * left[0])) if len(left) else 0


def stalls(gaps_s: Sequence[float]) -> list[tuple[float, float]]:
    """When stalls began and ended, in seconds since the first token."""
    if not gaps_s:
        return []
    limit_s = STALL_RATIO * float(np.median(gaps_s))
    times_s = pairwise(accumulate(gaps_s, initial=0.0))
    return [span for span, gap_s in zip(times_s, gaps_s, strict=True) if gap_s > limit_s]
