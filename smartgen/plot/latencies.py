"""TTST and TBT over what was swept: what a handover costs at once, and what it costs later."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgen.metrics.store import Run
from smartgen.plot.marks import Mark, explain_marks
from smartgen.plot.style import GUIDE, PAGE_INCHES, canvas, explain_band, legend_above
from smartgen.plot.swept import Swept, explain_saturated, swept

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("ttst_s", "tbt_s")
"""What marks may be of: means over requests."""

_IDEAL = (0, (6, 2))


def draw(runs: Sequence[Run], path: Path, marks: Sequence[Mark] = ()) -> None:
    """Mean TTST in s left, mean TBT in ms right, over the one number in which runs differ.

    A line a scheme, a band over seeds; what else runs differ in has dashes of its own. Networks
    count as their rates; full transfer over the unlimited one is a line across, the ideal.
    """
    found = swept("latencies", runs)
    with canvas(path, PAGE_INCHES, 2.0) as figure:
        left, right = figure.subplots(1, 2)
        for axes, name, unit, scale in ((left, "ttst_s", "s", 1.0), (right, "tbt_s", "ms", 1e3)):
            _panel(axes, found, name, scale, marks)
            axes.set_xlabel(found.axis)
            axes.set_ylabel(f"{name.removesuffix('_s').upper()} ({unit})")
        _explain(left, found)
        explain_band(left, found.points)
        explain_saturated(left, runs)
        explain_marks(left, marks)
        legend_above(figure)


def _panel(axes: "Axes", found: Swept, name: str, scale: float, marks: Sequence[Mark]) -> None:
    value = partial(_mean, name=name)
    for line in found.lines:
        line.draw(axes, value, line.dashes, scale=scale)
    for line in found.lines:
        line.draw_marks(axes, marks, name, scale)
    if found.ideal is not None:
        ideal = found.ideal.value(lambda run: value(run.metrics)) * scale
        axes.axhline(ideal, color=GUIDE, linewidth=0.9, linestyle=_IDEAL)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.04)
    found.scale_x(axes)


def _mean(metrics: Any, name: str) -> float | None:
    value: float | None = metrics[name]["mean"]
    return value


def _explain(axes: "Axes", found: Swept) -> None:
    """Legend entries: colours are schemes; if something else varies, dashes are that."""
    first = {line.scheme: line for line in reversed(found.lines)}
    for name in dict.fromkeys(line.scheme for line in found.lines):
        line = first[name]
        axes.plot([], [], color=line.color, linestyle="-", marker=line.marker, label=name)
    others = {line.other: line.dashes for line in found.lines}
    if len(others) > 1:
        for other, dashes in others.items():
            axes.plot([], [], color=GUIDE, linestyle=dashes, linewidth=1.0, label=other)
    if found.ideal is not None:
        axes.plot([], [], color=GUIDE, linestyle=_IDEAL, linewidth=0.9, label="ideal")
