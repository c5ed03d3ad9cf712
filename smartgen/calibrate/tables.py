"""Tables of measurements, each known by its header: which kind it is, and its rows in plain units.

Lines that begin with # are comments; ``# hardware: ...`` and the like are facts about the table.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import SmartGenError

Row = dict[str, float | str]

MIB = 2**20
"""What perftest calls a MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one file in bytes and seconds, and what its comments say of all of them."""

    path: Path
    kind: str
    facts: Mapping[str, str]
    rows: Sequence[Row]

    def numbers(self, column: str) -> NDArray[np.float64]:
        """A column of numbers, [rows]."""
        return np.array([row[column] for row in self.rows], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a file before it is understood; every question it cannot answer is refused."""

    where: str
    fields: Mapping[str, str]

    def number(self, column: str) -> float:
        """What stands in a column, which must be a positive number."""
        return positive_in(self.where, column, self.fields[column])

    def text(self, column: str) -> str:
        """The same, as it stands."""
        return self.fields[column].strip()


def positive_in(where: str, column: str, text: str) -> float:
    """A text as a positive number; where says in which file and line it stands."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 1e-18 < value < 1e18:  # beyond, products of a few would not be finite
        raise SmartGenError(f"{where}: {column}={text.strip()!r} must be a positive number")
    return value


def _gemm(line: Line, time_s: float, by: str = "", dtype: str = "bf16") -> Row:
    shape: Row = {name: line.number(name) for name in ("m", "n", "k")}
    return {**shape, "time_s": time_s, "by": by, "dtype": dtype}


def _gemm_aiconfigurator(line: Line) -> Row:
    return _gemm(line, line.number("latency_ms") * 1e-3)


def _gemm_apex(line: Line) -> Row:
    return _gemm(line, line.number("time(us)") * 1e-6, line.text("gpu"), line.text("dtype"))


def _gemm_leetcuda(line: Line) -> Row:
    return _gemm(line, line.number("time_s"), line.text("impl"))


def _attention(
    batch: float, tokens: float, heads: float, head_dim: float, *, causal: bool
) -> dict[str, float | str]:
    pairs = batch * heads * tokens * tokens * (0.5 if causal else 1.0)
    return {"flops": 4 * head_dim * pairs, "tokens": tokens, "heads": heads, "head_dim": head_dim}


def _prefill_aiconfigurator(line: Line) -> Row:
    shape = [line.number(name) for name in ("batch_size", "isl", "num_heads", "head_dim")]
    return {**_attention(*shape, causal=True), "time_s": line.number("latency_ms") * 1e-3, "by": ""}


def _prefill_leetcuda(line: Line) -> Row:
    shape = [line.number(name) for name in ("B", "N", "H", "D")]
    row = _attention(*shape, causal=line.text("causal") == "causal")
    if line.text("time_ms"):
        row["time_s"] = line.number("time_ms") * 1e-3
    else:
        row["time_s"] = float(row["flops"]) / (line.number("tflops") * 1e12)
    if line.text("causal").startswith(("cross", "decode")):
        row["tokens"] = 0.0  # queries are fewer than keys: no prefill
    return {**row, "by": line.text("impl")}


def _decoding(line: Line) -> Row:
    batch, new, step = (line.number(name) for name in ("batch_size", "isl", "step"))
    heads, head_dim = line.number("num_key_value_heads"), line.number("head_dim")
    kv_bytes = 2 * 2 * batch * (step + new) * heads * head_dim  # K and V, 16-bit
    return {
        "bytes": kv_bytes,
        "tokens": step + new,
        "sequences": batch * heads,
        "time_s": line.number("latency_ms") * 1e-3,
    }


def _copy(line: Line) -> Row:
    direction, size = line.text("direction"), line.number("bytes")
    if direction not in ("h2d", "d2h"):
        raise SmartGenError(f"{line.where}: direction={direction!r} must be h2d or d2h")
    system = f"{line.text('system')}, {line.text('gpu')}, {line.text('pcie')}"
    seconds = size / (line.number("GBps") * 1e9)
    return {"system": system, "direction": direction, "bytes": size, "time_s": seconds}


def bandwidth_row(size: float, bytes_per_s: float, messages_per_s: float) -> Row:
    """A row of a bandwidth test."""
    return {"bytes": size, "bytes_per_s": bytes_per_s, "messages_per_s": messages_per_s}


def _bandwidth(unit_bytes: float, column: str) -> Callable[[Line], Row]:
    def read(line: Line) -> Row:
        rate = line.number(column) * unit_bytes
        return bandwidth_row(line.number("bytes"), rate, line.number("msg_rate_mpps") * 1e6)

    return read


def _latency(line: Line) -> Row:
    return {"bytes": line.number("bytes"), "time_s": line.number("t_typical_us") * 1e-6}


@dataclass(frozen=True, slots=True)
class Format:
    """A table known by the columns that it needs; further columns are not looked at."""

    kind: str
    of: str
    columns: tuple[str, ...]
    read: Callable[[Line], Row]


def _format(kind: str, of: str, columns: str, read: Callable[[Line], Row]) -> Format:
    return Format(kind, of, tuple(columns.split(",")), read)


_HEADS = "num_heads,num_key_value_heads,head_dim,latency_ms"

FORMATS = (
    _format("gemm", "GEMM", "m,n,k,latency_ms", _gemm_aiconfigurator),
    _format("gemm", "GEMM", "gpu,dtype,m,k,n,time(us)", _gemm_apex),
    _format("gemm", "GEMM", "impl,m,n,k,time_s,tflops", _gemm_leetcuda),
    _format("decoding", "decoding attention", f"batch_size,isl,step,{_HEADS}", _decoding),
    _format("prefill", "prefill attention", f"batch_size,isl,{_HEADS}", _prefill_aiconfigurator),
    _format(
        "prefill",
        "prefill attention",
        "impl,B,H,N,D,causal,dtype,tflops,time_ms",
        _prefill_leetcuda,
    ),
    _format("copy", "pinned copies", "system,gpu,pcie,direction,bytes,GBps", _copy),
    _format(
        "bandwidth",
        "perftest",
        "bytes,bw_avg_gbps,msg_rate_mpps",
        _bandwidth(1e9 / 8, "bw_avg_gbps"),
    ),
    _format(
        "bandwidth", "perftest", "bytes,bw_avg_MBps,msg_rate_mpps", _bandwidth(MIB, "bw_avg_MBps")
    ),
    _format("latency", "perftest", "bytes,t_typical_us", _latency),
)

KNOWN = "; ".join(f"{known.of}: {','.join(known.columns)}" for known in FORMATS)


def read_table(path: Path) -> Table:
    """The table in a file; raises SmartGenError naming the file and line of what is wrong."""
    from smartgen.calibrate.perftest import is_perftest, read_perftest

    lines = _lines(path)
    if is_perftest(lines):
        return read_perftest(path, lines)
    facts = facts_in(lines)
    body = [(i, text) for i, text in enumerate(lines, 1) if text.strip() and text[0] != "#"]
    if not body:
        raise SmartGenError(f"{path}: is empty; it must be a table, of one of these: {KNOWN}")
    header = [name.strip() for name in _split(body[0][1])]
    known = next((f for f in FORMATS if set(f.columns) <= set(header)), None)
    if known is None:
        raise SmartGenError(
            f"{path}, line {body[0][0]}: {_short(body[0][1])!r} is the header of no known table; "
            f"there are {KNOWN}; and what perftest prints"
        )
    if len(body) == 1:
        raise SmartGenError(f"{path}, line {body[0][0]}: no row follows the header; one must")
    rows = [_row(path, i, text, header, known) for i, text in body[1:]]
    return Table(path=path, kind=known.kind, facts=facts, rows=rows)


def _row(path: Path, number: int, text: str, header: list[str], known: Format) -> Row:
    where, fields = f"{path}, line {number}", _split(text)
    if len(fields) != len(header):
        raise SmartGenError(
            f"{where}: {_short(text)!r} has {len(fields)} fields; the header names "
            f"{len(header)}: {','.join(header)}"
        )
    return known.read(Line(where, dict(zip(header, fields, strict=True))))


def _split(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error:  # a field without end
        return text.split(",")


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lines(path: Path) -> list[str]:
    if path.is_dir():
        raise SmartGenError(f"{path}: is a folder; calibrate takes files, name those in it")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SmartGenError(f"{path}: is no text file; calibrate reads tables as text (CSV)")
    return text.splitlines()


def facts_in(lines: Sequence[str]) -> dict[str, str]:
    """Facts that comments state, like ``# hardware: NVIDIA L20``."""
    matches = (re.fullmatch(r"#\s*([a-z_]+):\s*(.+?)\s*", line) for line in lines)
    return {match[1]: match[2] for match in matches if match}
