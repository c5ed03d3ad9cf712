"""How latencies are spread over requests."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smartgen.metrics.columns import Numbers, equals, floats
from smartgen.metrics.store import Run
from smartgen.plot.style import (
    PAGE_INCHES,
    Look,
    canvas,
    legend_above,
    log_axis,
    looks,
    marked,
    target_line,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(runs: Sequence[Run], path: Path) -> None:
    """Cumulative distributions of TTFT, TTST and TBT over requests, a line a run.

    Requests that did not finish never have a latency: the lines of their runs end below 100 %.
    Requests with too few tokens for a latency do not count. Targets are dotted.
    """
    targets = runs[0].config.get("targets") or {}
    with canvas(path, PAGE_INCHES, 2.0) as figure:
        panels = figure.subplots(1, 3, sharey=True)
        for axes, name in zip(panels, ("ttft_s", "ttst_s", "tbt_s"), strict=True):
            unit, scale = ("ms", 1e3) if name == "tbt_s" else ("s", 1.0)
            for number, (run, look) in enumerate(zip(runs, looks(runs), strict=True)):
                _draw_run(axes, run, look, number, name, scale)
            log_axis(axes, "x")
            target_s = targets.get(name)
            target_line(axes, None if target_s is None else target_s * scale, "x")
            axes.set_ylim(0, 103)
            axes.set_xlabel(f"{name.removesuffix('_s').upper()} ({unit}, log)")
        panels[0].set_ylabel("requests (%)")
        legend_above(figure)


def _draw_run(axes: "Axes", run: Run, look: Look, number: int, name: str, scale: float) -> None:
    values, share = distribution(run, name)
    if not len(values):
        return
    x = np.repeat(values * scale, 2)
    y = np.concatenate([[0.0], np.repeat(share, 2)[:-1]]) * 100
    axes.plot(x, y, markevery=marked(number, len(x)), **look.line())


def distribution(run: Run, name: str) -> tuple[Numbers, Numbers]:
    """Latencies in order, and the share of requests that had at most each."""
    finished = equals(run.requests, "status", "finished")
    values = floats(run.requests, name)
    # to nine decimals: what differs by less differs by the rounding of a clock
    known = np.sort(values[finished & ~np.isnan(values)].round(9))
    count = len(known) + int(np.count_nonzero(~finished))
    return known, np.arange(1, len(known) + 1) / max(1, count)
