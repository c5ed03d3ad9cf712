"""From tables to constants of cards: which rows count for each, and by which law."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smartgen.calibrate.fit import Law, fit_law
from smartgen.calibrate.tables import Row, Table

SIXTEEN_BIT = ("half", "fp16", "float16", "bf16", "bfloat16")
BEYOND_CACHES = 128e6
"""Bytes that no GPU's last cache holds; fewer would be read faster than memory can."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number of a card, what it was fitted from, and how well one number tells those rows.

    law is what was fitted; alone is the same without an overhead, as a card that has none tells it.
    """

    name: str
    value: float
    digits: int
    method: str
    used: int
    of: int
    span: str
    law: Law
    alone: Law
    files: tuple[str, ...]

    @property
    def card(self) -> str:
        """gpu, host or network."""
        return self.name.partition(".")[0]

    @property
    def field(self) -> str:
        """The key within its card."""
        return self.name.partition(".")[2]


@dataclass(kw_only=True)
class Findings:
    """What came of all tables, and what they could not say."""

    constants: list[Constant] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def value(self, name: str) -> float | None:
        """A constant's value, if it was fitted."""
        return next((c.value for c in self.constants if c.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One constant: which rows count, what their work is, and how a rate becomes a value."""

    name: str
    kind: str
    method: str
    needs: str
    counts: Callable[[Row], bool]
    work: Callable[[Row], float]
    unit: tuple[str, float]  # of the work, and what one of it is
    scale: float
    digits: int


def _n(row: Row, column: str) -> float:
    return float(row[column])


def _is_prefill_gemm(row: Row) -> bool:
    return _is_16_bit(row) and _n(row, "m") >= 1024 and min(_n(row, "n"), _n(row, "k")) >= 2048


def _is_16_bit(row: Row) -> bool:
    return row["dtype"] in SIXTEEN_BIT


def _weight_bytes(row: Row) -> float:
    return 2 * _n(row, "n") * _n(row, "k")


def _reads_weights(row: Row) -> bool:
    return _is_16_bit(row) and _n(row, "m") <= 16 and _weight_bytes(row) >= BEYOND_CACHES


def _is_long_prefill(row: Row) -> bool:
    is_ours = row["by"] == "" or "flashattention" in str(row["by"]).lower()
    return (
        is_ours
        and _n(row, "tokens") >= 4096
        and _n(row, "heads") >= 8
        and _n(row, "head_dim") <= 128
    )


def _reads_kv(row: Row) -> bool:
    return (
        _n(row, "bytes") >= BEYOND_CACHES
        and _n(row, "tokens") >= 1024
        and _n(row, "sequences") >= 64
    )


MATMUL = Rule(
    name="gpu.matmul_tflops",
    kind="gemm",
    method="time = overhead + 2 m n k / rate over 16-bit GEMMs of prefill",
    needs="m >= 1024, n and k >= 2048",
    counts=_is_prefill_gemm,
    work=lambda row: 2 * _n(row, "m") * _n(row, "n") * _n(row, "k"),
    unit=("GFLOP", 1e9),
    scale=1e12,
    digits=1,
)
ATTENTION = Rule(
    name="gpu.attention_tflops",
    kind="prefill",
    method="time = overhead + FLOPs / rate over prefill attention, half of the pairs if causal",
    needs="tokens >= 4096, heads >= 8, head_dim <= 128",
    counts=_is_long_prefill,
    work=lambda row: _n(row, "flops"),
    unit=("GFLOP", 1e9),
    scale=1e12,
    digits=1,
)
WEIGHTS = Rule(
    name="gpu.weights_efficiency",
    kind="gemm",
    method="time = overhead + weight bytes / rate over GEMMs bound by memory; rate over the "
    "specification's",
    needs="m <= 16, weights of 128 MB or more",
    counts=_reads_weights,
    work=_weight_bytes,
    unit=("MB", 1e6),
    scale=1e9,
    digits=2,
)
ATTEND = Rule(
    name="gpu.attend_efficiency",
    kind="decoding",
    method="time = overhead + KV bytes / rate over attention of one new token; rate over the "
    "specification's",
    needs="KV of 128 MB or more, 1024 tokens or more, batch x KV heads >= 64",
    counts=_reads_kv,
    work=lambda row: _n(row, "bytes"),
    unit=("MB", 1e6),
    scale=1e9,
    digits=2,
)
OFFLOAD = Rule(
    name="host.offload_gbytes_per_s",
    kind="copy",
    method="time = overhead + bytes / rate over pinned copies, device to host",
    needs="direction d2h",
    counts=lambda row: row["direction"] == "d2h",
    work=lambda row: _n(row, "bytes"),
    unit=("MB", 1e6),
    scale=1e9,
    digits=1,
)
COPY = Rule(
    name="host.copy_gbytes_per_s",
    kind="copy",
    method="time = overhead + bytes / rate over pinned copies, host to device; with a gather in "
    "series it makes the load rate",
    needs="direction h2d",
    counts=lambda row: row["direction"] == "h2d",
    work=lambda row: _n(row, "bytes"),
    unit=("MB", 1e6),
    scale=1e9,
    digits=1,
)


def fitted(rule: Rule, tables: Sequence[Table], per: float = 1.0) -> Constant | str:
    """The constant by a rule, or why there is none; per is what its rate is a share of."""
    rows = [row for table in tables for row in table.rows]
    used = _of_the_library([row for row in rows if rule.counts(row)])
    files = tuple(table.path.name for table in tables)
    if not used:
        return f"{rule.name} is not fitted: none of {len(rows)} rows has {rule.needs}"
    work = np.array([rule.work(row) for row in used])
    seconds = np.array([_n(row, "time_s") for row in used])
    law = fit_law(work, seconds)
    return Constant(
        name=rule.name,
        value=law.rate / rule.scale / per,
        digits=rule.digits,
        method=f"{rule.method} ({rule.needs})",
        used=len(used),
        of=len(rows),
        span=span_of(work, *rule.unit),
        law=law,
        alone=fit_law(work, seconds, with_overhead=False),
        files=files,
    )


def _of_the_library(rows: list[Row]) -> list[Row]:
    """Of several implementations of a GEMM, cuBLAS, which frameworks call."""
    library = [row for row in rows if "cublas" in str(row.get("by", "")).lower()]
    return library or rows


def span_of(values: Floats, unit: str, one: float) -> str:
    """The range of values, in a unit."""
    low, high = float(values.min()) / one, float(values.max()) / one
    return f"{low:,.4g} {unit}" if low == high else f"{low:,.4g} to {high:,.4g} {unit}"


def gpu_constants(
    tables: Sequence[Table], memory_gbytes_per_s: float | None, peak_tflops: float | None
) -> Findings:
    """Rates of a GPU; shares of its memory's rate only where the specified one is known."""
    found = Findings()
    for rule in (MATMUL, ATTENTION, WEIGHTS, ATTEND):
        of_kind = [table for table in tables if table.kind == rule.kind]
        if not of_kind:
            continue
        is_share = rule.name.endswith("_efficiency")
        if is_share and memory_gbytes_per_s is None:
            found.notes.append(
                f"{rule.name} is not fitted: the GPU's specified memory rate is not known; add "
                "memory_gbytes_per_s=NUMBER"
            )
            continue
        one = fitted(rule, of_kind, (memory_gbytes_per_s or 1.0) if is_share else 1.0)
        _keep(found, one)
        most = 1.0 if is_share else peak_tflops
        if isinstance(one, Constant) and most is not None and one.value > most:
            found.notes.append(
                f"{one.name}={one.value:.4g} is above the specification's {most:g}: is the table's "
                "time in the unit that its header names?"
            )
    return found


def host_constants(tables: Sequence[Table]) -> Findings:
    """Rates of copies between a host and its GPU, of one system."""
    found = Findings()
    for rule in (OFFLOAD, COPY):
        _keep(found, fitted(rule, tables))
    return found


def _keep(found: Findings, one: Constant | str) -> None:
    if isinstance(one, str):
        found.notes.append(one)
    else:
        found.constants.append(one)


def named_test(table: Table) -> str:
    """write, send or read: as the output says, a comment, or the file's name; else write."""
    told = f"{table.facts.get('test', '')} {Path(table.path).name}".lower()
    return next((test for test in ("write", "send", "read") if test in told), "write")
