"""What a source states about runs, drawn beside what came out of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smartgen.errors import SmartGenError, count
from smartgen.metrics.store import Run
from smartgen.plot.style import GUIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATED = "where the paper's claims put it"
"""What the legend calls marks."""

_DIAMOND: dict[str, Any] = {
    "linestyle": "",
    "marker": "D",
    "markersize": 5,
    "markerfacecolor": "white",
    "markeredgewidth": 1.2,
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that a source states for a run.

    Attributes:
        run: the run's place among those that are drawn.
        metric: what is stated, as the kind of chart calls it in its METRICS.
        value: in the metric's unit, which its name ends with.
        claim: the id of the claim it follows from.
    """

    run: int
    metric: str
    value: float
    claim: str = ""

    def __post_init__(self) -> None:
        count("mark.run", self.run, at_least=0)


def check_marks(marks: Sequence[Mark], runs: Sequence[Run]) -> None:
    """Refuse marks of runs that are not there."""
    for mark in marks:
        if mark.run >= len(runs):
            raise SmartGenError(
                f"mark.run={mark.run} ({mark.metric}) must be below the number of runs, {len(runs)}"
            )


def marks_of(marks: Sequence[Mark], metric: str, numbers: Sequence[int]) -> list[float]:
    """Values that are stated of a metric, for any of these runs."""
    return [mark.value for mark in marks if mark.metric == metric and mark.run in numbers]


def draw_mark(axes: "Axes", x: float, y: float, color: str) -> None:
    """An open diamond, larger than the markers of lines."""
    axes.plot(x, y, color=color, zorder=4, **_DIAMOND)


def explain_marks(axes: "Axes", drawn: Sequence[object]) -> None:
    """A legend entry, if any mark was drawn."""
    if drawn:
        axes.plot([], [], color=GUIDE, label=STATED, **_DIAMOND)
