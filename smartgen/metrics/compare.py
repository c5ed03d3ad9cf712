"""Several runs' metrics side by side: a table for the terminal, and rows for summary.csv."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from smartgen.metrics.summary import Metrics


class Column(NamedTuple):
    """A column of the comparison: its title, and how a run's metrics are written in it."""

    title: str
    text: Callable[[Metrics], str]


def comparison_table(rows: Sequence[tuple[str, Metrics]]) -> str:
    """A table for the terminal, a line a run: its label and metrics; null is written as "-".

    Closed batches are told by their means; with several runs, ttst_s and tbt_s carry their ratio
    to the first run's in parentheses. If requests arrived over time in any run, medians and 99th
    percentiles stand instead. Utilisation stands beside either, and what is saturated at the end.
    """
    if not rows:
        return ""
    is_open = any(metrics.get("arrivals_per_s") for _, metrics in rows)
    first = rows[0][1] if len(rows) > 1 else None
    columns = _open_columns() if is_open else _closed_columns(first)
    lines = [["run", *(column.title for column in columns), ""]]
    for label, metrics in rows:
        lines.append([label, *(column.text(metrics) for column in columns), flags(metrics)])
    if is_open:
        last = len(lines[0]) - 1
        shown = [i for i in range(last) if i in _KEPT or any(_told(line[i]) for line in lines[1:])]
        lines = [[line[i] for i in (*shown, last)] for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [_line(line, widths) for line in lines]
    if is_open:
        text.append(_OPEN_NOTE)
    elif first is not None:
        text.append(f"(means over finished requests; x: ratio to the first row, {rows[0][0]})")
    return "\n".join(text)


_KEPT = (0, 1, 2, 3)
"""The label and the latencies; of an open comparison's other columns, empty ones are left out."""

_OPEN_NOTE = (
    "(p50/p99 over finished requests; GPU %: busiest prefill/decoding GPU, NIC % and pool %: the "
    "fullest, batch: largest mean)"
)


def _told(cell: str) -> bool:
    return cell not in ("-", "-/-", "")


def flags(metrics: Metrics) -> str:
    """What is wrong with a run: its status unless finished, and what was saturated, by kind."""
    found = [metrics["status"]] if metrics["status"] != "finished" else []
    if metrics["saturated"]:
        causes = metrics.get("saturated_by") or []
        kinds = dict.fromkeys(cause.partition(".")[0] for cause in causes)
        found.append(f"saturated ({', '.join(kinds)})" if kinds else "saturated")
    return ", ".join(found)


# -- columns


def _closed_columns(first: Metrics | None) -> list[Column]:
    def mean(name: str) -> Callable[[Metrics], float | None]:
        return lambda metrics: metrics[name]["mean"]

    def against(value: Callable[[Metrics], float | None], form: str) -> Callable[[Metrics], str]:
        return lambda metrics: _compared(value, form, metrics, first)

    return [
        Column("ttft_s", lambda metrics: _number(mean("ttft_s")(metrics), ".3f")),
        Column("ttst_s", against(mean("ttst_s"), ".3f")),
        Column("tbt_s", against(mean("tbt_s"), ".4f")),
        Column("ctl_s (last)", lambda metrics: _number(_last(metrics["ctl_s"]), ".4f")),
        Column("on-demand %", lambda metrics: _percent(metrics["on_demand_ratio"], ".1f")),
        Column("GB moved", lambda metrics: _number(sum(metrics["bytes"].values()) / 1e9, ".4g")),
        Column("GPU %", _gpu_percent),
        Column("NIC %", partial(_most_percent, "nic")),
        Column("makespan_s", lambda metrics: _number(metrics["makespan_s"], ".2f")),
    ]


def _open_columns() -> list[Column]:
    return [
        Column("ttft_s", partial(_both, "ttft_s")),
        Column("ttst_s", partial(_both, "ttst_s")),
        Column("tbt_s", partial(_both, "tbt_s")),
        Column("req/s", lambda metrics: _short(metrics.get("arrivals_per_s"))),
        Column("good %", lambda metrics: _percent(metrics.get("attained_ratio"), ".1f")),
        Column("good/s", lambda metrics: _short(metrics.get("goodput_per_s"))),
        Column("GPU %", _gpu_percent),
        Column("NIC %", partial(_most_percent, "nic")),
        Column("pool %", partial(_most_percent, "pool")),
        Column("batch", lambda metrics: _short(_largest_batch(metrics))),
        Column("fetched %", lambda metrics: _percent(metrics["on_demand_ratio"], ".1f")),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _percent(share: float | None, form: str) -> str:
    return _number(None if share is None else share * 100, form)


def _short(value: float | None) -> str:
    """Three digits, or more where the number is larger."""
    return _number(value, ".3g" if value is None or value < 999.5 else ".0f")


def _compared(
    value: Callable[[Metrics], float | None], form: str, metrics: Metrics, first: Metrics | None
) -> str:
    mine = value(metrics)
    if first is None:
        return _number(mine, form)
    other = value(first)
    ratio = "-" if mine is None or not other else f"{mine / other:.2f}x"
    return f"{_number(mine, form)} ({ratio})"


def _last(series: Sequence[float]) -> float | None:
    return series[-1] if series else None


def _both(name: str, metrics: Metrics) -> str:
    return f"{_short(metrics[name]['p50'])}/{_short(metrics[name]['p99'])}"


def most(shares: Iterable[float | None]) -> float | None:
    """The largest share that is known."""
    return max((share for share in shares if share is not None), default=None)


def utilisation(metrics: Metrics, kind: str, prefix: str = "") -> float | None:
    """The largest share among a kind's nodes whose name begins so; null where none is known."""
    found = metrics.get("utilisation", {}).get(kind, {})
    return most(share for name, share in found.items() if name.startswith(prefix))


def _most_percent(kind: str, metrics: Metrics) -> str:
    return _percent(utilisation(metrics, kind), ".0f")


def _gpu_percent(metrics: Metrics) -> str:
    shares = [utilisation(metrics, "gpu", prefix) for prefix in ("prefill", "decode")]
    return "/".join(_percent(share, ".0f") for share in shares)


def _largest_batch(metrics: Metrics) -> float | None:
    sizes = metrics.get("load", {}).get("batch_size", {})
    return most(size["mean"] for size in sizes.values())


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    label, *numbers, last = cells
    middle = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join([label.ljust(widths[0]), *middle, last]).rstrip()


# -- summary.csv


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
        elif key == "saturated_by":
            flat[key] = " ".join(value)
        elif isinstance(value, list):
            flat[f"last_{key}"] = value[-1] if value else None
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _text(value: Any) -> str:
    return "" if value is None else str(value)
