"""Where iterations spend their time: for the second token, and for those after it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smartgen.metrics.attribution import Shares
from smartgen.metrics.labels import differences
from smartgen.metrics.store import Run
from smartgen.plot.style import CAUSES, PAGE_INCHES, canvas, legend_above, looks, name_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEFORE = "before decoding"
"""From the first token to the start of the iteration that makes the second."""

_BEFORE_COLOR = "#DDDDDD"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Stacked bars a run, in ms, by cause: the second token's iteration left, later ones right.

    Left, the wait between the first token and that iteration is put at the bottom, so that a bar
    is as tall as TTST; right, a bar is the mean iteration over tokens 3, 4, ....
    """
    found, differing = looks(runs), differences(runs)
    parts = [second_and_later(run) for run in runs]
    with canvas(path, PAGE_INCHES, 2.2) as figure:
        left, right = figure.subplots(1, 2)
        for axes, side in ((left, 0), (right, 1)):
            _stack(axes, [both[side] for both in parts], [look.hatch for look in found])
        left.set_ylabel("second token (ms)")
        right.set_ylabel("later tokens (ms)")
        for axes in (left, right):
            axes.set_xlabel(", ".join(differing))
        name_ticks(figure, _names(runs, differing))
        legend_above(figure)


def second_and_later(run: Run) -> tuple[dict[str, float], dict[str, float]]:
    """Mean seconds by cause for second tokens, BEFORE among them, and for all later tokens.

    Every token counts the iteration that made it once; in a closed batch, these are iteration 1
    and the mean of iterations 2, 3, ....
    """
    tokens = run.tokens.select(["request_id", "token", "iteration"])
    made_by = tokens.join(
        run.requests.select(["request_id", "decode_node", "first_token_s"]), "request_id"
    ).join(
        run.iterations.select(["decode_node", "iteration", "start_s", *Shares._fields]),
        ["decode_node", "iteration"],
    )
    column = {name: made_by.column(name).to_numpy() for name in made_by.column_names}
    second, later = column["token"] == 2, column["token"] > 2
    column[BEFORE] = column["start_s"] - column["first_token_s"]
    return (
        {cause: _mean(column[cause][second]) for cause in (BEFORE, *Shares._fields)},
        {cause: _mean(column[cause][later]) for cause in Shares._fields},
    )


def _mean(seconds: npt.NDArray[np.float64]) -> float:
    return float(seconds.mean()) if len(seconds) else 0.0


def _names(runs: Sequence[Run], differing: Mapping[str, Sequence[object]]) -> list[str]:
    """Each run's scheme and, in a line of its own, what else tells it from the others."""
    names = []
    for number, run in enumerate(runs):
        others = ", ".join(str(values[number]) for values in differing.values())
        flag = "(saturated)" if run.saturated else ""
        names.append("\n".join(filter(None, (run.label, others, flag))))
    return names


def _stack(
    axes: "Axes", runs: Sequence[Mapping[str, float]], hatches: Sequence[str | None]
) -> None:
    for number, (parts, hatch) in enumerate(zip(runs, hatches, strict=True)):
        bottom_ms = 0.0
        for cause, seconds in parts.items():
            axes.bar(
                number,
                seconds * 1e3,
                0.6,
                bottom=bottom_ms,
                color=CAUSES.get(cause, _BEFORE_COLOR),
                edgecolor="white",
                linewidth=0.3,
                hatch=hatch,
                label=cause.removesuffix("_s"),
            )
            bottom_ms += seconds * 1e3
