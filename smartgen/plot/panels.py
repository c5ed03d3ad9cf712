"""Small multiples: runs of different models or workloads have panels of their own."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from smartgen.metrics.store import Run
from smartgen.plot.seeds import Point, differing, points
from smartgen.plot.style import COLUMN_INCHES, PAGE_INCHES, canvas, legend_above
from smartgen.plot.words import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

APART = ("model", "workload", "gpu", "selector")
"""Sections that set runs apart by so much that their lines do not belong together."""

_MOST = 4  # panels of a row
_LINES = 5  # that a column's width, and its legend, has room for


def panels(runs: Sequence[Run]) -> dict[str, list[Point]]:
    """Points by the title of their panel; one panel without a title if nothing sets them apart."""
    found = differing(runs)
    keys = [key for key in APART if key in found]
    grouped: dict[str, list[Point]] = {}
    for point in points(runs):
        number = point.numbers[0]
        title = ", ".join(say(key, found[key][number], point.run) for key in keys)
        grouped.setdefault(title, []).append(point)
    return grouped


@contextmanager
def drawn_panels(
    path: Path,
    grouped: dict[str, list[Point]],
    panel: Callable[["Axes", list[Point]], None],
    axis: str,
) -> "Iterator[Sequence[Axes]]":
    """A figure with a panel for each title, drawn by panel; y is shared, axis stands below all.

    Yields the axes for what is to be added, and then puts the legend above.
    """
    many = len(grouped) > 1
    is_wide = many or max(map(len, grouped.values())) > _LINES
    columns = min(len(grouped), _MOST)
    rows = -(-len(grouped) // columns)
    with canvas(path, PAGE_INCHES if is_wide else COLUMN_INCHES, 2.0 * rows) as figure:
        grid = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
        for axes, (title, inside) in zip(grid, grouped.items(), strict=False):
            panel(axes, inside)
            axes.set_title(title, fontsize=8)
        _remove(grid[len(grouped) :])
        _name(figure, grid[0], axis, many)
        yield grid[: len(grouped)]
        legend_above(figure)


def _remove(unused: "Sequence[Axes]") -> None:
    for axes in unused:
        axes.remove()


def _name(figure: "Figure", first: "Axes", axis: str, many: bool) -> None:
    if many:
        figure.supxlabel(axis, fontsize=8)
    else:
        first.set_xlabel(axis)
