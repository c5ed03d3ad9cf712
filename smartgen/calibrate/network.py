"""Constants of a network card from perftest's tables."""

from collections.abc import Sequence

import numpy as np

from smartgen.calibrate.constants import Constant, Findings, Floats, named_test, span_of
from smartgen.calibrate.fit import fit_law
from smartgen.calibrate.tables import Table

LARGE_BYTES = 65536
"""Messages of so many bytes and more are bound by the link."""

SMALL_BYTES = 64
"""Messages of up to so many are bound by the adapter."""

_TESTS = ("write", "send", "read")
"""In order of what pushes use."""


def network_constants(tables: Sequence[Table], gbps: float | None) -> Findings:
    """Share of the nominal rate, cost of a pair of WRITEs, round trip."""
    found = Findings()
    bandwidth = _by_test([table for table in tables if table.kind == "bandwidth"])
    latency = _by_test([table for table in tables if table.kind == "latency"])
    for tables_of_kind in (bandwidth, latency):
        tests = [named_test(table) for table in tables_of_kind]
        found.notes += [
            f"{table.path.name} is not used: {tables_of_kind[tests.index(test)].path.name} is of "
            f"{test.upper()}s as well"
            for i, (table, test) in enumerate(zip(tables_of_kind, tests, strict=True))
            if tests.index(test) < i
        ]
    if bandwidth:
        _efficiency(found, bandwidth, gbps)
        _pair(found, bandwidth[0])
    if latency:
        _round_trip(found, latency[0])
    return found


def _by_test(tables: list[Table]) -> list[Table]:
    return sorted(tables, key=lambda table: _TESTS.index(named_test(table)))


def _constant(
    name: str, digits: int, method: str, table: Table, used: Floats, scaled: tuple[Floats, float]
) -> Constant:
    """One number for all rows: used is their bytes, scaled their values and what one of it is."""
    values, one = scaled
    law = fit_law(values, np.ones_like(values), with_overhead=False)
    return Constant(
        name=name,
        value=law.rate * one,
        digits=digits,
        method=f"{method} ({named_test(table).upper()}s)",
        used=len(values),
        of=len(table.rows),
        span=span_of(used, "bytes", 1),
        law=law,
        alone=law,
        files=(table.path.name,),
    )


def _efficiency(found: Findings, tables: list[Table], gbps: float | None) -> None:
    """Of the first test that stays within the nominal rate; a table above it is of another link."""
    if gbps is None:
        found.notes.append(
            "network.efficiency is not fitted: the link's nominal rate is not known; "
            "add gbps=NUMBER"
        )
        return
    method = f"usual rate over gbps={gbps:g}, of messages of 64 KiB or more"
    for table in tables:
        sizes = table.numbers("bytes")
        is_large = sizes >= LARGE_BYTES
        if not is_large.any():
            found.notes.append(f"{table.path.name}: no message of {LARGE_BYTES} bytes or more")
            continue
        shares = table.numbers("bytes_per_s")[is_large] * 8 / (gbps * 1e9)
        one = _constant("network.efficiency", 3, method, table, sizes[is_large], (shares, 1.0))
        if one.value <= 1.0:
            found.constants.append(one)
            return
        found.notes.append(
            f"{table.path.name}: {named_test(table).upper()}s reach {one.value:.3f} of "
            f"gbps={gbps:g}, so that is not their link's rate; not used for network.efficiency"
        )


def _pair(found: Findings, table: Table) -> None:
    sizes = table.numbers("bytes")
    is_small = sizes <= SMALL_BYTES
    if not is_small.any() or named_test(table) == "read":
        found.notes.append(
            f"network.pair_us is not fitted: {table.path.name} has no WRITEs or SENDs of "
            f"{SMALL_BYTES} bytes or less (run perftest with -a)"
        )
        return
    seconds = 2 / table.numbers("messages_per_s")[is_small]
    method = f"two messages at the usual rate of messages of {SMALL_BYTES} bytes or less"
    found.constants.append(
        _constant("network.pair_us", 2, method, table, sizes[is_small], (seconds, 1e6))
    )


def _round_trip(found: Findings, table: Table) -> None:
    sizes = table.numbers("bytes")
    is_small = sizes <= SMALL_BYTES
    if not is_small.any():
        found.notes.append(
            f"network.rtt_us is not fitted: {table.path.name} has no message of {SMALL_BYTES} "
            "bytes or less"
        )
        return
    ways = 1 if named_test(table) == "read" else 2  # perftest halves what goes there and back
    method = f"{ways} x the typical time of messages of {SMALL_BYTES} bytes or less"
    seconds = ways * table.numbers("time_s")[is_small]
    found.constants.append(
        _constant("network.rtt_us", 2, method, table, sizes[is_small], (seconds, 1e6))
    )
