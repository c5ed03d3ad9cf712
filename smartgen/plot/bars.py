"""TTST and TBT as bars: what the first seconds cost, and what every later token costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgen.metrics.store import Run
from smartgen.plot.marks import Mark, draw_mark, explain_marks, marks_of
from smartgen.plot.seeds import Point, differing, points
from smartgen.plot.style import (
    BLACK,
    PAGE_INCHES,
    canvas,
    explain_whiskers,
    legend_above,
    looks,
    name_ticks,
    scheme,
    slant,
    whisker,
)
from smartgen.plot.words import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("ttst_s", "tbt_s")
"""What marks may be of: means over requests."""

_WIDTH = 0.8  # of all bars of a group together
_NUMBERED = 14  # bars that leave room for their numbers
_GROUPS = 8  # that fit side by side; of more, each value of a key has a panel
_SIDES = (("ttst_s", "s", 1.0), ("tbt_s", "ms", 1e3))


@dataclass(frozen=True, slots=True)
class _Bar:
    point: Point
    color: str
    label: str
    hatch: str | None
    left: float
    width: float

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


def draw(runs: Sequence[Run], path: Path, marks: Sequence[Mark] = ()) -> None:
    """A bar a run: mean TTST in s on the left, mean TBT in ms on the right.

    Runs that differ in more than the scheme are grouped by what else they differ in, with one
    colour a scheme. Of many groups that differ in two keys, each value of one has a panel; TTST
    then stands above TBT. Runs whose receiving link was saturated are hatched. Over seeds a line
    spans the least and the most.
    """
    found, inside = differing(runs), points(runs)
    groups = _groups(inside, found)
    if len(found) > 1 and len(set(groups)) > _GROUPS:
        _draw_panels(inside, found, path, marks)
    else:
        _draw_sides(inside, found, path, marks)


Differing = Mapping[str, Sequence[Any]]
"""Keys in which points differ, with each run's value."""


# -- two panels side by side


def _draw_sides(
    inside: Sequence[Point], found: Differing, path: Path, marks: Sequence[Mark]
) -> None:
    grouped = bool(found)
    groups = _groups(inside, found)
    bars = _grouped(inside, groups) if grouped else _single(inside)
    ticks = list(dict.fromkeys(groups))
    if not grouped:
        ticks = [bar.label.replace(" (", "\n(") for bar in bars]
    with canvas(path, PAGE_INCHES, 2.2) as figure:
        for axes, (name, unit, scale) in zip(figure.subplots(1, 2), _SIDES, strict=True):
            _draw_bars(axes, bars, name, scale, marks)
            axes.set_ylabel(f"{name.removesuffix('_s').upper()} ({unit})")
            axes.margins(y=0.1)
            if grouped:
                axes.set_xlabel(", ".join(found))
        name_ticks(figure, ticks)
        explain_whiskers(figure.axes[0], inside)
        explain_marks(figure.axes[0], marks)
        if grouped or marks or any(point.is_many for point in inside):
            legend_above(figure, without=() if grouped else [bar.label for bar in bars])


def _single(inside: Sequence[Point]) -> list[_Bar]:
    return [
        _Bar(point, look.color, look.label, look.hatch, number - 0.3, 0.6)
        for number, (point, look) in enumerate(
            zip(inside, looks([point.run for point in inside]), strict=True)
        )
    ]


def _groups(inside: Sequence[Point], found: Differing, without: str = "") -> list[str]:
    """The name of each point's group."""
    return [
        ", ".join(
            say(key, values[point.numbers[0]], point.run)
            if isinstance(values[point.numbers[0]], str)
            else str(values[point.numbers[0]])
            for key, values in found.items()
            if key != without
        )
        for point in inside
    ]


def _grouped(inside: Sequence[Point], groups: Sequence[str]) -> list[_Bar]:
    """Bars of a group stand side by side, in the same order of schemes in every group."""
    names = list(dict.fromkeys(groups))
    taken: dict[tuple[str, str], int] = {}
    places = []
    for point, group in zip(inside, groups, strict=True):
        label = point.run.label
        nth = taken[group, label] = taken.get((group, label), -1) + 1
        places.append((label, nth))
    series = list(dict.fromkeys(places))
    width = _WIDTH / len(series)
    bars = []
    for point, group, place in zip(inside, groups, places, strict=True):
        left = names.index(group) - _WIDTH / 2 + series.index(place) * width
        look = looks([point.run])[0]
        color = scheme(point.run.label)[0]
        bars.append(_Bar(point, color, look.label, look.hatch, left, width * 0.94))
    return bars


# -- a column of panels for each value of a key


def _draw_panels(
    inside: Sequence[Point], found: Differing, path: Path, marks: Sequence[Mark]
) -> None:
    """TTST above TBT. The key with fewest values has the columns."""
    key = min(found, key=lambda name: len({repr(value) for value in found[name]}))
    columns: dict[str, list[Point]] = {}
    for point in inside:
        title = say(key, found[key][point.numbers[0]], point.run)
        columns.setdefault(title, []).append(point)
    with canvas(path, PAGE_INCHES, 3.6) as figure:
        grid = figure.subplots(2, len(columns), sharex="col", sharey="row", squeeze=False)
        for column, (title, below) in enumerate(columns.items()):
            groups = _groups(below, found, without=key)
            bars = _grouped(below, groups)
            for axes, (name, _, scale) in zip(grid[:, column], _SIDES, strict=True):
                _draw_bars(axes, bars, name, scale, marks)
                axes.margins(x=0.02, y=0.1)
            grid[0, column].set_title(title, fontsize=8)
            names = list(dict.fromkeys(groups))
            grid[1, column].set_xticks(range(len(names)), names)
            slant(grid[1, column], 60)
        for axes, (name, unit, _) in zip(grid[:, 0], _SIDES, strict=True):
            axes.set_ylabel(f"{name.removesuffix('_s').upper()} ({unit})")
        figure.align_ylabels(grid[:, 0])
        explain_whiskers(grid[0, 0], inside)
        explain_marks(grid[0, 0], marks)
        legend_above(figure)


# -- bars


def _draw_bars(
    axes: "Axes", bars: Sequence[_Bar], name: str, scale: float, marks: Sequence[Mark]
) -> None:
    read = partial(_mean, name=name, scale=scale)
    for bar in bars:
        value = bar.point.value(read)
        is_none = value != value
        height = 0.0 if is_none else value
        drawn = axes.bar(
            bar.left,
            height,
            bar.width,
            align="edge",
            color=bar.color,
            edgecolor="white",
            linewidth=0,
            hatch=bar.hatch,
            label=bar.label,
        )
        if is_none or len(bars) <= _NUMBERED:
            _number(axes, bar, drawn, height, is_none)
        if bar.point.is_many and not is_none:
            whisker(axes, bar.middle, *bar.point.ends(read))
        for stated in marks_of(marks, name, bar.point.numbers):
            draw_mark(axes, bar.middle, stated * scale, BLACK)


def _number(axes: "Axes", bar: _Bar, drawn: Any, height: float, is_none: bool) -> None:
    """A bar's number above it; beside the line over seeds, if there is one."""
    digits = 2 if height < 10 else 1 if height < 100 else 0
    text = "none" if is_none else f"{height:.{digits}f}"
    if not bar.point.is_many:
        axes.bar_label(drawn, [text], fontsize=5.5, padding=1)
        return
    offset: dict[str, Any] = {"xytext": (2, 1), "textcoords": "offset points"}
    axes.annotate(text, (bar.middle, height), fontsize=5.5, **offset)


def _mean(run: Run, name: str, scale: float) -> float | None:
    mean = run.metrics[name]["mean"]
    return None if mean is None else mean * scale
