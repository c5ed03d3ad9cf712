"""What ib_write_bw, ib_read_bw, ib_send_bw and their _lat counterparts print, as they print it."""

import re
from collections.abc import Sequence
from pathlib import Path

from smartgen.calibrate.tables import MIB, Row, Table, bandwidth_row, facts_in, positive_in
from smartgen.errors import SmartGenError

_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+(.*)$")
_COLUMN = re.compile(r"[\w.%]+(?: \w+)?\s?\[[^\]]+\]|tps average")
_TITLE = re.compile(r"^\s*(?:RDMA_)?(Write|Read|Send|Atomic)\b.*\b(?:BW|Latency) Test", re.I)
_UNITS = {"MB/sec": float(MIB), "MiB/sec": float(MIB), "Gb/sec": 1e9 / 8}
"""Bytes a second of one of perftest's units."""


def is_perftest(lines: Sequence[str]) -> bool:
    """Whether these lines hold a result of perftest."""
    return any(_HEADER.match(line) for line in lines)


def read_perftest(path: Path, lines: Sequence[str]) -> Table:
    """The table in what one test printed; of several tests in one file, the first kind's rows."""
    facts = facts_in(lines)
    columns: list[str] = []
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        title, header = _TITLE.match(line), _HEADER.match(line)
        if title:
            _check_title(f"{path}, line {number}", line, title[1].lower(), facts)
        elif header:
            columns = _columns(f"{path}, line {number}", header[1], columns)
        elif columns and re.match(r"^\s*\d", line):
            rows.append(_row(f"{path}, line {number}", line, columns))
    if not rows:
        raise SmartGenError(f"{path}: no row follows perftest's header; one must")
    kind = "latency" if "time_s" in rows[0] else "bandwidth"
    return Table(path=path, kind=kind, facts=facts, rows=rows)


def _check_title(where: str, line: str, test: str, facts: dict[str, str]) -> None:
    if "bidirectional" in line.lower():
        raise SmartGenError(f"{where}: a bidirectional test; run it in one direction (without -b)")
    if test == "atomic":
        raise SmartGenError(f"{where}: an atomic test; it must be of WRITEs, READs or SENDs")
    if facts.setdefault("test", test) != test:
        raise SmartGenError(f"{where}: a second test, of {test}; give each test a file of its own")


def _columns(where: str, header: str, before: list[str]) -> list[str]:
    columns = ["#bytes", "#iterations", *(match.strip() for match in _COLUMN.findall(header))]
    if before and columns != before:
        raise SmartGenError(f"{where}: a second header; give each test a file of its own")
    if not any(name.startswith(("BW average", "t_typical", "t_avg")) for name in columns):
        raise SmartGenError(f"{where}: no column BW average, t_typical or t_avg; one is needed")
    return columns


def _row(where: str, line: str, columns: list[str]) -> Row:
    fields = line.split()
    if len(fields) != len(columns):
        raise SmartGenError(
            f"{where}: {line.strip()!r} has {len(fields)} fields; the header names {len(columns)}"
        )
    named = dict(zip(columns, fields, strict=True))
    size = positive_in(where, "#bytes", named["#bytes"])
    average = next((name for name in columns if name.startswith("BW average")), None)
    if average is None:
        time = next(name for kind in ("t_typical", "t_avg") for name in columns if kind in name)
        return {"bytes": size, "time_s": positive_in(where, time, named[time]) * 1e-6}
    unit = average.partition("[")[2].rstrip("]")
    if unit not in _UNITS:
        raise SmartGenError(f"{where}: {average} must be in one of {', '.join(_UNITS)}")
    rate = positive_in(where, average, named[average]) * _UNITS[unit]
    told = named.get("MsgRate[Mpps]")
    messages = rate / size if told is None else positive_in(where, "MsgRate", told) * 1e6
    return bandwidth_row(size, rate, messages)
