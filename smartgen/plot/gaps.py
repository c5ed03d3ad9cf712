"""The gap before each token: how long decoding takes to settle after the handover."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smartgen.metrics.columns import Numbers
from smartgen.metrics.store import Run
from smartgen.metrics.tokens import mean_gaps
from smartgen.plot.ctl import well_known
from smartgen.plot.marks import Mark, draw_mark, explain_marks, marks_of
from smartgen.plot.panels import drawn_panels, panels
from smartgen.plot.seeds import Point
from smartgen.plot.style import Look, band, explain_band, log_axis, looks, marked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("tbt_s", "worst_gap_s", "delivered_token")
"""What marks may be of: the mean gap after the second token, drawn at the line's end; the largest
of them, drawn where the run's own is; the token by which everything was delivered, on the line."""

_MANY = 40  # tokens


def draw(runs: Sequence[Run], path: Path, marks: Sequence[Mark] = ()) -> None:
    """A line a run: the token's number across, the gap before it in ms up, a mean over requests.

    The y axis is logarithmic, so that the second token's gap, many times the others, fits; with
    more than 40 tokens so is the x axis, since it is at the start that gaps change. Models,
    workloads and the like have panels of their own. Over seeds a band spans the least and the most.
    """
    grouped = panels(runs)
    inside = [point for points in grouped.values() for point in points]
    is_long = max(len(_gaps_ms(point)[0]) for point in inside) > _MANY
    panel = partial(_panel, marks=marks, is_long=is_long)
    with drawn_panels(path, grouped, panel, "token (log)" if is_long else "token") as grid:
        grid[0].set_ylabel("TBT (ms, log)")
        explain_band(grid[0], inside)
        explain_marks(grid[0], marks)


def _panel(axes: "Axes", inside: Sequence[Point], marks: Sequence[Mark], is_long: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    found = looks([point.run for point in inside])
    for number, (point, look) in enumerate(zip(inside, found, strict=True)):
        gaps_ms, low, high = _gaps_ms(point)
        tokens = np.arange(2, 2 + len(gaps_ms))
        if point.is_many:
            band(axes, tokens, low, high, look.color)
        every = (0.02 * number, 0.1) if is_long else marked(number, len(gaps_ms))
        axes.plot(tokens, gaps_ms, markevery=every, **look.line())
    for point, look in zip(inside, found, strict=True):
        _draw_marks(axes, point, look, marks)
    log_axis(axes)
    if is_long:
        log_axis(axes, "x")
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _gaps_ms(point: Point) -> tuple[Numbers, Numbers, Numbers]:
    return point.curves(lambda run: mean_gaps(run.tokens)[: well_known(run)] * 1e3)


def _draw_marks(axes: "Axes", point: Point, look: Look, marks: Sequence[Mark]) -> None:
    gaps_ms, _, _ = _gaps_ms(point)
    later = gaps_ms[1:]
    if not len(later):
        return
    for value_s in marks_of(marks, "tbt_s", point.numbers):
        draw_mark(axes, len(gaps_ms) + 1, value_s * 1e3, look.color)
    for value_s in marks_of(marks, "worst_gap_s", point.numbers):
        draw_mark(axes, 3 + int(np.argmax(later)), value_s * 1e3, look.color)
    for token in marks_of(marks, "delivered_token", point.numbers):
        draw_mark(axes, token, float(np.interp(token, range(3, 3 + len(later)), later)), look.color)
