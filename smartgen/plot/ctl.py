"""CTL over time: how fast the answer has come so far, as its reader feels it."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from smartgen.metrics.store import Run
from smartgen.metrics.tokens import mean_gaps
from smartgen.plot.style import COLUMN_INCHES, canvas, legend_above, log_ms, looks, marked

STALL_RATIO = 2.0
"""A gap so many times the run's median is a stall."""


def draw(runs: Sequence[Run], path: Path) -> None:
    """A line a run: seconds since the first token across, CTL in ms up (logarithmic).

    Means over requests. Each run's stalls are shaded in its colour.
    """
    with canvas(path, COLUMN_INCHES, 2.0) as figure:
        axes = figure.subplots()
        shaded = False
        for number, (run, look) in enumerate(zip(runs, looks(runs), strict=True)):
            gaps_s = mean_gaps(run.tokens)
            ctl_ms = [value * 1e3 for value in run.metrics["ctl_s"]]
            every = marked(number, len(ctl_ms))
            axes.plot(list(accumulate(gaps_s)), ctl_ms, markevery=every, **look.line())
            for start_s, end_s in stalls(gaps_s):
                axes.axvspan(start_s, end_s, color=look.color, alpha=0.15, linewidth=0)
                shaded = True
        log_ms(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("time since the first token (s)")
        axes.set_ylabel("CTL (ms, log)")
        if shaded:
            note = f"stall (> {STALL_RATIO:g}x median)"
            axes.fill([], [], color="black", alpha=0.15, linewidth=0, label=note)
        legend_above(figure)


def stalls(gaps_s: Sequence[float]) -> list[tuple[float, float]]:
    """When stalls began and ended, in seconds since the first token."""
    if not gaps_s:
        return []
    limit_s = STALL_RATIO * float(np.median(gaps_s))
    times_s = pairwise(accumulate(gaps_s, initial=0.0))
    return [span for span, gap_s in zip(times_s, gaps_s, strict=True) if gap_s > limit_s]
