"""How long prefill takes, and how long a link needs for what it makes: what there is to hide."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smartgen.errors import SmartGenError
from smartgen.metrics.columns import floats
from smartgen.metrics.store import Run
from smartgen.plot.marks import Mark, draw_mark, explain_marks, marks_of
from smartgen.plot.seeds import Point, differing, points
from smartgen.plot.style import (
    BLACK,
    COLUMN_INCHES,
    DASHES,
    GUIDE,
    ORANGE,
    PAGE_INCHES,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    band,
    canvas,
    explain_band,
    explain_whiskers,
    legend_above,
    whisker,
)
from smartgen.plot.swept import axis_of, is_number, place_of
from smartgen.plot.words import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("prefill_s", "transfer_s", "transfer_over_prefill")
"""What marks may be of."""

_PREFILL = SKY_BLUE
_TRANSFERS = (VERMILLION, ORANGE, PURPLE)
_ON_PREFILL = ("gpu", "host", "cluster")
"""What a transfer does not depend on; what prefill does not depend on is the network."""


def draw(runs: Sequence[Run], path: Path, marks: Sequence[Mark] = ()) -> None:
    """Prefill (mean TTFT) and transfer (planned bytes at the decoding node's full rate), in s.

    Runs that differ in a number are lines over it, and their ratio has a panel beside; others are
    bars with the ratio above. The ratio is above 1 where transfer is longer than prefill.
    """
    found = differing(runs)
    numbers = [key for key, values in found.items() if all(map(is_number, values))]
    if len(numbers) > 1:
        told = ", ".join(numbers)
        raise SmartGenError(
            f"plot='phases' needs runs that differ in at most one number; these differ in {told}"
        )
    if numbers:
        _draw_lines(runs, path, numbers[0], marks)
    else:
        _draw_bars(runs, path, marks)


def prefill_s(run: Run) -> float | None:
    """Mean time to the first token."""
    mean: float | None = run.metrics["ttft_s"]["mean"]
    return mean


def transfer_s(run: Run) -> float | None:
    """How long the decoding node's link needs for all planned bytes, at the rate it reaches."""
    network = run.config["network"]
    rate = float(network["gbps"]) * 1e9 / 8 * float(network.get("efficiency", 1.0))
    return float(np.nansum(floats(run.requests, "proactive_bytes"))) / rate


def ratio(run: Run) -> float | None:
    """Transfer over prefill."""
    prefill, transfer = prefill_s(run), transfer_s(run)
    return transfer / prefill if prefill and transfer is not None else None


READ: Mapping[str, Callable[[Run], float | None]] = dict(
    zip(METRICS, (prefill_s, transfer_s, ratio), strict=True)
)


# -- bars


def _draw_bars(runs: Sequence[Run], path: Path, marks: Sequence[Mark]) -> None:
    found, all_points = differing(runs), points(runs)
    with canvas(path, COLUMN_INCHES, 2.0) as figure:
        axes = figure.subplots()
        for place, point in enumerate(all_points):
            for name, left, color in (
                ("prefill_s", place - 0.36, _PREFILL),
                ("transfer_s", place, VERMILLION),
            ):
                value = point.value(READ[name])
                axes.bar(left, value, 0.34, align="edge", color=color, label=_LABELS[name])
                if point.is_many:
                    low, high = point.ends(READ[name])
                    whisker(axes, left + 0.17, low, high)
                for stated in marks_of(marks, name, point.numbers):
                    draw_mark(axes, left + 0.17, stated, BLACK)
            _tell_ratio(axes, place, point, marks)
        names = [
            ", ".join(
                say(key, values[point.numbers[0]], point.run) for key, values in found.items()
            )
            for point in all_points
        ]
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("time (s)")
        axes.margins(y=0.12)
        explain_whiskers(axes, all_points)
        explain_marks(axes, [mark for mark in marks if mark.metric != "transfer_over_prefill"])
        legend_above(figure)


_LABELS = {"prefill_s": "prefill", "transfer_s": "KV transfer at the link's rate"}


def _tell_ratio(axes: "Axes", place: int, point: Point, marks: Sequence[Mark]) -> None:
    """The ratio in figures, and what is stated of it."""
    stated = marks_of(marks, "transfer_over_prefill", point.numbers)
    text = "".join([f"{point.value(ratio):.1f}x", *(f"\n(stated: {value:g}x)" for value in stated)])
    top = max(point.value(transfer_s), point.ends(transfer_s)[1])
    offset: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points"}
    axes.annotate(text, (place + 0.17, top), ha="center", fontsize=6.5, **offset)


# -- lines


@dataclass
class _Series:
    color: str
    dashes: Any
    label: str
    places: list[tuple[float, Point]] = field(default_factory=list)

    def draw(self, axes: "Axes", name: str, marks: Sequence[Mark]) -> None:
        self.places.sort(key=lambda place: place[0])
        x = [place for place, _ in self.places]
        inside = [point for _, point in self.places]
        if any(point.is_many for point in inside):
            low, high = np.array([point.ends(READ[name]) for point in inside]).T
            band(axes, x, low, high, self.color)
        y = [point.value(READ[name]) for point in inside]
        style = {"color": self.color, "linestyle": self.dashes, "label": self.label}
        axes.plot(x, y, marker="o", markersize=2.5, **style)
        for place, point in self.places:
            for stated in marks_of(marks, name, point.numbers):
                draw_mark(axes, place, stated, self.color)


def _draw_lines(runs: Sequence[Run], path: Path, key: str, marks: Sequence[Mark]) -> None:
    with canvas(path, PAGE_INCHES, 2.0) as figure:
        left, right = figure.subplots(1, 2)
        for name in METRICS:
            axes = right if name == "transfer_over_prefill" else left
            for series in _series(runs, key, name):
                series.draw(axes, name, marks)
        right.axhline(1, color=GUIDE, linewidth=0.8, linestyle=(0, (1, 1)))
        for axes, words in ((left, "time (s)"), (right, "transfer over prefill (x)")):
            axes.set_ylabel(words)
            axes.set_xlabel(axis_of(key, runs))
            axes.set_ylim(bottom=0)
        explain_band(left, points(runs))
        explain_marks(left, marks)
        legend_above(figure)


def _series(runs: Sequence[Run], key: str, name: str) -> list[_Series]:
    """A metric's lines: colours are networks, dashes what else it depends on."""
    found = differing(runs)
    grouped: dict[tuple[str, str], _Series] = {}
    looks: tuple[list[str], list[str]] = ([], [])
    seen: set[tuple[str, str, float]] = set()
    for point in points(runs):
        number = point.numbers[0]
        words = {k: say(k, values[number], point.run) for k, values in found.items() if k != key}
        network, other = _split(words, name)
        for known, told in zip(looks, (network, other), strict=True):
            if told not in known:
                known.append(told)
        x = place_of(key, found[key][number], point.run)
        if (network, other, x) not in seen:  # else it differs only in what it does not depend on
            seen.add((network, other, x))
            places = tuple(
                known.index(told) for known, told in zip(looks, (network, other), strict=True)
            )
            series = grouped.setdefault((network, other), _new(name, network, other, *places))
            series.places.append((x, point))
    return list(grouped.values())


def _split(words: Mapping[str, str], name: str) -> tuple[str, str]:
    """What is told of the network, and what of all else that a metric depends on."""
    skipped = _ON_PREFILL if name == "transfer_s" else ()
    network = "" if name == "prefill_s" else words.get("network", "")
    others = (told for key, told in words.items() if key != "network" and key not in skipped)
    return network, ", ".join(others)


def _new(name: str, network: str, other: str, color: int, dashes: int) -> _Series:
    label = ", ".join(filter(None, (_SHORT[name], network, other)))
    return _Series(
        color=_PREFILL if name == "prefill_s" else _TRANSFERS[color % len(_TRANSFERS)],
        dashes=DASHES[dashes % len(DASHES)],
        label="" if name == "transfer_over_prefill" else label,
    )


_SHORT = {"prefill_s": "prefill", "transfer_s": "KV transfer", "transfer_over_prefill": ""}
