"""From what nodes recorded to the tables of schema 1: one row a request, token, iteration, posting.

Seconds are float64 since the run's start, bytes and counts int64; what is missing is null. Tables
of more than a row a request are made column by column: an open run has millions of tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome
from smartgen.metrics.attribution import Shares
from smartgen.metrics.records import (
    ActRow,
    Decision,
    IterationRow,
    Merged,
    Purpose,
    RequestRow,
    TransferRow,
    merge,
)
from smartgen.metrics.tokens import made_by_request, token_rows
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
        "reserved_s": _SECONDS,
        "prefill_start_s": _SECONDS,
        "first_token_s": _SECONDS,
        "second_token_s": _SECONDS,
        "plan_delivered_s": _SECONDS,
        "joined_s": _SECONDS,
        "all_delivered_s": _SECONDS,
        "finish_s": _SECONDS,
        "prefill_released_s": _SECONDS,
        "released_s": _SECONDS,
        "prompt_tokens": _COUNT,
        "cached_tokens": _COUNT,
        "held_tokens": _COUNT,
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
        "queue_s": _SECONDS,
        "e2e_s": _SECONDS,
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
    "acts": {
        "decode_node": "string",
        "iteration": _COUNT,
        "layer": _COUNT,
        "act": "string",
        "start_s": _SECONDS,
        "end_s": _SECONDS,
    },
}
"""Every table's columns and their types, in order. Within a schema, columns are only added."""


@dataclass(frozen=True)
class Tables:
    """A run's tables; transfers, decisions and acts are null unless the experiment records them."""

    requests: "pa.Table"
    tokens: "pa.Table"
    iterations: "pa.Table"
    transfers: "pa.Table | None" = None
    decisions: "pa.Table | None" = None
    acts: "pa.Table | None" = None

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
    if all(row.status is None for row in merged.requests.values()):
        raise SmartGenError(
            f"the run has no result: none of its {len(requests)} requests finished, "
            "failed or was aborted"
        )
    tokens = token_rows(merged)
    record = experiment.record
    return Tables(
        requests=_requests(requests, merged, tokens),
        tokens=_table("tokens", {name: tokens.column(name) for name in SCHEMAS["tokens"]}),
        iterations=_iterations(merged.iterations),
        transfers=_transfers(merged.transfers) if record.transfers else None,
        decisions=(
            _table("decisions", _columns(Decision, merged.decisions)) if record.decisions else None
        ),
        acts=_table("acts", _columns(ActRow, merged.acts)) if record.acts else None,
    )


def _requests(requests: Sequence[Request], merged: Merged, tokens: "pa.Table") -> "pa.Table":
    """A row for each request asked for; what was found out at run time goes before the workload."""
    made = made_by_request(tokens)
    nobody = (merged.requests.keys() | made.keys()) - {request.request_id for request in requests}
    if nobody:
        raise RuntimeError(f"nodes recorded requests {sorted(nobody)}; none were asked for")
    names = [column.name for column in fields(RequestRow)]
    rows = []
    for request in requests:
        row = merged.requests.get(request.request_id) or RequestRow(request.request_id)
        tokens_made = made.get(request.request_id)
        rows.append(
            {name: getattr(row, name) for name in names}
            | {
                "arrival_s": request.arrival_s,
                "prompt_tokens": request.prompt_tokens,
                "cached_tokens": _known(row.cached_tokens, request.cached_tokens),
                "held_tokens": _known(row.held_tokens, request.held_tokens),
                "output_tokens": tokens_made.tokens if tokens_made else 0,
                "queue_s": _since(request.arrival_s, row.prefill_start_s),
                "e2e_s": _since(request.arrival_s, row.finish_s),
            }
            | (tokens_made.latencies(request.arrival_s) if tokens_made else {})
            | _bytes(row)
        )
    columns = {name: [row.get(name) for row in rows] for name in SCHEMAS["requests"]}
    return _table("requests", columns)


def _known(recorded: int | None, asked: int) -> int:
    return asked if recorded is None else recorded


def _since(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else end_s - start_s


def _bytes(row: RequestRow) -> dict[str, int | None]:
    """Bytes by purpose: none at all is 0, unless the request never reached a decoding node."""
    missing = None if row.decode_node is None else 0
    names = [f"{purpose}_bytes" for purpose in PURPOSES]
    return {name: missing if getattr(row, name) is None else getattr(row, name) for name in names}


def _iterations(rows: Sequence[IterationRow]) -> "pa.Table":
    columns = _columns(IterationRow, rows)
    shares: list[Shares] = columns.pop("shares")
    columns |= _columns(Shares, shares)
    _check_shares(columns)
    return _table("iterations", columns)


def _check_shares(columns: Mapping[str, Sequence[Any]]) -> None:
    end_s = np.array(columns["end_s"], np.float64)
    took_s = end_s - np.array(columns["start_s"], np.float64)
    shares_s = np.sum([np.array(columns[name], np.float64) for name in Shares._fields], axis=0)
    (wrong,) = np.nonzero(np.abs(shares_s - took_s) > 1e-9 * np.maximum(1.0, np.abs(end_s)))
    if len(wrong):
        first = int(wrong[0])
        raise RuntimeError(
            f"iteration {columns['iteration'][first]} took {took_s[first]} s, but its shares add "
            f"up to {shares_s[first]} s"
        )


def _transfers(rows: Sequence[TransferRow]) -> "pa.Table":
    """Numbered rows; what was flushed before its first byte moved has no start."""
    import pyarrow as pa

    columns = _columns(TransferRow, rows)
    starts_s = np.array(columns["start_s"], np.float64)
    columns["start_s"] = pa.array(starts_s, mask=~np.isfinite(starts_s))
    return _table("transfers", {"transfer_id": range(len(rows)), **columns})


def _columns(kind: type[NamedTuple], rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    return {name: [row[place] for row in rows] for place, name in enumerate(kind._fields)}


def _table(name: str, columns: Mapping[str, Any]) -> "pa.Table":
    import pyarrow as pa

    def typed(column: str, kind: str) -> Any:
        values = columns[column]
        wanted = pa.list_(pa.float64()) if kind == "list<float64>" else pa.type_for_alias(kind)
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values.cast(wanted)
        return pa.array(values, wanted)

    return pa.table({column: typed(column, kind) for column, kind in SCHEMAS[name].items()})
