"""What the paper leaves to future work: adaptive schemes against the fixed 10 %, as tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from smartgen.claims.facts import Point
from smartgen.metrics.store import Run, read_run
from smartgen.reproduce.results import write_table

METRICS = ("ttst_s", "tbt_s", "last_s")
"""last_s: from the first token to the last, TTST and all later gaps."""

HEADER = ("links", "scheme", "metric", "mean", "least", "most", "runs", "over_smartgen")
_KEYS = {"adaptive": "network.gbps", "adaptive_varying": "network"}
_FIXED = "smartgen"

Values = dict[tuple[str, str, str], list[float]]
"""By links, scheme and metric: a value a run."""


def adaptive(folders: Mapping[Point, Path]) -> list[tuple[str, ...]]:
    """A row for links, scheme and metric: mean and spread over batches or seeds.

    over_smartgen: mean of the ratio to the fixed scheme, seed by seed.
    """
    values: Values = {}
    for point, folder in folders.items():
        if point.experiment in _KEYS:
            told = dict(override.split("=", 1) for override in point.overrides)
            links = told[_KEYS[point.experiment]]
            links += " Gbps" if point.experiment == "adaptive" else ""
            for metric, value in _metrics(read_run(folder)).items():
                values.setdefault((links, told["policy"], metric), []).append(value)
    return [_row(key, values) for key in values]


def _metrics(run: Run) -> dict[str, float]:
    ttst_s, tbt_s = (float(run.metrics[name]["mean"]) for name in METRICS[:2])
    gaps = run.requests.column("output_tokens").to_numpy().mean() - 2
    return {"ttst_s": ttst_s, "tbt_s": tbt_s, "last_s": ttst_s + gaps * tbt_s}


def _row(key: tuple[str, str, str], values: Values) -> tuple[str, ...]:
    links, scheme, metric = key
    own = values[key]
    ratio = np.mean(np.array(own) / np.array(values[links, _FIXED, metric]))
    numbers = [f"{of(own):.4g}" for of in _STATISTICS]
    return (links, scheme, metric, *numbers, str(len(own)), f"{ratio:.4f}")


_STATISTICS: Sequence[Callable[[Sequence[float]], float]] = (
    lambda own: float(np.mean(own)),
    min,
    max,
)


def write(target: Path, rows: Sequence[tuple[str, ...]]) -> None:
    """adaptive.csv."""
    write_table(target / "adaptive.csv", HEADER, rows)


def section(rows: Sequence[tuple[str, ...]]) -> str:
    """The table of REPORT.md: a line a scheme and metric, a column for links."""
    from smartgen.reproduce.report import table

    links = list(dict.fromkeys(row[0] for row in rows))
    schemes = list(dict.fromkeys(row[1] for row in rows))
    found = {row[:3]: row[3:] for row in rows}
    lines = []
    for metric in METRICS:
        for scheme in schemes:
            cells = [_cell(found.get((link, scheme, metric))) for link in links]
            lines.append((metric, scheme, *cells))
    return _NOTE + table(("metric", "scheme", *links), lines)


def _cell(values: Sequence[str] | None) -> str:
    if values is None:
        return ""
    mean, least, most, _, ratio = values
    return f"{mean} ({least} to {most}), {float(ratio):.3f}x"


_NOTE = """\
Mean (least to most) over the nominal batch and three of drawn lengths, or over four seeds of
arrivals, lengths and link rates; and over `smartgen`, which pushes a fixed 10 %. last_s: from the
first token to the last.

"""
