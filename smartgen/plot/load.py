"""Load over time: requests in the system, batch sizes, and what the network carries."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smartgen.metrics.columns import equals, floats
from smartgen.metrics.load import Steps, requests_in_system
from smartgen.metrics.store import Run
from smartgen.plot.style import PAGE_INCHES, canvas, legend_above, looks

_BINS = 120


def draw(runs: Sequence[Run], path: Path) -> None:
    """Panels over time, a line a run: requests in the system, in batches, and Gbps received.

    Every step is the mean over a 120th of the longest run. The network's panel is drawn if all
    runs recorded their transfers, as if each carried its bytes evenly from its first to its last.
    """
    end_s = max(run.metrics["makespan_s"] for run in runs) or 1.0
    edges_s = np.linspace(0.0, end_s, _BINS + 1)
    panels = {"in the system": _in_system, "in batches": _in_batches}
    if all(run.transfers is not None for run in runs):
        panels["received in all (Gbps)"] = _received
    with canvas(path, PAGE_INCHES, 0.4 + 1.2 * len(panels)) as figure:
        grid = figure.subplots(len(panels), 1, sharex=True)
        for axes, (name, steps) in zip(grid, panels.items(), strict=True):
            for run, look in zip(runs, looks(runs), strict=True):
                line = look.line() | {"marker": "", "linewidth": 1.0, "drawstyle": "steps-pre"}
                means = steps(run).means(edges_s)
                axes.plot(edges_s, [means[0], *means], **line)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(name)
        grid[-1].set_xlim(0, end_s)
        grid[-1].set_xlabel("time (s)")
        figure.align_ylabels(grid)
        legend_above(figure)


def _in_system(run: Run) -> Steps:
    return requests_in_system(run.requests, run.metrics["makespan_s"])


def _in_batches(run: Run) -> Steps:
    table = run.iterations
    return Steps(*(floats(table, name) for name in ("start_s", "end_s", "batch_size")))


def _received(run: Run) -> Steps:
    table = run.transfers
    assert table is not None
    starts_s, ends_s = floats(table, "start_s"), floats(table, "end_s")
    moved = (ends_s > starts_s) & equals(table, "status", "landed")
    bits = floats(table, "bytes")[moved] * 8e-9
    starts_s, ends_s = starts_s[moved], ends_s[moved]
    return Steps(starts_s, ends_s, bits / (ends_s - starts_s))
