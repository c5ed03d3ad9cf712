"""How figures look: one colour and marker a scheme, in every figure; sizes for a two-column paper.

Colours are Okabe and Ito's, which colour-blind readers can tell apart. Files come out the same
whenever they are drawn from the same runs, whatever the user's matplotlibrc says.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smartgen.errors import SmartGenError
from smartgen.metrics.attribution import Shares
from smartgen.metrics.labels import labels
from smartgen.metrics.store import Run
from smartgen.plot.seeds import Point
from smartgen.plot.words import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY, WHITE = "#000000", "#999999", "#FFFFFF"
ORANGE, SKY_BLUE, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

COLUMN_INCHES, PAGE_INCHES = 3.5, 7.2
GUIDE = "#555555"
"""Lines and markers that explain and are no scheme's."""


def _mixed(color: str, other: str, share: float) -> str:
    """Mix so much of another colour into one."""
    parts = [
        [int(code[i : i + 2], 16) * weight for i in (1, 3, 5)]
        for code, weight in ((color, 1 - share), (other, share))
    ]
    return "#" + "".join(f"{round(sum(pair)):02X}" for pair in zip(*parts, strict=True))


SCHEMES = {
    "full": (BLACK, "s"),
    "partial": (ORANGE, "^"),
    "partial_profile": (VERMILLION, "v"),
    "partial_parallel": (GREEN, "<"),
    "partial_reuse": (YELLOW, ">"),
    "parallel_reuse": (_mixed(GREEN, YELLOW, 0.55), "2"),
    "hack": (PURPLE, "D"),
    "smartgen": (BLUE, "o"),
    "smartgen_budgeted": (_mixed(BLUE, WHITE, 0.35), "h"),
    "smartgen_codes": (_mixed(BLUE, BLACK, 0.45), "x"),
    "smartgen_idle": (_mixed(ORANGE, BLACK, 0.5), "+"),
    "smartgen_rate": (_mixed(GREEN, BLACK, 0.5), "1"),
    "smartgen_adaptive": (_mixed(PURPLE, BLACK, 0.45), "8"),
    "on_demand_only": (SKY_BLUE, "P"),
    "proactive_only": (GREY, "X"),
    "order_optimal": (_mixed(GREEN, WHITE, 0.35), "*"),
    "order_sequential": (_mixed(ORANGE, WHITE, 0.35), "H"),
    "order_streaming_llm": (_mixed(PURPLE, WHITE, 0.35), "d"),
    "order_random": (_mixed(GREY, WHITE, 0.35), "p"),
}
"""Colour and marker of each scheme that has a file in conf/policy."""

CAUSES = dict(
    zip(
        Shares._fields,
        (SKY_BLUE, BLUE, GREEN, YELLOW, ORANGE, VERMILLION, GREY),
        strict=True,
    )
)
"""Colour of each cause of an iteration's time: waits are warm, work is cool."""

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_MARKERS = "os^vD<>Ph"
_HATCH = "/////"
_LETTERS_PER_INCH, _HANDLE_LETTERS, _ROW_INCHES = 17, 8, 0.15  # of 7 point text

_RC: dict[str, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "smartgen",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one run is drawn. hatch is set for runs whose link was saturated."""

    label: str
    color: str
    marker: str
    dashes: Any
    hatch: str | None

    def line(self) -> dict[str, Any]:
        """What makes a plotted line this run's."""
        return {
            "color": self.color,
            "linestyle": self.dashes,
            "marker": self.marker,
            "label": self.label,
        }


def looks(runs: Sequence[Run]) -> list[Look]:
    """A look for each run: its scheme's; later runs of the same scheme are paler and dashed.

    More than two runs of one scheme alone are told apart by a scale of colours instead.
    """
    seen: Counter[str] = Counter()
    scale = _scale(len(runs)) if len(runs) > 2 and len({run.label for run in runs}) == 1 else []
    found = []
    for run, label in zip(runs, labels(runs, say), strict=True):
        color, marker = scheme(run.label)
        nth = seen[run.label]
        seen[run.label] += 1
        if scale:
            color, marker = scale[nth], _MARKERS[nth % len(_MARKERS)]
        found.append(
            Look(
                label=f"{label} (saturated)" if run.saturated else label,
                color=color if scale else paler(color, nth),
                marker=marker,
                dashes=DASHES[nth % len(DASHES)],
                hatch=_HATCH if run.saturated else None,
            )
        )
    return found


def paler(color: str, nth: int) -> str:
    """The colour of the nth run or line of one scheme, from 0."""
    return _mixed(color, WHITE, 1 - 0.72 ** min(nth, 4))


def _scale(count: int) -> list[str]:
    """So many colours from dark to light, in an order that colour-blind readers see, too."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.92 * i / (count - 1))) for i in range(count)]


def scheme(name: str) -> tuple[str, str]:
    """Colour and marker of a scheme; one of your own gets a pair that depends on its name only."""
    if name in SCHEMES:
        return SCHEMES[name]
    number = zlib.crc32(name.encode())
    colors, markers = (VERMILLION, GREEN, SKY_BLUE, PURPLE, ORANGE), "HdX8*"
    color = _mixed(colors[number % len(colors)], BLACK, 0.35)
    return color, markers[number // len(colors) % len(markers)]


@contextmanager
def canvas(path: Path, width: float, height: float) -> "Iterator[Figure]":
    """A figure of so many inches; at the end it is saved as PATH.png and PATH.pdf.

    A legend above comes on top of height.
    path's own .png or .pdf is dropped first. Raises SmartGenError if the place cannot be written.
    """
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", _RC]):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        _save(figure, path.with_suffix("") if path.suffix in (".png", ".pdf") else path)


def _save(figure: "Figure", stem: Path) -> None:
    """Without dates or versions; written beside and renamed, so that no file is half written."""
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Software": None},
        "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    }
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for kind, entries in metadata.items():
            target = stem.with_name(f"{stem.name}.{kind}")
            partial = target.with_name(f".{target.name}.partial")
            try:
                figure.savefig(partial, format=kind, dpi=200, metadata=entries)
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SmartGenError(f"the figure cannot be written to {stem}: {reason}") from error


def legend_above(figure: "Figure", without: Sequence[str] = ()) -> None:
    """A legend of all labelled artists above the axes, where it covers no data; each label once.

    Labels in without are left out. The figure grows by the legend's rows, so that the axes keep
    their size.
    """
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label not in without:
                entries.setdefault(label, handle)
    if not entries:
        return
    width, height = figure.get_size_inches()
    most = _columns([len(label) for label in entries], width * _LETTERS_PER_INCH)
    rows = math.ceil(len(entries) / most)
    columns = math.ceil(len(entries) / rows)
    figure.set_size_inches(width, height + rows * _ROW_INCHES)
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=columns)


def _columns(lengths: Sequence[int], room: float) -> int:
    """How many columns fit, filled one after the other as matplotlib does."""
    for columns in range(len(lengths), 1, -1):
        filled = np.array_split(lengths, columns)
        if sum(int(column.max()) + _HANDLE_LETTERS for column in filled) <= room:
            return columns
    return 1


def name_ticks(figure: "Figure", names: Sequence[str]) -> None:
    """Put names under 0, 1, 2, ... of two axes side by side, broken at their newlines if need be.

    Names that would still touch each other are slanted. The figure grows by what they take.
    """
    room = PAGE_INCHES / 2 * 0.85 * _LETTERS_PER_INCH / len(names)
    flat = [name.replace("\n", " ") for name in names]
    slanted = max(len(line) for name in names for line in name.split("\n")) > room
    if slanted or max(map(len, flat)) <= room:
        texts, grown = flat, 0.0
    else:
        texts, grown = list(names), 0.12 * max(name.count("\n") for name in names)
    degrees = 30 if len(names) < 8 else 50
    if slanted:
        length = max(map(len, flat)) / _LETTERS_PER_INCH
        grown = length * math.sin(math.radians(degrees))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + grown)
    for axes in figure.axes:
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(names)), texts)
        if slanted:
            slant(axes, degrees)


def slant(axes: "Axes", degrees: float) -> None:
    """Slant the names under an axis, each ending at its tick."""
    axes.tick_params("x", rotation=degrees)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")


def log_axis(axes: "Axes", which: Literal["x", "y"] = "y") -> None:
    """A logarithmic axis with plain numbers; call it when all data are drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    if not _has_data(axes):
        axes.text(0.5, 0.5, "no second token", ha="center", transform=axes.transAxes)
        axis.set_ticks([])
        return
    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    low, high = axes.get_ylim() if which == "y" else axes.get_xlim()
    decades = math.log10(high / low)
    fine = (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8)
    steps = {0.7: fine, 1.5: (1, 1.5, 2, 3, 4, 5, 7), 3.0: (1, 2, 5)}
    if which == "x":  # numbers stand side by side and need more room
        steps = {0.5: (1, 1.5, 2, 3, 4, 5, 7), 1.8: (1, 2, 5), 2.2: (1, 3)}
    subs = next((subs for limit, subs in steps.items() if decades < limit), (1,))
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axis.set_minor_formatter(NullFormatter())


def _has_data(axes: "Axes") -> bool:
    """Whether any line has a number to show."""
    return any(
        np.isfinite(np.asarray(line.get_ydata(), np.float64)).any()
        for line in axes.lines
        if len(line.get_xdata())  # type: ignore[arg-type]
    )


def target_line(axes: "Axes", value: float | None, which: Literal["x", "y"] = "y") -> None:
    """A dotted line at a target, if there is one."""
    if value is not None:
        line = axes.axhline if which == "y" else axes.axvline
        line(value, color=GUIDE, linewidth=0.8, linestyle=(0, (1, 1)), label="target")


def marked(number: int, points: int) -> list[int]:
    """Which points of the number-th line bear a marker: the first, then every eighth or so.

    Lines take turns, so that markers show where one line hides another.
    """
    apart = max(8, points // 12)
    return [0, *range(3 + 2 * number % apart, points, apart)] if points else []


_OVER_SEEDS = "least to most over seeds"


def band(axes: "Axes", x: Any, low: Any, high: Any, color: str) -> None:
    """What lies between the least and the most, with faint edges: bands cover each other."""
    axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
    for edge in (low, high):
        axes.plot(x, edge, color=color, alpha=0.6, linewidth=0.5, marker="")


def whisker(axes: "Axes", x: float, low: float, high: float) -> None:
    """From the least to the most of one place, to be seen on bars of any colour."""
    for color, width in (("white", 2.2), (GUIDE, 1.0)):
        axes.vlines(x, low, high, color=color, linewidth=width, zorder=3)


def explain_whiskers(axes: "Axes", points: Sequence[Point]) -> None:
    """A legend entry for whiskers, if there are any."""
    if any(point.is_many for point in points):
        style: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 8}
        axes.plot([], [], color=GUIDE, label=_OVER_SEEDS, **style)


def explain_band(axes: "Axes", points: Sequence[Point]) -> None:
    """A legend entry for bands, if there are any."""
    if any(point.is_many for point in points):
        axes.fill([], [], color=GUIDE, alpha=0.25, linewidth=0, label=_OVER_SEEDS)
