"""Latencies over what is swept, most often the request rate: what a load costs, and up to where."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgen.metrics.compare import utilisation
from smartgen.metrics.store import Run
from smartgen.plot.style import (
    GUIDE,
    PAGE_INCHES,
    canvas,
    explain_band,
    legend_above,
    log_axis,
    target_line,
)
from smartgen.plot.swept import Swept, explain_saturated, swept

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MEDIAN, _TAIL = "-", (0, (3, 1.5))


def draw(runs: Sequence[Run], path: Path) -> None:
    """Panels over the swept number: TTFT, TTST, TBT (logarithmic), goodness and utilisation.

    A line a scheme, medians solid and 99th percentiles dashed; utilisation has the fullest link
    solid and the busiest prefill GPU dashed. Over seeds a line is the mean and a band spans the
    least and the most. Points of saturated runs are hollow. Where targets are set they are dotted,
    and the share of requests that kept them all has a panel, as has their number a second if
    requests arrived over time.
    """
    found = swept("rate", runs)
    panels = _panels(runs)
    columns = 2 if len(panels) == 4 else 3
    rows = -(-len(panels) // columns)
    with canvas(path, PAGE_INCHES, 1.75 * rows) as figure:
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            panel(axes, found)
            axes.margins(x=0.04)
            found.scale_x(axes)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel(found.axis)
            axes.tick_params(labelbottom=True)
        _explain(grid.flat[0], runs)
        explain_band(grid.flat[0], found.points)
        legend_above(figure)


Panel = Callable[["Axes", Swept], None]


def _panels(runs: Sequence[Run]) -> list[Panel]:
    targets = runs[0].config.get("targets") or {}
    panels: list[Panel] = [
        partial(_latency, name=name, target_s=targets.get(name))
        for name in ("ttft_s", "ttst_s", "tbt_s")
    ]
    if any(run.metrics.get("attained_ratio") is not None for run in runs):
        panels.append(_attained)
    if any(run.metrics.get("goodput_per_s") is not None for run in runs):
        panels.append(_goodput)
    return [*panels, _utilisation]


def _latency(axes: "Axes", found: Swept, name: str, target_s: float | None) -> None:
    unit, scale = ("ms", 1e3) if name == "tbt_s" else ("s", 1.0)
    for line in found.lines:
        for percentile, dashes in (("p50", _MEDIAN), ("p99", _TAIL)):
            value = partial(_percentile, name=name, percentile=percentile)
            label = line.label if percentile == "p50" else None
            line.draw(axes, value, dashes, label, scale)
    log_axis(axes)
    target_line(axes, None if target_s is None else target_s * scale)
    axes.set_ylabel(f"{name.removesuffix('_s').upper()} ({unit}, log)")


def _percentile(metrics: Mapping[str, Any], name: str, percentile: str) -> float | None:
    value: float | None = metrics[name][percentile]
    return value


def _attained(axes: "Axes", found: Swept) -> None:
    for line in found.lines:
        line.draw(axes, lambda metrics: metrics.get("attained_ratio"), _MEDIAN, scale=100)
    axes.set_ylim(-4, 104)
    axes.set_ylabel("targets kept (%)")


def _goodput(axes: "Axes", found: Swept) -> None:
    for line in found.lines:
        line.draw(axes, lambda metrics: metrics.get("goodput_per_s"), _MEDIAN)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("goodput (1/s)")


def _utilisation(axes: "Axes", found: Swept) -> None:
    for line in found.lines:
        for kind, prefix, dashes in (("nic", "", _MEDIAN), ("gpu", "prefill", _TAIL)):
            value = partial(utilisation, kind=kind, prefix=prefix)
            line.draw(axes, value, dashes, scale=100)
    axes.set_ylim(-4, 104)
    axes.set_ylabel("NIC, prefill GPU (%)")


def _explain(axes: "Axes", runs: Sequence[Run]) -> None:
    """Legend entries for what is not a scheme."""
    axes.plot([], [], color=GUIDE, linestyle=_MEDIAN, label="median; NIC")
    axes.plot([], [], color=GUIDE, linestyle=_TAIL, label="99th percentile; prefill GPU")
    explain_saturated(axes, runs)
