"""Figures of runs, one file a kind of chart; a figure is made from runs' folders only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from smartgen.errors import SmartGenError, one_of
from smartgen.metrics.store import Run
from smartgen.plot import bars, cdf, ctl, gaps, importance, load, needs, orders, rate, stalls

__all__ = ["KINDS", "draw"]

KINDS: Mapping[str, ModuleType] = {
    "ctl": ctl,
    "bars": bars,
    "gaps": gaps,
    "stalls": stalls,
    "cdf": cdf,
    "load": load,
    "rate": rate,
    "needs": needs,
    "orders": orders,
    "importance": importance,
}
"""Kinds of chart, each a module with ``draw(runs, path)``."""


def draw(kind: str, runs: Sequence[Run], path: Path) -> None:
    """Draw runs into one figure: path with .png, and the same as .pdf beside it.

    Raises SmartGenError for an unknown kind, for no runs, and for a place that cannot be written.
    """
    one_of("plot", kind, KINDS)
    if not runs:
        raise SmartGenError(f"plot={kind!r} needs at least one run")
    KINDS[kind].draw(runs, path)
