"""Figures that are made of claims and not of runs: their spread, and what they are sensitive to."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smartgen.plot.style import (
    BLACK,
    BLUE,
    GREEN,
    GUIDE,
    ORANGE,
    PAGE_INCHES,
    VERMILLION,
    canvas,
    legend_above,
    scheme,
)
from smartgen.reproduce.analysis import Analysed
from smartgen.reproduce.beyond import METRICS, Compared
from smartgen.reproduce.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = NDArray[np.float64]

_COLORS = {
    "fit": (BLUE, "o"),
    "held_out": (GREEN, "s"),
    "parameter_free": (BLACK, "D"),
    "contradiction": (VERMILLION, "X"),
}
_ROW_INCHES = 0.135


def draw_claims(rows: Sequence[Row], path: Path) -> None:
    """Simulated over claimed for each numeric claim, and 90 % of the drawn sets."""
    numeric = [row for row in rows if row.error is not None]
    columns = np.array_split(np.arange(len(numeric)), 2)
    height = _ROW_INCHES * len(columns[0]) + 0.5
    with canvas(path, PAGE_INCHES, height) as figure:
        for axes, numbers in zip(figure.subplots(1, 2), columns, strict=True):
            _draw_column(axes, [numeric[i] for i in numbers])
        figure.supxlabel("simulated over claimed; bars: 90 % of the drawn sets", fontsize=7)
        legend_above(figure)


def _draw_column(axes: "Axes", rows: Sequence[Row]) -> None:
    axes.axvspan(0.9, 1.1, color="#eeeeee", linewidth=0)
    axes.axvline(1.0, color=GUIDE, linewidth=0.8)
    for place, row in enumerate(rows):
        color, marker = _COLORS[row.claim.set]
        claimed = row.claim.value
        if row.sets:
            low, high = row.sets[0] / claimed, row.sets[1] / claimed
            axes.plot([low, high], [place, place], color=color, linewidth=2.5, alpha=0.35)
        label = row.claim.set.replace("_", " ")
        axes.plot(row.simulated / claimed, place, marker, color=color, markersize=3, label=label)
    texts = [f"{row.claim.claim.replace(', at most', '')} ({row.claim.claimed})" for row in rows]
    axes.set_yticks(range(len(rows)), texts, fontsize=5.2)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0.55, 1.6)
    axes.grid(visible=False)


def draw_sensitivity(of: Analysed, path: Path) -> None:
    """A tornado for each held-out claim: what the constants that move it most do to it.

    Each constant goes from the low to the high end of its range, the others stay as they are.
    """
    low, high = 100 * of.changes(0), 100 * of.changes(1)
    moved = [i for i in range(len(of.held_out)) if np.abs([low[i], high[i]]).max() > _LEAST]
    names = [_short(constant.name) for constant, _, _ in of.ends]
    lines = -(-len(moved) // _COLUMNS)
    with canvas(path, PAGE_INCHES, 0.78 * lines + 0.3) as figure:
        grid = figure.subplots(lines, _COLUMNS, squeeze=False)
        for axes in grid.flat[len(moved) :]:
            axes.set_axis_off()
        for axes, i in zip(grid.flat, moved, strict=False):
            claim = of.held_out[i]
            _draw_tornado(axes, names, low[i], high[i])
            told = f"{claim.id} {claim.claim}".removesuffix(", at most")
            axes.set_title(told, fontsize=5.2, pad=2, loc="right")
        figure.supxlabel("change of the simulated value (%)", fontsize=7)
        legend_above(figure)


_COLUMNS, _MOST = 3, 4
_SEEN = 0.05
_LEAST = 0.5
"""Percent; claims that no constant moves by that are left out."""


def _short(name: str) -> str:
    """A constant's name without its part and unit."""
    parts = name.split(".")
    name = {"exponents": "g of ", "hack": "hack "}.get(parts[-2], "") + parts[-1]
    for unit in ("_gbytes_per_s", "_ns_per_byte", "_ns_per_token", "_us", "_ms", "_ratio"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _draw_tornado(axes: "Axes", names: Sequence[str], low: Numbers, high: Numbers) -> None:
    width = np.maximum(np.maximum(low, high), 0) - np.minimum(np.minimum(low, high), 0)
    most = [i for i in np.argsort(-width, kind="stable")[:_MOST] if width[i] > _SEEN]
    places = np.arange(len(most))
    for values, color, label in ((low, ORANGE, "low end"), (high, BLUE, "high end of the range")):
        axes.barh(places, values[most], color=color, height=0.7, alpha=0.8, label=label)
    axes.axvline(0, color=GUIDE, linewidth=0.6)
    axes.set_yticks(places, [names[i] for i in most], fontsize=5.5)
    axes.tick_params("x", labelsize=5.5, pad=1)
    axes.set_ylim(_MOST - 0.5, -0.5)
    reach = 1.1 * float(np.max(np.abs([low[most], high[most]])))
    axes.set_xlim(-reach, reach)
    axes.grid(visible=False)


def draw_adaptive(rows: Sequence[Compared], path: Path) -> None:
    """Each adaptive scheme's latencies over those of the fixed scheme, by links; bars are seeds."""
    links = list(dict.fromkeys(row.links for row in rows))
    schemes = [s for s in dict.fromkeys(row.scheme for row in rows) if s.startswith("smartgen_")]
    found = {(row.links, row.scheme, row.metric): row for row in rows}
    with canvas(path, PAGE_INCHES, 2.3) as figure:
        for axes, (metric, name) in zip(
            figure.subplots(1, len(METRICS)), METRICS.items(), strict=True
        ):
            axes.axhline(1.0, color=GUIDE, linewidth=0.8)
            for number, label in enumerate(schemes):
                shift = (number - (len(schemes) - 1) / 2) * 0.15
                _draw_ratios(axes, label, shift, [found.get((at, label, metric)) for at in links])
            axes.set_xticks(range(len(links)), links, rotation=40, ha="right", fontsize=6)
            axes.set_ylabel(f"{name}\nover smartgen's")
        legend_above(figure)


def _draw_ratios(axes: "Axes", label: str, shift: float, rows: Sequence[Compared | None]) -> None:
    color, marker = scheme(label)
    for number, row in enumerate(rows):
        if row is not None:
            x = number + shift
            axes.plot([x, x], [min(row.ratios), max(row.ratios)], color=color, linewidth=1.0)
            axes.plot(x, np.mean(row.ratios), marker, color=color, markersize=3.5, label=label)
