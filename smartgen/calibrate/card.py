"""A card in YAML, each number with where it came from; what no table covers is a named guess."""

import json
import os
from pathlib import Path
from typing import Protocol

from smartgen.calibrate.constants import Constant, Findings
from smartgen.calibrate.specs import Spec
from smartgen.errors import SmartGenError

GATHER_GBYTES_PER_S = (6.3, 5.2, 7.6)
"""A CPU's gather: what a copy at 20 GB/s leaves of L20's load rate of 4.8, fitted to 4.1 to 5.5."""

_AS_ON_L20 = {
    "gpu": ("launch_overhead_us", "select_us", "select_ns_per_token", "prefill_ms", "hack"),
    "host": ("gather_gbytes_per_s", "rpc_us", "handover_ms"),
}


class Told(Protocol):
    """What tables do not say in their columns."""

    @property
    def memory_gbytes_per_s(self) -> float | None:
        """The specification's."""

    @property
    def gbps(self) -> float | None:
        """The link's nominal rate."""


def fragment(found: Findings) -> str:
    """The measured constants as lines of their cards."""
    lines: list[str] = []
    for card in dict.fromkeys(constant.card for constant in found.constants):
        lines.append(f"# conf/{card}")
        lines += [_measured(c) for c in found.constants if c.card == card and c.field in _FIELDS]
        if card == "host":
            lines += _load(found)
    return "\n".join(lines) + "\n"


_FIELDS = (
    "matmul_tflops",
    "attention_tflops",
    "weights_efficiency",
    "attend_efficiency",
    "offload_gbytes_per_s",
    "efficiency",
    "pair_us",
    "rtt_us",
)


def write_card(path: Path, found: Findings, spec: Spec | None, told: Told) -> None:
    """Write a whole card, at once or not at all; refuses constants of several cards."""
    if path.is_dir() or not path.parent.is_dir():
        raise SmartGenError(f"-o {path} must be a file in a folder that exists")
    cards = list(dict.fromkeys(constant.card for constant in found.constants))
    if len(cards) > 1:
        raise SmartGenError(
            f"-o writes one card, and these are tables for {', '.join(cards)}; calibrate each alone"
        )
    make = {"gpu": _gpu, "host": _host, "network": _network}[cards[0]]
    files = dict.fromkeys(name for constant in found.constants for name in constant.files)
    hardware = "" if spec is None else f"{spec.name}; "
    head = [f"# {hardware}made by smartgen calibrate from {', '.join(map(_plain, files))}"]
    name = f"name: {json.dumps(path.stem)}"
    write_whole(path, "\n".join(head + make(name, found, spec, told)) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file at once or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _plain(text: str) -> str:
    return " ".join(text.split())


def line(key: str, value: float, digits: int, comment: str) -> str:
    """A line of a card."""
    return f"{f'{key}: {value:.{digits}f}':<30} # {comment}"


def _measured(one: Constant) -> str:
    law = one.law
    told = (
        f"measured: {', '.join(map(_plain, one.files))}, {one.used:,} of {one.of:,} rows; "
        f"error {law.median_error:.1%} median, {law.worst_error:.0%} worst"
    )
    return line(one.field, one.value, one.digits, told)


def _or_guess(found: Findings, name: str, digits: int, guess: tuple[float, float, float]) -> str:
    """What was measured, or a guess with its range."""
    one = next((c for c in found.constants if c.name == name), None)
    if one is not None:
        return _measured(one)
    value, low, high = guess
    key = name.partition(".")[2]
    return line(key, value, digits, f"guess: {low:.{digits}f} to {high:.{digits}f}")


def _inherited(card: str) -> list[str]:
    lines = [f"# {', '.join(_AS_ON_L20[card])}:"]
    return [*lines, "#   guess: as on L20, from half to three times that"]


def _gpu(name: str, found: Findings, spec: Spec | None, told: Told) -> list[str]:
    memory = told.memory_gbytes_per_s
    if memory is None:
        raise SmartGenError(
            "the card's memory_gbytes_per_s is not known; add memory_gbytes_per_s=NUMBER (the "
            "specification's)"
        )
    matmul, attention = (found.value(f"gpu.{k}_tflops") for k in ("matmul", "attention"))
    if matmul is None:
        matmul = attention / 0.65 if attention else 0.8 * spec.peak_tflops if spec else None
    if matmul is None:
        raise SmartGenError(
            "the card's matmul_tflops cannot be guessed from these tables; add one of GEMMs"
        )
    scaled = (matmul, matmul * 0.7, matmul * 1.25)
    usual = (matmul * 0.65, matmul * 0.5, matmul * 0.9)
    return [
        "defaults: [l20, _self_]",
        name,
        _or_guess(found, "gpu.matmul_tflops", 1, scaled),
        _or_guess(found, "gpu.attention_tflops", 1, usual),
        line("memory_gbytes_per_s", memory, 1, "specification"),
        _or_guess(found, "gpu.weights_efficiency", 2, (0.82, 0.75, 0.95)),
        _or_guess(found, "gpu.attend_efficiency", 2, (0.8, 0.7, 0.95)),
        *_inherited("gpu"),
    ]


def in_series(gather: float, copy: float) -> float:
    """The rate of a gather and then a copy, at two rates."""
    return 1 / (1 / gather + 1 / copy)


def _load(found: Findings) -> list[str]:
    copy = found.value("host.copy_gbytes_per_s")
    if copy is None:
        return []
    value, low, high = (in_series(gather, copy) for gather in GATHER_GBYTES_PER_S)
    told = (
        f"guess: {low:.1f} to {high:.1f}; a CPU's gather at {GATHER_GBYTES_PER_S[0]} (a guess) in "
        f"series with the copy, measured {copy:.1f}"
    )
    return [
        line("load_gbytes_per_s", value, 1, told),
        line("dense_load_gbytes_per_s", value, 1, "guess: the same path"),
    ]


def _host(name: str, found: Findings, spec: Spec | None, told: Told) -> list[str]:
    copy = found.value("host.copy_gbytes_per_s") or found.value("host.offload_gbytes_per_s") or 20.0
    load = _load(found) or ["# load_gbytes_per_s: guess: as on L20's host; no copies to the device"]
    return [
        "defaults: [l20_host, _self_]",
        name,
        *load,
        _or_guess(found, "host.offload_gbytes_per_s", 1, (copy, copy * 0.8, copy * 1.1)),
        *_inherited("host"),
    ]


def _network(name: str, found: Findings, spec: Spec | None, told: Told) -> list[str]:
    if told.gbps is None:
        raise SmartGenError(
            "the card's gbps is not known; add gbps=NUMBER (the link's nominal rate)"
        )
    return [
        "_target_: smartgen.cost.Network",
        name,
        line("gbps", told.gbps, 1, "nominal"),
        line("sender_gbps", told.gbps, 1, "guess: as the receiver's; up to twice that"),
        _or_guess(found, "network.efficiency", 3, (0.97, 0.92, 1.0)),
        _or_guess(found, "network.pair_us", 2, (0.5, 0.2, 0.8)),
        _or_guess(found, "network.rtt_us", 2, (4.0, 1.5, 50.0)),
        "discipline: fifo",
    ]
