"""Cards of this very machine: what was timed on it, as constants of a host and of a network."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import smartgen
from smartgen.calibrate.card import line, write_whole
from smartgen.calibrate.constants import Floats
from smartgen.emu.measure import Measured, Sizes, Timings, measure
from smartgen.errors import SmartGenError
from smartgen.progress import Screen

DEFAULT_NAME = "this_machine"

PERCENTS = (5, 50, 95)
"""Of the repeats: the ends of the spread, and in the middle the value."""


@dataclass(frozen=True, slots=True)
class Found:
    """A constant in its unit, the spread of its repeats (5 and 95 %), and how it was measured."""

    name: str
    value: float
    low: float
    high: float
    digits: int
    times: int
    how: str

    @property
    def field(self) -> str:
        """Its key in a card."""
        return self.name.partition(".")[2]

    def told(self, value: float) -> str:
        """A value with this one's digits."""
        return f"{value:,.{self.digits}f}"

    @property
    def source(self) -> str:
        """What a card says beside the value."""
        spread = f"{self.told(self.low)} to {self.told(self.high)} (5 to 95 % of {self.times:,})"
        return f"measured: {spread}; {self.how}"


def run_measured(told: dict[str, str], output: Path | None) -> str:
    """Measure this machine; what came out. With an output, a folder, both cards are written."""
    name = _name(told)
    if output is not None and (output.suffix in (".yaml", ".yml") or output.is_file()):
        raise SmartGenError(
            f"-o {output} must be a folder: without files calibrate writes two cards, "
            "FOLDER/host/NAME.yaml and FOLDER/network/NAME.yaml"
        )
    screen = Screen(sys.stderr)
    try:
        measured = measure(Sizes(), lambda what: screen.show(f"measuring {what}"))
    finally:
        screen.clear()
    found = found_in(measured)
    text = report(measured, found)
    if output is None:
        return f"{text}\n" + "\n".join(fragments(found)) + "\n"
    paths = write_cards(output, name, measured, found)
    return (
        f"{text}\ncards: {', '.join(map(str, paths))}\n"
        f"use:   smartgen --config-dir {output} host={name} network={name}\n"
    )


def _name(told: dict[str, str]) -> str:
    others = [key for key in told if key != "name"]
    if others:
        raise SmartGenError(
            f"{others[0]}= goes with files; without files calibrate measures this machine and has "
            "name=NAME"
        )
    name = told.get("name", DEFAULT_NAME)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise SmartGenError(
            f"name={name!r} must be of letters, digits, '_' and '-', and begin with a letter"
        )
    conf = Path(smartgen.__file__).parent / "conf"
    for group in ("host", "network"):
        if (conf / group / f"{name}.yaml").exists():
            raise SmartGenError(
                f"name={name} is a {group} card that smartgen has, which would be used instead; "
                "choose another name"
            )
    return name


# -- from timings to constants


def found_in(measured: Measured) -> list[Found]:
    """Every constant, with its spread."""
    row = measured.sizes.row_bytes
    layer = f"{measured.sizes.layer_bytes / 2**20:.3g} MiB"
    rows = f"{measured.sizes.gathered_rows:,} scattered rows of {row} bytes"
    trips = micros(measured.round_trip)
    call_less_trip = micros(measured.call) - np.median(trips)
    return [
        _found("host.load_gbytes_per_s", rates(measured.load), 2, f"gather of {rows}, then a copy"),
        _found("host.dense_load_gbytes_per_s", rates(measured.dense_load), 2, f"copy of {layer}"),
        _found("host.gather_gbytes_per_s", rates(measured.gather), 2, f"gather of {rows}"),
        _found(
            "host.offload_gbytes_per_s",
            rates(measured.offload),
            2,
            f"copy of {layer} in chunks of {measured.sizes.chunk_bytes / 2**20:.3g} MiB",
        ),
        _found(
            "host.rpc_us",
            call_less_trip,
            1,
            "control message there and back between two processes through asyncio, less "
            "network.rtt_us",
        ),
        _found(
            "network.gbps",
            8 * rates(measured.stream),
            2,
            f"WRITEs of {layer} to another process by the emulator's tcp, over loopback",
        ),
        _found(
            "network.pair_us",
            pair_slopes(measured.pairs) * 1e6,
            3,
            f"slope over chains of {measured.pairs[0].amount:,} to {measured.pairs[-1].amount:,} "
            "pairs of WRITEs of 8 bytes by the emulator's tcp",
        ),
        _found(
            "network.rtt_us",
            trips,
            2,
            "a byte there and back over loopback, by sockets that block",
        ),
    ]


def rates(timings: Timings) -> Floats:
    """Decimal gigabytes a second, of every repeat."""
    return timings.amount / np.array(timings.seconds) / 1e9


def micros(timings: Timings) -> Floats:
    """Microseconds for one, of every repeat."""
    return np.array(timings.seconds) / timings.amount * 1e6


def pair_slopes(pairs: Sequence[Timings]) -> Floats:
    """Seconds that one more pair takes, of every turn: the least-squares line over all numbers."""
    numbers = np.array([timings.amount for timings in pairs], dtype=np.float64)
    seconds = np.array([timings.seconds for timings in pairs])  # [numbers, turns]
    centred = numbers - numbers.mean()
    slopes: Floats = centred @ seconds / (centred @ centred)
    return slopes


def _found(name: str, values: Floats, digits: int, how: str) -> Found:
    low, value, high = (float(one) for one in np.percentile(values, PERCENTS))
    # where something costs less than the noise, it costs nothing
    return Found(name, max(0.0, value), low, high, digits, len(values), how)


# -- what is told and written


def report(measured: Measured, found: Sequence[Found]) -> str:
    """A table for people."""
    acknowledged = _found("acknowledged", micros(measured.acknowledged), 1, "")
    head = ("constant", "median", "5 %", "95 %", "repeats", "what")
    rows = [
        head,
        *(
            (
                one.name,
                *(one.told(number) for number in (one.value, one.low, one.high)),
                f"{one.times:,}",
                one.how,
            )
            for one in found
        ),
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(
        [
            f"measured on {measured.machine}, {measured.day}",
            *lines,
            "note: no GPU takes part; its buffer is host memory",
            f"note: no card holds the {acknowledged.told(acknowledged.value)} us "
            f"({acknowledged.told(acknowledged.low)} to {acknowledged.told(acknowledged.high)}) "
            "until the emulator's tcp acknowledges a chain of no WRITEs, both ends in Python",
            "note: host.handover_ms is not measured, it is a GPU runtime's: a guess, as on L20",
            "",
        ]
    )


def fragments(found: Sequence[Found]) -> list[str]:
    """The measured constants as lines of their cards."""
    lines = []
    for card in ("host", "network"):
        lines += [f"# conf/{card}", *_lines(found, card)]
    return lines


def _lines(found: Sequence[Found], card: str) -> list[str]:
    return [
        line(one.field, one.value, one.digits, one.source)
        for one in found
        if one.name.startswith(f"{card}.")
    ]


def write_cards(output: Path, name: str, measured: Measured, found: Sequence[Found]) -> list[Path]:
    """Write a host's card and a network's into folders of an output; returns where they are."""
    command = f"smartgen calibrate name={name} -o {' '.join(str(output).split())}"
    head = [f"# this machine, {measured.machine}, {measured.day}: {command}; docs/calibration.md"]
    named = f"name: {json.dumps(name)}"
    host = [
        *head,
        "defaults: [l20_host, _self_]",
        named,
        *_lines(found, "host"),
        "# handover_ms:",
        "#   guess: as on L20's host (whose card it is read from); there is no GPU runtime here",
    ]
    rate = next(one for one in found if one.name == "network.gbps")
    network = [
        *head,
        "_target_: smartgen.cost.Network",
        named,
        *_lines(found, "network"),
        line("sender_gbps", rate.value, rate.digits, "guess: as gbps, a loopback has no sides"),
        line("efficiency", 1.0, 1, "gbps is what was reached, not a nominal rate"),
        "discipline: fifo",
    ]
    paths = []
    for group, lines in (("host", host), ("network", network)):
        path = output / group / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "\n".join(lines) + "\n")
        paths.append(path)
    return paths
