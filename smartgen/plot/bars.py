"""TTST and TBT side by side: what the first seconds cost, and what every later token costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smartgen.metrics.labels import differences
from smartgen.metrics.store import Run
from smartgen.plot.style import PAGE_INCHES, Look, canvas, legend_above, looks, name_ticks, scheme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 0.8  # of all bars of a group together
_NUMBERED = 14  # bars that leave room for their numbers


@dataclass(frozen=True, slots=True)
class _Bar:
    run: Run
    color: str
    label: str
    hatch: str | None
    left: float
    width: float


def draw(runs: Sequence[Run], path: Path) -> None:
    """A bar a run: mean TTST in s on the left, mean TBT in ms on the right.

    Runs that differ in more than the scheme are grouped by what else they differ in, with one
    colour a scheme. Runs whose receiving link was saturated are hatched.
    """
    found = differences(runs)
    grouped = bool(found)
    bars = _grouped(runs, found) if grouped else _single(runs, looks(runs))
    ticks = (
        _group_names(runs, found) if grouped else [bar.label.replace(" (", "\n(") for bar in bars]
    )
    with canvas(path, PAGE_INCHES, 2.2) as figure:
        for axes, name, unit, scale in zip(
            figure.subplots(1, 2), ("ttst_s", "tbt_s"), ("s", "ms"), (1, 1e3), strict=True
        ):
            _draw_bars(axes, bars, name, scale)
            axes.set_ylabel(f"{name.removesuffix('_s').upper()} ({unit})")
            axes.margins(y=0.1)
            if grouped:
                axes.set_xlabel(", ".join(found))
        name_ticks(figure, ticks)
        if grouped:
            legend_above(figure)


def _single(runs: Sequence[Run], found: Sequence[Look]) -> list[_Bar]:
    return [
        _Bar(run, look.color, look.label, look.hatch, number - 0.3, 0.6)
        for number, (run, look) in enumerate(zip(runs, found, strict=True))
    ]


def _group_names(runs: Sequence[Run], found: dict[str, list[object]]) -> list[str]:
    return list(dict.fromkeys(_group_of(number, found) for number in range(len(runs))))


def _group_of(number: int, found: dict[str, list[object]]) -> str:
    return ", ".join(str(values[number]) for values in found.values())


def _grouped(runs: Sequence[Run], found: dict[str, list[object]]) -> list[_Bar]:
    """Bars of a group stand side by side, in the same order of schemes in every group."""
    groups = _group_names(runs, found)
    taken: dict[tuple[str, str], int] = {}
    places = []
    for number, run in enumerate(runs):
        key = (_group_of(number, found), run.label)
        nth = taken[key] = taken.get(key, -1) + 1
        places.append((run.label, nth))
    series = list(dict.fromkeys(places))
    width = _WIDTH / len(series)
    bars = []
    for number, (run, place) in enumerate(zip(runs, places, strict=True)):
        left = groups.index(_group_of(number, found)) - _WIDTH / 2 + series.index(place) * width
        look = looks([run])[0]
        bars.append(_Bar(run, scheme(run.label)[0], look.label, look.hatch, left, width * 0.94))
    return bars


def _draw_bars(axes: "Axes", bars: Sequence[_Bar], name: str, scale: float) -> None:
    for bar in bars:
        mean = bar.run.metrics[name]["mean"]
        height = 0.0 if mean is None else mean * scale
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
        if mean is None or len(bars) <= _NUMBERED:
            digits = 2 if height < 10 else 1 if height < 100 else 0
            text = "none" if mean is None else f"{height:.{digits}f}"
            axes.bar_label(drawn, [text], fontsize=5.5, padding=1)
