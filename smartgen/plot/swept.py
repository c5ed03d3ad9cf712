"""Runs that differ in one number, and maybe in seeds: a line a scheme over it, with a band."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smartgen.errors import SmartGenError
from smartgen.metrics.store import Run
from smartgen.plot.marks import Mark, draw_mark, marks_of
from smartgen.plot.seeds import Point, differing, points
from smartgen.plot.style import DASHES, GUIDE, band, paler, scheme
from smartgen.plot.words import is_unlimited, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES = {
    "workload.rate_per_s": "requests per second",
    "workload.time_scale": "time scale of arrivals",
    "workload.requests": "requests in the batch",
    "network.gbps": "bandwidth of a decoding node (Gbps)",
    "network.sender_gbps": "bandwidth of a prefill host (Gbps)",
    "blocks_per_layer": "M, blocks of a layer",
    "selector.selection_ratio": "selection ratio",
    "policy.speculative_ratio": "speculative ratio",
}
"""What stands at an axis; other keys stand for themselves."""

LOGARITHMIC = ("blocks_per_layer",)

_FEW = 7  # places that each get a number at the axis

NETWORK, PROMPTS = "network", "workload.prompt_tokens"

Value = Callable[[Mapping[str, Any]], float | None]
"""A number of a run's metrics; null where it has none."""


@dataclass(frozen=True)
class Line:
    """The points of one scheme (and one value of what else is no number), by the swept number.

    other: what else tells the line from its scheme's other lines.
    """

    scheme: str
    other: str
    color: str
    marker: str
    dashes: Any
    x: npt.NDArray[np.float64]
    points: Sequence[Point]

    @property
    def label(self) -> str:
        """All that tells it from other lines."""
        return ", ".join(filter(None, (self.scheme, self.other)))

    def draw(
        self, axes: "Axes", value: Value, dashes: Any, label: str | None = None, scale: float = 1.0
    ) -> None:
        """Plot a metric over x, with a band over seeds; markers are hollow where saturated."""
        y = self.values(value) * scale
        if any(point.is_many for point in self.points):
            ends = np.array([point.ends(lambda run: value(run.metrics)) for point in self.points])
            low, high = ends.T * scale
            band(axes, self.x, low, high, self.color)
        axes.plot(self.x, y, color=self.color, linestyle=dashes, linewidth=1.0)
        hollow = np.array([point.saturated for point in self.points])
        for where, face in ((~hollow, self.color), (hollow, "white")):
            mark(axes, self.x[where], y[where], self.color, self.marker, face)
        if label:
            axes.plot([], [], color=self.color, linestyle=dashes, marker=self.marker, label=label)

    def values(self, value: Value) -> npt.NDArray[np.float64]:
        """A metric at each point; NaN where there is none."""
        return np.array([point.value(lambda run: value(run.metrics)) for point in self.points])

    def draw_marks(self, axes: "Axes", marks: Sequence[Mark], metric: str, scale: float) -> None:
        """What is stated for the line's points."""
        for x, point in zip(self.x, self.points, strict=True):
            for stated in marks_of(marks, metric, point.numbers):
                draw_mark(axes, float(x), stated * scale, self.color)


@dataclass(frozen=True)
class Swept:
    """What was swept: its key, what to write at its axis, and a line a scheme over it.

    ideal: full transfer where no link is in the way, if bandwidths were swept by network.
    """

    key: str
    axis: str
    lines: Sequence[Line]
    ideal: Point | None = None

    @property
    def points(self) -> list[Point]:
        """All points of all lines."""
        return [point for line in self.lines for point in line.points]

    def scale_x(self, axes: "Axes") -> None:
        """Make the x axis fit for what was swept; call it when all data are drawn."""
        from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

        at = sorted({float(x) for line in self.lines for x in line.x})
        if self.key in LOGARITHMIC:
            axes.set_xscale("log")
        if self.key in LOGARITHMIC or len(at) <= _FEW:
            axes.xaxis.set_major_locator(FixedLocator(at))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            axes.xaxis.set_minor_locator(NullLocator())
        elif all((line.x == np.rint(line.x)).all() for line in self.lines):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def mark(
    axes: "Axes", x: Any, y: Any, color: str, marker: str, face: str, label: str | None = None
) -> None:
    """Plot markers only."""
    axes.plot(
        x,
        y,
        color=color,
        linestyle="",
        marker=marker,
        markerfacecolor=face,
        markeredgewidth=0.8,
        label=label,
    )


def explain_saturated(axes: "Axes", runs: Sequence[Run]) -> None:
    """A legend entry for hollow markers, if there are any."""
    if any(run.saturated for run in runs):
        mark(axes, [], [], GUIDE, "o", "white", "saturated")


def swept(kind: str, runs: Sequence[Run]) -> Swept:
    """Sort runs into lines; raises SmartGenError unless they differ in exactly one number.

    Networks that differ in their rate count as that number, if nothing else does.
    """
    found = differing(runs)
    key = _swept_key(kind, found, runs)
    others = {name: values for name, values in found.items() if name != key}
    grouped: dict[tuple[str, str], list[tuple[float, Point]]] = {}
    ideal = None
    for point in points(runs):
        number = point.numbers[0]
        if key == NETWORK and is_unlimited(point.run):
            ideal = point if ideal is None or point.run.label == "full" else ideal
            continue
        other = ", ".join(say(name, values[number], point.run) for name, values in others.items())
        x = place_of(key, found[key][number], point.run)
        grouped.setdefault((point.run.label, other), []).append((x, point))
    return Swept(key, axis_of(key, runs), _lines(grouped), ideal)


def _swept_key(kind: str, found: Mapping[str, Sequence[Any]], runs: Sequence[Run]) -> str:
    numbers = [key for key, values in found.items() if all(map(is_number, values))]
    if not numbers and NETWORK in found and _are_rates(runs):
        return NETWORK
    if len(numbers) != 1:
        told = ", ".join(numbers) if numbers else "none"
        raise SmartGenError(
            f"plot={kind!r} needs runs that differ in one number; these differ in {told}"
        )
    return numbers[0]


def _are_rates(runs: Sequence[Run]) -> bool:
    """Whether each network has a rate of its own."""
    rates = {run.config["network"]["name"]: run.config["network"]["gbps"] for run in runs}
    return len(set(rates.values())) == len(rates)


def place_of(key: str, swept_to: Any, run: Run) -> float:
    """Where a run stands at the axis of a swept key."""
    if key == NETWORK:
        return float(run.config["network"]["gbps"])
    value = float(swept_to)
    if key == PROMPTS and _is_closed(run):
        return value * float(run.config["workload"]["requests"]) / 1e3
    return value * 100 if key.endswith("_ratio") else value


def axis_of(key: str, runs: Sequence[Run]) -> str:
    """What to write at the axis of a swept key."""
    if key == PROMPTS and all(map(_is_closed, runs)):
        return "batched input tokens (K)"
    name = AXES["network.gbps"] if key == NETWORK else AXES.get(key, key)
    unit = " (%)" if key.endswith("_ratio") else " (log)" if key in LOGARITHMIC else ""
    return name + unit


def _is_closed(run: Run) -> bool:
    return bool(run.metrics["workload"]["closed"])


def _lines(grouped: Mapping[tuple[str, str], list[tuple[float, Point]]]) -> list[Line]:
    seen: Counter[str] = Counter()
    dashes = {other: DASHES[nth % len(DASHES)] for nth, other in enumerate(_others(grouped))}
    lines = []
    for (name, other), places in grouped.items():
        places.sort(key=lambda place: place[0])
        color, marker = scheme(name)
        nth, seen[name] = seen[name], seen[name] + 1
        x, ordered = zip(*places, strict=True)
        lines.append(
            Line(
                scheme=name,
                other=other,
                color=paler(color, nth),
                marker=marker,
                dashes=dashes[other],
                x=np.array(x),
                points=ordered,
            )
        )
    return lines


def _others(grouped: Mapping[tuple[str, str], Any]) -> list[str]:
    return list(dict.fromkeys(other for _, other in grouped))


def is_number(value: object) -> bool:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)
