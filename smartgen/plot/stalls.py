"""Where iterations spend their time: for the second token, and for those after it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
    asked = {row["request_id"]: row for row in run.requests.to_pylist()}
    made_by = {(row["decode_node"], row["iteration"]): row for row in run.iterations.to_pylist()}
    second, later = [], []
    for row in run.tokens.to_pylist():
        if row["token"] == 1:
            continue
        request = asked[row["request_id"]]
        iteration = made_by[request["decode_node"], row["iteration"]]
        if row["token"] == 2:
            before_s = iteration["start_s"] - request["first_token_s"]
            second.append({BEFORE: before_s} | _shares(iteration))
        else:
            later.append(_shares(iteration))
    return _mean(second, (BEFORE, *Shares._fields)), _mean(later, Shares._fields)


def _names(runs: Sequence[Run], differing: Mapping[str, Sequence[object]]) -> list[str]:
    """Each run's scheme and, in a line of its own, what else tells it from the others."""
    names = []
    for number, run in enumerate(runs):
        others = ", ".join(str(values[number]) for values in differing.values())
        flag = "(saturated)" if run.saturated else ""
        names.append("\n".join(filter(None, (run.label, others, flag))))
    return names


def _shares(iteration: Mapping[str, float]) -> dict[str, float]:
    return {cause: iteration[cause] for cause in Shares._fields}


def _mean(rows: Sequence[Mapping[str, float]], causes: Iterable[str]) -> dict[str, float]:
    return {cause: float(np.mean([row[cause] for row in rows])) if rows else 0 for cause in causes}


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
