"""Figures that are made of claims and not of runs: their spread, and what they are sensitive to."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
)
from smartgen.reproduce.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    "fit": (BLUE, "o"),
    "held_out": (GREEN, "s"),
    "parameter_free": (BLACK, "D"),
    "contradiction": (VERMILLION, "X"),
}
_ROW_INCHES = 0.135


def draw_claims(rows: Sequence[Row], path: Path) -> None:
    """Simulated over claimed for each numeric claim, and 90 % of the equally good sets."""
    numeric = [row for row in rows if row.error is not None]
    columns = np.array_split(np.arange(len(numeric)), 2)
    height = _ROW_INCHES * len(columns[0]) + 0.5
    with canvas(path, PAGE_INCHES, height) as figure:
        for axes, numbers in zip(figure.subplots(1, 2), columns, strict=True):
            _draw_column(axes, [numeric[i] for i in numbers])
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
    texts = [f"{row.claim.claim} ({row.claim.claimed})" for row in rows]
    axes.set_yticks(range(len(rows)), texts, fontsize=4.8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0.55, 1.6)
    axes.set_xlabel("simulated / claimed; bars: 90 % of equally good sets", fontsize=6)
    axes.grid(visible=False)


def draw_sensitivity(
    names: Sequence[str], constants: Sequence[str], low: np.ndarray, high: np.ndarray, path: Path
) -> None:
    """A tornado for each claim: the constants that move it most, from low to high of their range.

    low, high: relative change of each claim [claims, constants] at either end.
    """
    columns = 4
    lines = -(-len(names) // columns)
    with canvas(path, PAGE_INCHES, 0.82 * lines + 0.35) as figure:
        grid = figure.subplots(lines, columns, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number < len(names):
                _draw_tornado(axes, names[number], constants, low[number], high[number])
            else:
                axes.set_axis_off()
        for axes in grid[-1]:
            axes.set_xlabel("change (%)", fontsize=6)
        legend_above(figure)


_MOST = 4  # constants of a tornado


def _draw_tornado(
    axes: "Axes", name: str, constants: Sequence[str], low: np.ndarray, high: np.ndarray
) -> None:
    width = np.maximum(np.maximum(low, high), 0) - np.minimum(np.minimum(low, high), 0)
    most = np.argsort(-width, kind="stable")[:_MOST]
    places = np.arange(len(most))
    for values, color, label in ((low, ORANGE, "low end"), (high, BLUE, "high end")):
        axes.barh(places, 100 * values[most], color=color, height=0.7, alpha=0.85, label=label)
    axes.axvline(0, color=GUIDE, linewidth=0.6)
    axes.set_yticks(places, [constants[i] for i in most], fontsize=4.6)
    axes.tick_params("x", labelsize=5)
    axes.set_ylim(_MOST - 0.5, -0.5)
    reach = max(2.0, 110 * float(np.max(np.abs(np.concatenate([low[most], high[most]])))))
    axes.set_xlim(-reach, reach)
    axes.set_title(name, fontsize=5.2, pad=2)
    axes.grid(visible=False)
