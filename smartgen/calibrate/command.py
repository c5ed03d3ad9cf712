"""``smartgen calibrate [FILE...] [-o ...]``: prints constants, writes cards.

From files, which are tables, it makes one card; without any it measures this very machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smartgen.calibrate.card import fragment, write_card
from smartgen.calibrate.constants import Constant, Findings, gpu_constants, host_constants
from smartgen.calibrate.machine import run_measured
from smartgen.calibrate.network import network_constants
from smartgen.calibrate.specs import Spec, spec_of
from smartgen.calibrate.tables import Table, positive_in, read_table
from smartgen.errors import SmartGenError

CARDS = {
    "gpu": ("gemm", "prefill", "decoding"),
    "host": ("copy",),
    "network": ("bandwidth", "latency"),
}
"""Which kinds of table each card is made from."""

KEYS = ("memory_gbytes_per_s", "gbps", "system", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the tables do not say in their columns: the command, a comment or a name does."""

    spec: Spec | None
    memory_gbytes_per_s: float | None
    gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that came of some files."""

    machine: Machine
    found: Findings


def run(arguments: Sequence[str], output: Path | None) -> str:
    """What the command prints; with an output, that card is written as well."""
    paths, told = _parted(arguments)
    if not paths:
        return run_measured(told, output)
    if "name" in told:
        raise SmartGenError("name= goes without files; a card from files is named by -o CARD.yaml")
    done = calibration([read_table(path) for path in paths], told)
    text = _report(done)
    if output is not None:
        write_card(output, done.found, done.machine.spec, done.machine)
        return f"{text}\ncard: {output}\n"
    return f"{text}\n{fragment(done.found)}"


def _parted(arguments: Sequence[str]) -> tuple[list[Path], dict[str, str]]:
    """Files, and keys with their values."""
    paths, told = [], {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and not Path(argument).exists():
            if key not in KEYS:
                raise SmartGenError(
                    f"{argument!r} is neither a file nor a key; calibrate has {', '.join(KEYS)}"
                )
            told[key] = value
        elif argument.startswith("-"):
            raise SmartGenError(f"{argument!r} is no option; calibrate has -o CARD.yaml")
        else:
            paths.append(Path(argument))
    return paths, told


def calibration(tables: Sequence[Table], told: dict[str, str]) -> Calibration:
    """Constants from tables of one machine; raises SmartGenError where they are of several."""
    machine = _machine(tables, told)
    by_card = {
        card: [table for table in tables if table.kind in kinds] for card, kinds in CARDS.items()
    }
    found = Findings()
    parts: list[Findings] = []
    if by_card["gpu"]:
        peak = machine.spec.peak_tflops if machine.spec else None
        parts.append(gpu_constants(by_card["gpu"], machine.memory_gbytes_per_s, peak))
    if by_card["host"]:
        parts.append(host_constants(_of_one_system(by_card["host"], told.get("system"))))
    if by_card["network"]:
        parts.append(network_constants(by_card["network"], machine.gbps))
    for part in parts:
        found.constants += part.constants
        found.notes += part.notes
    if not found.constants:
        raise SmartGenError(f"nothing was fitted: {'; '.join(found.notes)}")
    return Calibration(machine=machine, found=found)


def _machine(tables: Sequence[Table], told: dict[str, str]) -> Machine:
    specs = {
        spec.name: (spec, table) for table in tables if (spec := _spec_of_table(table)) is not None
    }
    if len(specs) > 1:
        names = ", ".join(f"{table.path} of {name}" for name, (_, table) in specs.items())
        raise SmartGenError(f"these are tables of several GPUs: {names}; give those of one")
    spec = next((spec for spec, _ in specs.values()), None)
    memory = _number(tables, told, "memory_gbytes_per_s")
    if memory is None and spec is not None:
        memory = spec.memory_gbytes_per_s
    return Machine(spec=spec, memory_gbytes_per_s=memory, gbps=_number(tables, told, "gbps"))


def _spec_of_table(table: Table) -> Spec | None:
    """By a comment, else a column, else the file's name; hosts and networks name none."""
    if table.kind not in CARDS["gpu"]:
        return None
    for text in (table.facts.get("hardware", ""), str(table.rows[0].get("by", ""))):
        spec = spec_of(text)
        if spec is not None:
            return spec
    return None if table.facts.get("hardware") else spec_of(table.path.name)


def _number(tables: Sequence[Table], told: dict[str, str], key: str) -> float | None:
    """What the command says of a key, else the comments, which must agree."""
    if key in told:
        return positive_in("calibrate", key, told[key])
    values = {
        positive_in(str(table.path), key, table.facts[key]): table.path
        for table in tables
        if key in table.facts
    }
    if len(values) > 1:
        names = ", ".join(f"{value:g} in {path}" for value, path in values.items())
        raise SmartGenError(f"{key} differs: {names}; give {key}=NUMBER")
    return next(iter(values), None)


def _of_one_system(tables: Sequence[Table], asked: str | None) -> list[Table]:
    """The rows whose system contains what was asked for; they must be of one system."""
    wanted = (asked or "").lower()
    kept = [
        Table(
            path=table.path,
            kind=table.kind,
            facts=table.facts,
            rows=[row for row in table.rows if wanted in str(row["system"]).lower()],
        )
        for table in tables
    ]
    systems = list(dict.fromkeys(str(row["system"]) for table in kept for row in table.rows))
    if len(systems) != 1:
        every = dict.fromkeys(str(row["system"]) for table in tables for row in table.rows)
        names = "; ".join(systems or every)
        raise SmartGenError(
            f"{tables[0].path}: system={asked or ''!r} stands for {len(systems)} systems; it must "
            f"be a part of one of these: {names}"
        )
    return kept


def _report(done: Calibration) -> str:
    spec, memory = done.machine.spec, done.machine.memory_gbytes_per_s
    lines = []
    if spec is not None:
        rate = "" if memory is None else f", {memory:,g} GB/s"
        lines.append(f"hardware: {spec.name} (specified: {spec.peak_tflops:g} TFLOPS{rate})")
    head = ("constant", "value", "rows used", "range", "overhead", "error", "one rate alone")
    rows = [head, *(_cells(constant) for constant in done.found.constants)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.append("error: relative, median / worst over the rows used")
    lines += [f"{c.name}: {c.method}; from {', '.join(c.files)}" for c in done.found.constants]
    lines += [f"note: {note}" for note in done.found.notes]
    return "\n".join(lines) + "\n"


def _cells(constant: Constant) -> tuple[str, ...]:
    law, alone = constant.law, constant.alone
    alone_value = f"{constant.value * alone.rate / law.rate:.{constant.digits}f}"
    return (
        constant.name,
        f"{constant.value:.{constant.digits}f}",
        f"{constant.used:,} of {constant.of:,}",
        constant.span,
        f"{law.overhead_s * 1e6:.1f} us" if law.overhead_s else "-",
        f"{law.median_error:.1%} / {law.worst_error:.0%}",
        f"{alone_value}, {alone.median_error:.1%} / {alone.worst_error:.0%}",
    )
