"""What the paper leaves to future work: adaptive schemes against the fixed 10 %, as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smartgen.claims.facts import Point
from smartgen.metrics.store import Run, read_run
from smartgen.reproduce.results import write_table

METRICS = {"ttst_s": "TTST", "tbt_s": "TBT", "last_s": "first to last token"}
"""What is compared; last_s is TTST and all later gaps."""

HEADER = (
    "links",
    "scheme",
    "metric",
    "mean",
    "least",
    "most",
    "ratio",
    "ratio_least",
    "ratio_most",
)
_KEYS = {"adaptive": "network.gbps", "adaptive_varying": "network"}
_FIXED = "smartgen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A scheme's metric on some links, of every draw, and over the fixed scheme's there."""

    links: str
    scheme: str
    metric: str
    values: tuple[float, ...]
    ratios: tuple[float, ...]
    is_saturated: bool = False

    @property
    def numbers(self) -> list[str]:
        """Mean, least and most of values, then of ratios."""
        return [
            f"{number:.4g}"
            for of in (self.values, self.ratios)
            for number in (float(np.mean(of)), min(of), max(of))
        ]


def adaptive(folders: Mapping[Point, Path]) -> list[Compared]:
    """Every scheme, links and metric of the two experiments."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    saturated = set()
    for point, folder in folders.items():
        if point.experiment in _KEYS:
            told = dict(override.split("=", 1) for override in point.overrides)
            key, scheme = told.pop(_KEYS[point.experiment]), told.pop("policy")
            links = key.replace("elastic_", "").replace("g_", " Gbps, ")
            links += " Gbps" if point.experiment == "adaptive" else ""
            run = read_run(folder)
            if run.saturated:
                saturated.add((links, scheme))
            for metric, value in _metrics(run).items():
                values.setdefault((links, scheme, metric), {})[str(told)] = value
    found = []
    for (links, scheme, metric), of in values.items():
        fixed = values[links, _FIXED, metric]
        ratios = tuple(value / fixed[draw] for draw, value in of.items())
        row = Compared(
            links=links,
            scheme=scheme,
            metric=metric,
            values=tuple(of.values()),
            ratios=ratios,
            is_saturated=(links, scheme) in saturated,
        )
        found.append(row)
    return found


def _metrics(run: Run) -> dict[str, float]:
    ttst_s, tbt_s = (float(run.metrics[name]["mean"]) for name in ("ttst_s", "tbt_s"))
    later = run.requests.column("output_tokens").to_numpy().mean() - 2
    return {"ttst_s": ttst_s, "tbt_s": tbt_s, "last_s": ttst_s + later * tbt_s}


def write(target: Path, rows: Sequence[Compared]) -> None:
    """adaptive.csv."""
    lines = [(row.links, row.scheme, row.metric, *row.numbers) for row in rows]
    write_table(target / "adaptive.csv", HEADER, lines)


def section(rows: Sequence[Compared]) -> str:
    """The table of REPORT.md: a line a metric and scheme, a column for links."""
    from smartgen.reproduce.report import table

    links = list(dict.fromkeys(row.links for row in rows))
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    found = {(row.links, row.scheme, row.metric): row for row in rows}
    lines = []
    for metric, name in METRICS.items():
        for scheme in schemes:
            cells = [_cell(found.get((link, scheme, metric))) for link in links]
            lines.append((f"{name} (s)", scheme, *cells))
    picture = "\n![Adaptive schemes over the fixed 10 %](adaptive.png)\n"
    return _NOTE + table(("metric", "scheme", *links), lines) + picture


def _cell(row: Compared | None) -> str:
    if row is None:
        return ""
    mean, least, most, ratio, *_ = row.numbers
    star = " *" if row.is_saturated else ""
    return f"{mean} ({least} to {most}), {float(ratio):.3f}x{star}"


_NOTE = """\
Mean (least to most): of the nominal batch of six and three of drawn lengths where links are
constant; where they vary, of four seeds of arrivals, lengths and rates. Then the mean ratio to
`smartgen`, which pushes a fixed 10 %, draw by draw. A star: at least one of the runs was saturated.

"""
