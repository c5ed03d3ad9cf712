"""Emulated over simulated: how far real processes and real bytes are from the simulator."""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from smartgen.metrics.emulation import VALUES, Pair, pairs
from smartgen.metrics.store import Run
from smartgen.plot.style import GUIDE, PAGE_INCHES, canvas, legend_above, log_axis, scheme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"ttst_s": "TTST", "tbt_s": "TBT", "last_ctl_s": "CTL, last token"}
"""What is compared, a row each, and what it is called."""

WITHIN = 0.05
"""Lines are drawn so far above and below one."""

_MARKERS = "o^sDv"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Emulated over simulated TTST, TBT and CTL, a column of panels for each dilation.

    Simulated seconds across. Colours are schemes, markers transports. Repeats are thin, their
    medians bold; a dashed line is at one, dotted ones 5 % off it. A column has one scale.
    Raises SmartGenError if no emulated run was simulated as well.
    """
    found = pairs(runs)
    dilations = sorted({pair.told["dilation"] for pair in found})
    transports = list(dict.fromkeys(pair.told["transport"] for pair in found))
    markers = {name: _MARKERS[i % len(_MARKERS)] for i, name in enumerate(transports)}
    width = PAGE_INCHES * min(1.0, 0.25 + 0.25 * len(dilations))
    with canvas(path, width, 1.4 * len(TITLES)) as figure:
        grid = figure.subplots(
            len(TITLES), len(dilations), sharex="row", sharey="col", squeeze=False
        )
        for (row, name), (column, dilation) in product(enumerate(TITLES), enumerate(dilations)):
            inside = [pair for pair in found if pair.told["dilation"] == dilation]
            _panel(grid[row, column], inside, name, markers)
        for column, dilation in enumerate(dilations):
            grid[0, column].set_title(f"1 s takes {dilation:g} s", fontsize=8)
        for axes, title in zip(grid[:, 0], TITLES.values(), strict=True):
            axes.set_ylabel(title)
        for axes in grid.flat:
            log_axis(axes, "x")
            for at, dashes in ((1.0, "--"), (1 + WITHIN, ":"), (1 - WITHIN, ":")):
                axes.axhline(at, color=GUIDE, linewidth=0.7, linestyle=dashes)
        figure.supxlabel("simulated (s, log)", fontsize=8)
        figure.supylabel("emulated / simulated", fontsize=8)
        _explain(grid[0, 0], found, markers)
        legend_above(figure)


def _panel(axes: "Axes", inside: Sequence[Pair], name: str, markers: dict[str, str]) -> None:
    for repeats in repeated(inside):
        first = repeats[0]
        simulated_s = VALUES[name](first.simulated.metrics)
        ratios = [pair.ratio(name) for pair in repeats if not math.isnan(pair.ratio(name))]
        if simulated_s is None or not ratios:
            continue
        color, marker = scheme(first.emulated.label)[0], markers[first.told["transport"]]
        if len(ratios) > 1:
            axes.plot([simulated_s] * len(ratios), ratios, **_thin(color, marker))
        axes.plot([simulated_s], [median(ratios)], **_bold(color, marker))


def repeated(inside: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs that repeat each other: one simulated run, several times emulated alike."""
    grouped: dict[Any, list[Pair]] = {}
    for pair in inside:
        how = pair.told["transport"], pair.told["dilation"], pair.told["byte_scale"]
        grouped.setdefault((pair.simulated.folder, how, pair.told["shaping"]), []).append(pair)
    return list(grouped.values())


def _thin(color: str, marker: str) -> dict[str, Any]:
    return {
        "color": color,
        "marker": marker,
        "linestyle": "",
        "markersize": 3,
        "markerfacecolor": "none",
        "markeredgewidth": 0.4,
        "alpha": 0.7,
    }


def _bold(color: str, marker: str) -> dict[str, Any]:
    return {"color": color, "marker": marker, "linestyle": "", "markersize": 4.5}


def _explain(axes: "Axes", found: Sequence[Pair], markers: dict[str, str]) -> None:
    for name in dict.fromkeys(pair.emulated.label for pair in found):
        axes.fill([], [], color=scheme(name)[0], label=name)
    for transport, marker in markers.items():
        axes.plot([], [], label=transport, **_bold(GUIDE, marker))
    if any(len(repeats) > 1 for repeats in repeated(found)):
        axes.plot([], [], label="a repeat", **_thin(GUIDE, "o"))
    axes.plot([], [], color=GUIDE, linewidth=0.7, linestyle=":", label=f"{WITHIN * 100:g} % off")
