"""From a run's tables to its metrics, and from several runs' metrics to text and CSV."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smartgen.cluster import links
from smartgen.experiment import Experiment
from smartgen.metrics.tables import PURPOSES, SCHEMA_VERSION, Tables

if TYPE_CHECKING:
    import pyarrow as pa

Metrics = dict[str, Any]
"""What metrics.json holds: numbers, null, and dictionaries and lists of them."""

LATENCIES = ("ttft_s", "ttst_s", "ttst_arrival_s", "tbt_s")
SATURATED_RATIO = 0.95


def summarize(tables: Tables, experiment: Experiment, backend: str, makespan_s: float) -> Metrics:
    """The metrics of a run, as in metrics.json.

    Latencies are over finished requests, null without any. nic_busy_ratio is bytes that crossed a
    link over what it could have carried in the makespan; the cost of messages is not in it.
    """
    statuses = tables.requests.column("status").to_pylist()
    requests = {status: statuses.count(status) for status in ("finished", "aborted", "failed")}
    moved = {purpose: _sum(tables.requests, f"{purpose}_bytes") for purpose in PURPOSES}
    busy = _nic_busy_ratio(tables.requests, experiment, makespan_s)
    selected = _sum(tables.iterations, "selected_entries")
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
        "bytes": moved,
        "nic_busy_ratio": busy,
        "output_tokens_per_s": _ratio(tables.tokens.num_rows, makespan_s),
        "saturated": (busy["decode0"] or 0.0) > SATURATED_RATIO,
    }


def cumulative_token_latency(tokens: "pa.Table") -> list[float]:
    """CTL in seconds at tokens 2, 3, ...: the running mean of the gaps after the first token.

    CTL at token i of a request is (t_i - t_1) / (i - 1); this is its mean over the requests that
    have token i. No source gives a formula: a running mean is the only reading under which CTL can
    spike early and fall afterwards.
    """
    first_s: dict[int, float] = {}
    values: dict[int, list[float]] = {}
    for request_id, token, time_s in _rows(tokens, "request_id", "token", "time_s"):
        if token == 1:
            first_s[request_id] = time_s
        else:
            values.setdefault(token, []).append((time_s - first_s[request_id]) / (token - 1))
    return [float(np.mean(values[token])) for token in sorted(values)]


def mean_gaps(tokens: "pa.Table") -> list[float]:
    """Seconds before tokens 2, 3, ..., each averaged over the requests that have the token."""
    values: dict[int, list[float]] = {}
    for token, gap_s in _rows(tokens, "token", "gap_s"):
        if gap_s is not None:
            values.setdefault(token, []).append(gap_s)
    return [float(np.mean(values[token])) for token in sorted(values)]


def _rows(table: "pa.Table", *columns: str) -> Iterable[tuple[Any, ...]]:
    return zip(*(table.column(column).to_pylist() for column in columns), strict=True)


def _sum(table: "pa.Table", column: str) -> Any:
    return sum(value for value in table.column(column).to_pylist() if value is not None)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _distribution(requests: "pa.Table", column: str) -> dict[str, float | None]:
    """Mean and percentiles over finished requests that have a value."""
    values = [
        value
        for status, value in _rows(requests, "status", column)
        if status == "finished" and value is not None
    ]
    if not values:
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    p50, p90, p99 = (float(p) for p in np.percentile(values, (50, 90, 99)))
    return {"mean": float(np.mean(values)), "p50": p50, "p90": p90, "p99": p99}


def _nic_busy_ratio(
    requests: "pa.Table", experiment: Experiment, makespan_s: float
) -> dict[str, float | None]:
    """Each link's share of the makespan; a host's link carries what its prefill nodes sent."""
    cluster = experiment.cluster
    rates = links(experiment.network, cluster)
    crossed = dict.fromkeys(rates, 0)
    names = [f"{purpose}_bytes" for purpose in PURPOSES]
    for node, *sizes in _rows(requests, "prefill_node", *names):
        size = sum(part for part in sizes if part is not None)
        crossed["decode0"] += size
        if node is not None:
            number = int(node.removeprefix("prefill"))
            crossed[f"host{number // cluster.gpus_per_host}"] += size
    return {link: _ratio(crossed[link], rate * makespan_s) for link, rate in rates.items()}


# -- several runs


class Column(NamedTuple):
    """A column of the comparison: its value in a run's metrics, and how to write it.

    compared: whether the ratio to the first run's value follows in parentheses.
    """

    title: str
    value: Callable[[Metrics], float | None]
    form: str
    compared: bool = False


def _mean(name: str) -> Callable[[Metrics], float | None]:
    def value(metrics: Metrics) -> float | None:
        mean: float | None = metrics[name]["mean"]
        return mean

    return value


def _percent(metrics: Metrics) -> float | None:
    share: float | None = metrics["on_demand_ratio"]
    return None if share is None else share * 100


def _moved_gb(metrics: Metrics) -> float | None:
    moved: int = sum(metrics["bytes"].values())
    return moved / 1e9


def _last_ctl(metrics: Metrics) -> float | None:
    series: list[float] = metrics["ctl_s"]
    return series[-1] if series else None


def _makespan(metrics: Metrics) -> float | None:
    makespan_s: float = metrics["makespan_s"]
    return makespan_s


COLUMNS = (
    Column("ttft_s", _mean("ttft_s"), ".3f"),
    Column("ttst_s", _mean("ttst_s"), ".3f", compared=True),
    Column("tbt_s", _mean("tbt_s"), ".4f", compared=True),
    Column("ctl_s (last)", _last_ctl, ".4f"),
    Column("on-demand %", _percent, ".1f"),
    Column("GB moved", _moved_gb, ".4g"),
    Column("makespan_s", _makespan, ".2f"),
)


def comparison_table(rows: Sequence[tuple[str, Metrics]]) -> str:
    """A table for the terminal, a line a run: its label and metrics; null is written as "-".

    With several runs, ttst_s and tbt_s carry their ratio to the first run's in parentheses.
    """
    if not rows:
        return ""
    first = rows[0][1]
    lines = [["run", *(column.title for column in COLUMNS), ""]]
    for label, metrics in rows:
        other = first if len(rows) > 1 else None
        cells = [_cell(column, metrics, other) for column in COLUMNS]
        lines.append([label, *cells, _flags(metrics)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [_line(line, widths) for line in lines]
    if len(rows) > 1:
        text.append(f"(means over finished requests; x: ratio to the first row, {rows[0][0]})")
    return "\n".join(text)


def _cell(column: Column, metrics: Metrics, first: Metrics | None) -> str:
    value = column.value(metrics)
    text = "-" if value is None else f"{value:{column.form}}"
    if first is None or not column.compared:
        return text
    other = column.value(first)
    return f"{text} ({'-' if value is None or not other else f'{value / other:.2f}x'})"


def _flags(metrics: Metrics) -> str:
    flags = [metrics["status"]] if metrics["status"] != "finished" else []
    return ", ".join([*flags, "saturated"] if metrics["saturated"] else flags)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    label, *numbers, flags = cells
    middle = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join([label.ljust(widths[0]), *middle, flags]).rstrip()


def summary_csv_rows(runs: Sequence[tuple[Mapping[str, Any], Metrics]]) -> list[list[str]]:
    """Rows of a sweep's summary.csv, the header first: each run's overrides, then its metrics.

    Nested metrics become columns such as ttft_s.mean; of ctl_s only the last value is kept, as
    last_ctl_s. What a run lacks is an empty cell.
    """
    flat = [{**overrides, **_flat(metrics)} for overrides, metrics in runs]
    overridden = dict.fromkeys(key for overrides, _ in runs for key in overrides)
    header = list(overridden | dict.fromkeys(key for row in flat for key in row))
    return [header, *([_text(row.get(key)) for key in header] for row in flat)]


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[f"last_{key}"] = value[-1] if value else None
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _text(value: Any) -> str:
    return "" if value is None else str(value)
