"""From a run's tables to its metrics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from smartgen.experiment import Experiment, Targets
from smartgen.metrics.columns import equals, floats
from smartgen.metrics.load import Load, bytes_ratio
from smartgen.metrics.tables import PURPOSES, SCHEMA_VERSION, Tables
from smartgen.metrics.tokens import cumulative_token_latency

if TYPE_CHECKING:
    import pyarrow as pa

Metrics = dict[str, Any]
"""What metrics.json holds: numbers, null, and dictionaries and lists of them."""

LATENCIES = ("ttft_s", "ttst_s", "ttst_arrival_s", "tbt_s", "queue_s", "e2e_s")
PERCENTILES = (50, 90, 99)


def summarize(
    tables: Tables,
    experiment: Experiment,
    backend: str,
    makespan_s: float,
    link_busy_s: Mapping[str, float] | None = None,
) -> Metrics:
    """The metrics of a run, as in metrics.json.

    Latencies are over finished requests, null without any. link_busy_s as in Outcome.
    """
    statuses = tables.requests.column("status").to_pylist()
    requests = {status: statuses.count(status) for status in ("finished", "aborted", "failed")}
    selected = _sum(tables.iterations, "selected_entries")
    load = Load(tables, experiment, makespan_s, link_busy_s or {})
    prompts = _sum(tables.requests, "prompt_tokens")
    return {
        "schema_version": SCHEMA_VERSION,
        "backend": backend,
        "status": "finished" if requests["finished"] == len(statuses) else "partial",
        "makespan_s": makespan_s,
        "requests": requests,
        "workload": experiment.echo,
        **{name: _distribution(tables.requests, name) for name in LATENCIES},
        "ctl_s": cumulative_token_latency(tables.tokens),
        "on_demand_ratio": _ratio(_sum(tables.iterations, "remote_entries"), selected),
        "bytes": {purpose: _sum(tables.requests, f"{purpose}_bytes") for purpose in PURPOSES},
        "nic_busy_ratio": bytes_ratio(tables.requests, experiment, makespan_s),
        "cached_ratio": _ratio(_sum(tables.requests, "cached_tokens"), prompts),
        "held_ratio": _ratio(_sum(tables.requests, "held_tokens"), prompts),
        "output_tokens_per_s": _ratio(tables.tokens.num_rows, makespan_s),
        **_goodness(tables.requests, experiment.targets, load),
        **load.metrics(),
    }


def _goodness(requests: "pa.Table", targets: Targets, load: Load) -> dict[str, float | None]:
    """Arrivals a second, the share of requests that kept every target, and how many did a second.

    The latter counts until the last request was over, so it never exceeds what was completed.
    """
    asked = requests.num_rows
    arrivals = (asked - 1) / load.seconds if load.is_open else None
    attained = _attained(requests, targets)
    ends_s, first_s = floats(requests, "finish_s"), floats(requests, "arrival_s").min()
    served_s = 0.0 if np.isnan(ends_s).all() else float(np.nanmax(ends_s) - first_s)
    counts = load.is_open and attained is not None and served_s > 0
    return {
        "arrivals_per_s": arrivals,
        "attained_ratio": attained,
        "goodput_per_s": attained * asked / served_s if counts else None,
    }


def _attained(requests: "pa.Table", targets: Targets) -> float | None:
    """A latency that a request has too few tokens for breaks no target."""
    limits = {name: limit for name, limit in vars(targets).items() if limit is not None}
    if not limits:
        return None
    good = equals(requests, "status", "finished")
    for name, limit in limits.items():
        good = good & ~(floats(requests, name) > limit)
    return float(good.mean())


def _sum(table: "pa.Table", column: str) -> Any:
    import pyarrow.compute

    return pyarrow.compute.sum(table.column(column), min_count=0).as_py()


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _distribution(requests: "pa.Table", column: str) -> dict[str, float | None]:
    """Mean and percentiles over finished requests that have a value."""
    finished = equals(requests, "status", "finished")
    values = floats(requests, column)
    values = values[finished & ~np.isnan(values)]
    names = [f"p{percent}" for percent in PERCENTILES]
    if not len(values):
        return dict.fromkeys(("mean", *names))
    found = np.percentile(values, PERCENTILES).tolist()
    return {"mean": float(np.mean(values)), **dict(zip(names, found, strict=True))}
