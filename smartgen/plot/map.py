"""Where speculation pays: its effect over bandwidth and the share that is pushed while idle."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smartgen.errors import SmartGenError
from smartgen.metrics.columns import Numbers, equals, floats
from smartgen.metrics.store import Run
from smartgen.plot.seeds import Point, points
from smartgen.plot.style import PAGE_INCHES, canvas
from smartgen.plot.swept import AXES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAP = "RdBu_r"  # blue gains, red loses, and both are told apart by all eyes
_CONTOUR = "#000000"

Cell = tuple[float, float]
"""Gbps and speculative ratio."""


def draw(runs: Sequence[Run], path: Path) -> None:
    """Two heat maps over bandwidth and speculative ratio; below 1 (blue) speculation pays.

    Left, mean TBT over that without speculation (ratio 0) at the same bandwidth: what pushing while
    idle gives later tokens, or takes. Right, the time from the first to the last token, which TTST
    is part of, over that of full transfer at the same bandwidth; without runs of ``full``, over
    that without speculation. A line is drawn where the value is 1.
    """
    cells, full = _cells(runs)
    base = {gbps: point for (gbps, share), point in cells.items() if share == 0}
    with canvas(path, PAGE_INCHES, 2.6) as figure:
        left, right = figure.subplots(1, 2)
        _panel(figure, left, _relative(cells, base, tbt_s), "TBT over that without speculation")
        against, name = (full, "full transfer") if full else (base, "no speculation")
        values = _relative(cells, against, decoding_s)
        _panel(figure, right, values, f"first to last token, over that of {name}")


def tbt_s(run: Run) -> float | None:
    """Mean gap before tokens 3, 4, ...."""
    mean: float | None = run.metrics["tbt_s"]["mean"]
    return mean


def decoding_s(run: Run) -> float | None:
    """Mean time from the first to the last token of finished requests."""
    finished = equals(run.requests, "status", "finished")
    took_s = floats(run.requests, "finish_s") - floats(run.requests, "first_token_s")
    took_s = took_s[finished]
    return float(took_s.mean()) if len(took_s) else None


def _cells(runs: Sequence[Run]) -> tuple[dict[Cell, Point], dict[float, Point]]:
    """Points of the scheme that speculates by cell, and full's by bandwidth."""
    cells: dict[Cell, Point] = {}
    full: dict[float, Point] = {}
    for point in points(runs):
        gbps, share = _gbps(point.run), _share(point.run)
        if point.run.label == "full":
            full.setdefault(gbps, point)
        elif (gbps, share) in cells:
            raise SmartGenError(
                f"plot='map' needs one run for each bandwidth and ratio; {gbps:g} Gbps with "
                f"policy.speculative_ratio={share:g} has more"
            )
        else:
            cells[gbps, share] = point
    _check(cells, full)
    return cells, full


def _check(cells: Mapping[Cell, Point], full: Mapping[float, Point]) -> None:
    rates, shares = {gbps for gbps, _ in cells}, {share for _, share in cells}
    if len(rates) < 2 or len(shares) < 2 or 0 not in shares:
        raise SmartGenError(
            "plot='map' needs runs over network.gbps and policy.speculative_ratio, 0 among them"
        )
    missing = [(g, s) for g in sorted(rates) for s in sorted(shares) if (g, s) not in cells]
    if missing:
        raise SmartGenError(
            "plot='map' lacks a run at {:g} Gbps with policy.speculative_ratio={:g}".format(
                *missing[0]
            )
        )
    if full and not rates <= set(full):
        gbps = min(rates - set(full))
        raise SmartGenError(f"plot='map' lacks a run of full at {gbps:g} Gbps")


def _gbps(run: Run) -> float:
    return float(run.config["network"]["gbps"])


def _share(run: Run) -> float:
    return float(run.config["policy"]["speculative_ratio"])


Read = Callable[[Run], float | None]


def _relative(
    cells: Mapping[Cell, Point], against: Mapping[float, Point], read: Read
) -> tuple[list[float], list[float], Numbers]:
    """Bandwidths, ratios, and each cell's value over what it is compared to."""
    rates, shares = sorted({gbps for gbps, _ in cells}), sorted({share for _, share in cells})
    values = [
        [cells[gbps, share].value(read) / (against[gbps].value(read) or np.nan) for gbps in rates]
        for share in shares
    ]
    return rates, shares, np.array(values)


def _panel(
    figure: "Figure",
    axes: "Axes",
    found: tuple[list[float], list[float], Numbers],
    title: str,
) -> None:
    from matplotlib.colors import LogNorm

    rates, shares, values = found
    known = values[np.isfinite(values)]
    most = max(1.05, float(np.exp(np.abs(np.log(known)).max()))) if len(known) else 1.05
    image = axes.imshow(
        values, origin="lower", aspect="auto", cmap=_MAP, norm=LogNorm(1 / most, most)
    )
    for (row, column), value in np.ndenumerate(values):
        is_dark = np.isfinite(value) and abs(np.log(value)) > 0.6 * np.log(most)
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 5.5}
        axes.text(column, row, _number(value), color="white" if is_dark else "black", **style)
    if len(known) and known.min() < 1 < known.max():
        axes.contour(values, levels=[1.0], colors=_CONTOUR, linewidths=1.0, alpha=0.7)
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(shares)), [f"{share * 100:g}" for share in shares])
    axes.grid(visible=False)
    axes.set_xlabel(AXES["network.gbps"])
    axes.set_ylabel("speculative ratio (%)")
    axes.set_title(title, fontsize=8)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    ticks = _ticks(most)
    bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    bar.minorticks_off()


def _number(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.2f}"


def _ticks(most: float) -> list[float]:
    return [1 / most, 1.0, most]
