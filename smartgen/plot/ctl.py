"""CTL over time: how fast the answer has come so far, as its reader feels it."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from smartgen.metrics.store import Run
from smartgen.metrics.tokens import mean_gaps, requests_with
from smartgen.plot.style import COLUMN_INCHES, canvas, legend_above, log_axis, looks, marked

STALL_RATIO = 2.0
"""A gap so many times the run's median is a stall."""

FEWEST = 0.1
"""A mean over a smaller share of the requests is not drawn: it would tell of those few."""


def draw(runs: Sequence[Run], path: Path) -> None:
    """A line a run: seconds since the first token across, CTL in ms up (logarithmic).

    Means over requests that have the token. A line ends where fewer than FEWEST of the requests
    that made a second token are left. Each run's stalls are shaded in its colour.
    """
    with canvas(path, COLUMN_INCHES, 2.0) as figure:
        axes = figure.subplots()
        shaded = False
        for number, (run, look) in enumerate(zip(runs, looks(runs), strict=True)):
            many = well_known(run)
            gaps_s = mean_gaps(run.tokens)[:many].tolist()
            ctl_ms = [value * 1e3 for value in run.metrics["ctl_s"][:many]]
            every = marked(number, len(ctl_ms))
            axes.plot(list(accumulate(gaps_s)), ctl_ms, markevery=every, **look.line())
            for start_s, end_s in stalls(gaps_s):
                axes.axvspan(start_s, end_s, color=look.color, alpha=0.15, linewidth=0)
                shaded = True
        log_axis(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("time since the first token (s)")
        axes.set_ylabel("CTL (ms, log)")
        if shaded:
            note = f"stall (> {STALL_RATIO:g}x median)"
            axes.fill([], [], color="black", alpha=0.15, linewidth=0, label=note)
        legend_above(figure)


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
