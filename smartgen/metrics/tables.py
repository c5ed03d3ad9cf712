"""From what nodes recorded to the tables of schema 1: one row a request, token, iteration, posting.

Seconds are float64 since the run's start, bytes and counts int64; what is missing is null.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome
from smartgen.metrics.attribution import Shares
from smartgen.metrics.records import IterationRow, Merged, Purpose, RequestRow, TokenRow, merge
from smartgen.workload import Request

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
PURPOSES = (Purpose.PROACTIVE, Purpose.ON_DEMAND, Purpose.SPECULATIVE, Purpose.METADATA)

_SECONDS, _BYTES, _COUNT, _ENTRIES = "float64", "int64", "int64", "float64"

SCHEMAS: Mapping[str, Mapping[str, str]] = {
    "requests": {
        "request_id": _COUNT,
        "prefill_node": "string",
        "decode_node": "string",
        "status": "string",
        "arrival_s": _SECONDS,
        "prefill_start_s": _SECONDS,
        "first_token_s": _SECONDS,
        "second_token_s": _SECONDS,
        "plan_delivered_s": _SECONDS,
        "all_delivered_s": _SECONDS,
        "finish_s": _SECONDS,
        "prompt_tokens": _COUNT,
        "cached_tokens": _COUNT,
        "output_tokens": _COUNT,
        "planned_blocks": _COUNT,
        "total_blocks": _COUNT,
        "proactive_bytes": _BYTES,
        "on_demand_bytes": _BYTES,
        "speculative_bytes": _BYTES,
        "metadata_bytes": _BYTES,
        "ttft_s": _SECONDS,
        "ttst_s": _SECONDS,
        "ttst_arrival_s": _SECONDS,
        "tbt_s": _SECONDS,
        "score": "float64",
    },
    "tokens": {
        "request_id": _COUNT,
        "token": _COUNT,
        "time_s": _SECONDS,
        "gap_s": _SECONDS,
        "iteration": _COUNT,
        "token_id": _COUNT,
    },
    "iterations": {
        "decode_node": "string",
        "iteration": _COUNT,
        "start_s": _SECONDS,
        "end_s": _SECONDS,
        "batch_size": _COUNT,
        "cached_tokens": _COUNT,
        **dict.fromkeys(Shares._fields, _SECONDS),
        "selected_entries": _ENTRIES,
        "remote_entries": _ENTRIES,
        "local_bytes": _BYTES,
        "on_demand_bytes": _BYTES,
        "speculative_bytes": _BYTES,
        "messages": _COUNT,
        "remote_blocks_left": _COUNT,
    },
    "transfers": {
        "transfer_id": _COUNT,
        "request_id": _COUNT,
        "purpose": "string",
        "source": "string",
        "destination": "string",
        "layer": _COUNT,
        "blocks": _COUNT,
        "entries": _ENTRIES,
        "bytes": _BYTES,
        "messages": _COUNT,
        "posted_s": _SECONDS,
        "start_s": _SECONDS,
        "end_s": _SECONDS,
        "status": "string",
    },
    "decisions": {
        "kind": "string",
        "request_id": _COUNT,
        "step": _COUNT,
        "layer": _COUNT,
        "values": "list<float64>",
    },
}
"""Every table's columns and their types, in order."""


@dataclass(frozen=True)
class Tables:
    """A run's tables; transfers and decisions are null unless the experiment records them."""

    requests: "pa.Table"
    tokens: "pa.Table"
    iterations: "pa.Table"
    transfers: "pa.Table | None" = None
    decisions: "pa.Table | None" = None

    def present(self) -> "dict[str, pa.Table]":
        """The tables this run has, by name."""
        tables = {name: getattr(self, name) for name in SCHEMAS}
        return {name: table for name, table in tables.items() if table is not None}


def make_tables(experiment: Experiment, outcome: Outcome) -> Tables:
    """The tables of a run. Every request of the workload has a row, whatever became of it.

    Raises SmartGenError if no request came to any end, and RuntimeError if what the nodes
    recorded contradicts itself.
    """
    merged, requests = merge(list(outcome.recorders)), experiment.requests
    _check(merged, requests)
    tokens = _tokens_of(merged)
    record = experiment.record
    return Tables(
        requests=_table("requests", _request_rows(requests, merged, tokens)),
        tokens=_table("tokens", _token_rows(tokens)),
        iterations=_table("iterations", [_iteration_row(row) for row in merged.iterations]),
        transfers=_table("transfers", _transfer_rows(merged)) if record.transfers else None,
        decisions=(
            _table("decisions", [row._asdict() for row in merged.decisions])
            if record.decisions
            else None
        ),
    )


def _check(merged: Merged, requests: Sequence[Request]) -> None:
    """Refuse an outcome without any result, and rows of requests nobody asked for."""
    if all(row.status is None for row in merged.requests.values()):
        raise SmartGenError(
            f"the run has no result: none of its {len(requests)} requests finished, "
            "failed or was aborted"
        )
    asked = {request.request_id for request in requests}
    made = merged.requests.keys() | {row.request_id for row in merged.tokens}
    if made - asked:
        raise RuntimeError(f"nodes recorded requests {sorted(made - asked)}; none were asked for")


def _tokens_of(merged: Merged) -> dict[int, list[TokenRow]]:
    """The tokens of every request that made any, from the first, which its prefill node reports."""
    made = {
        row.request_id: [TokenRow(row.request_id, 1, row.first_token_s, None, None)]
        for row in merged.requests.values()
        if row.first_token_s is not None
    }
    for token in merged.tokens:
        made.setdefault(token.request_id, []).append(token)
    for request_id, tokens in made.items():
        numbers = [token.token for token in tokens]
        if numbers != list(range(1, len(tokens) + 1)):
            raise RuntimeError(f"request {request_id} made tokens {numbers}, not 1, 2, 3, ...")
    return made


def _request_rows(
    requests: Sequence[Request], merged: Merged, tokens: Mapping[int, Sequence[TokenRow]]
) -> list[dict[str, Any]]:
    rows = []
    for request in requests:
        row = merged.requests.get(request.request_id, RequestRow(request.request_id))
        times = [token.time_s for token in tokens.get(request.request_id, ())]
        asked = {
            "arrival_s": request.arrival_s,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "output_tokens": len(times),
            "score": None,
        }
        rows.append(asdict(row) | asked | _latencies(request.arrival_s, times) | _bytes(row))
    return rows


def _bytes(row: RequestRow) -> dict[str, int | None]:
    """Bytes by purpose: none at all is 0, unless the request never reached a decoding node."""
    missing = None if row.decode_node is None else 0
    names = [f"{purpose}_bytes" for purpose in PURPOSES]
    return {name: missing if getattr(row, name) is None else getattr(row, name) for name in names}


def _latencies(arrival_s: float, times: Sequence[float]) -> dict[str, float | None]:
    """Latencies of one request from its tokens' times; null where there are too few tokens."""
    first = times[0] if times else None
    second = times[1] if len(times) > 1 else None
    later = len(times) - 2
    return {
        "second_token_s": second,
        "ttft_s": None if first is None else first - arrival_s,
        "ttst_s": None if first is None or second is None else second - first,
        "ttst_arrival_s": None if second is None else second - arrival_s,
        "tbt_s": (times[-1] - times[1]) / later if later > 0 else None,
    }


def _token_rows(tokens: Mapping[int, Sequence[TokenRow]]) -> list[dict[str, Any]]:
    rows = []
    for request_id in sorted(tokens):
        before_s: float | None = None
        for token in tokens[request_id]:
            gap_s = None if before_s is None else token.time_s - before_s
            rows.append(token._asdict() | {"gap_s": gap_s})
            before_s = token.time_s
    return rows


def _iteration_row(row: IterationRow) -> dict[str, Any]:
    took_s, shares_s = row.end_s - row.start_s, math.fsum(row.shares)
    if abs(shares_s - took_s) > 1e-9 * max(1.0, abs(row.end_s)):
        raise RuntimeError(
            f"iteration {row.iteration} took {took_s} s, but its shares add up to {shares_s} s"
        )
    return row._asdict() | row.shares._asdict()


def _transfer_rows(merged: Merged) -> list[dict[str, Any]]:
    """Numbered rows; what was flushed before its first byte moved has no start."""
    return [
        row._asdict()
        | {"transfer_id": number, "start_s": row.start_s if math.isfinite(row.start_s) else None}
        for number, row in enumerate(merged.transfers)
    ]


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    import pyarrow as pa

    def type_of(column: str) -> Any:
        kind = SCHEMAS[name][column]
        return pa.list_(pa.float64()) if kind == "list<float64>" else pa.type_for_alias(kind)

    columns = {
        column: pa.array([row[column] for row in rows], type_of(column)) for column in SCHEMAS[name]
    }
    return pa.table(columns)
