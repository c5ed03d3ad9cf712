"""Figures of runs, one file a kind of chart; a figure is made from runs' folders only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from smartgen.errors import SmartGenError, one_of
from smartgen.metrics.store import Run
from smartgen.plot import (
    agreement,
    bars,
    cdf,
    ctl,
    gaps,
    importance,
    latencies,
    load,
    map,
    needs,
    orders,
    phases,
    rate,
    stalls,
)
from smartgen.plot.marks import Mark, check_marks

__all__ = ["KINDS", "Mark", "draw"]

KINDS: Mapping[str, ModuleType] = {
    "ctl": ctl,
    "bars": bars,
    "gaps": gaps,
    "stalls": stalls,
    "cdf": cdf,
    "load": load,
    "rate": rate,
    "needs": needs,
    "latencies": latencies,
    "phases": phases,
    "map": map,
    "orders": orders,
    "importance": importance,
    "agreement": agreement,
}
"""Kinds of chart, each a module with ``draw(runs, path)``.

Those that can show what a source states have ``draw(runs, path, marks)`` and METRICS, what marks
may be of.
"""


def draw(kind: str, runs: Sequence[Run], path: Path, marks: Sequence[Mark] = ()) -> None:
    """Draw runs into one figure: path with .png, and the same as .pdf beside it.

    Marks are shown by kinds that have a place for their metric, and left out by others. Raises
    SmartGenError for an unknown kind, for no runs, for a mark of no run, and for a place that
    cannot be written.
    """
    one_of("plot", kind, KINDS)
    if not runs:
        raise SmartGenError(f"plot={kind!r} needs at least one run")
    check_marks(marks, runs)
    module = KINDS[kind]
    metrics = getattr(module, "METRICS", None)
    if metrics is None:
        module.draw(runs, path)
    else:
        module.draw(runs, path, [mark for mark in marks if mark.metric in metrics])
