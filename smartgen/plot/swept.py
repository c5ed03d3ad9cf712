"""Runs that differ in one number: a line a scheme over it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smartgen.errors import SmartGenError
from smartgen.metrics.labels import differences
from smartgen.metrics.store import Run
from smartgen.plot.style import DASHES, GUIDE, paler, scheme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES = {
    "workload.rate_per_s": "requests per second",
    "workload.time_scale": "time scale of arrivals",
    "network.gbps": "bandwidth of a decoding node (Gbps)",
    "network.sender_gbps": "bandwidth of a prefill host (Gbps)",
}
"""What stands at an axis; other keys stand for themselves."""


@dataclass(frozen=True)
class Line:
    """The runs of one scheme (and one value of what else is no number), by the swept number."""

    label: str
    color: str
    marker: str
    dashes: Any
    x: npt.NDArray[np.float64]
    runs: Sequence[Run]

    def draw(self, axes: "Axes", y: Any, dashes: Any, label: str | None = None) -> None:
        """Plot y over x; markers are hollow where the run was saturated."""
        axes.plot(self.x, y, color=self.color, linestyle=dashes, linewidth=1.0)
        hollow = np.array([run.saturated for run in self.runs])
        for where, face in ((~hollow, self.color), (hollow, "white")):
            mark(axes, self.x[where], y[where], self.color, self.marker, face)
        if label:
            axes.plot([], [], color=self.color, linestyle=dashes, marker=self.marker, label=label)

    def values(self, value: Callable[[Mapping[str, Any]], float | None]) -> Any:
        """A number of each run's metrics; NaN where it is null."""
        found = [value(run.metrics) for run in self.runs]
        return np.array([np.nan if v is None else v for v in found], np.float64)


@dataclass(frozen=True)
class Swept:
    """The key that was swept, and a line a scheme."""

    key: str
    lines: Sequence[Line]

    @property
    def axis(self) -> str:
        """What to write at the x axis."""
        return AXES.get(self.key, self.key)


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
    """Sort runs into lines; raises SmartGenError unless they differ in exactly one number."""
    found = differences(runs)
    numbers = [key for key, values in found.items() if all(map(_is_number, values))]
    if len(numbers) != 1:
        told = ", ".join(numbers) if numbers else "none"
        raise SmartGenError(
            f"plot={kind!r} needs runs that differ in one number; these differ in {told}"
        )
    (key,) = numbers
    others = [values for name, values in found.items() if name != key]
    grouped: dict[tuple[str, ...], list[tuple[float, Run]]] = {}
    for number, run in enumerate(runs):
        name = (run.label, *(str(values[number]) for values in others))
        grouped.setdefault(name, []).append((float(found[key][number]), run))
    return Swept(key, _lines(grouped))


def _lines(grouped: Mapping[tuple[str, ...], list[tuple[float, Run]]]) -> list[Line]:
    seen: Counter[str] = Counter()
    lines = []
    for name, points in grouped.items():
        points.sort(key=lambda point: point[0])
        color, marker = scheme(name[0])
        nth, seen[name[0]] = seen[name[0]], seen[name[0]] + 1
        x, ordered = zip(*points, strict=True)
        lines.append(
            Line(
                label=", ".join(name),
                color=paler(color, nth),
                marker=marker,
                dashes=DASHES[nth % len(DASHES)],
                x=np.array(x),
                runs=ordered,
            )
        )
    return lines


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
