"""Emulated runs: how real they were, and how far they are from the simulation of the same."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smartgen.errors import SmartGenError
from smartgen.metrics.labels import what_happens
from smartgen.metrics.store import Run
from smartgen.metrics.summary import Metrics

VALUES: Mapping[str, Callable[[Metrics], float | None]] = {
    "ttst_s": lambda metrics: metrics["ttst_s"]["mean"],
    "tbt_s": lambda metrics: metrics["tbt_s"]["mean"],
    "last_ctl_s": lambda metrics: metrics["ctl_s"][-1] if metrics["ctl_s"] else None,
    "ttft_s": lambda metrics: metrics["ttft_s"]["mean"],
}
"""What an emulation is compared in, in seconds of the cards."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An emulated run and the simulated one of the same configuration."""

    simulated: Run
    emulated: Run

    @property
    def told(self) -> Mapping[str, Any]:
        """How it was emulated."""
        told: Mapping[str, Any] = self.emulated.metrics["emulation"]
        return told

    def ratio(self, name: str) -> float:
        """Emulated over simulated; NaN where one has no such value."""
        ours, theirs = (VALUES[name](run.metrics) for run in (self.emulated, self.simulated))
        return ours / theirs if ours is not None and theirs else math.nan


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """Every emulated run with the simulated one of the same configuration.

    The same is: in all keys but backend, emu, and those that change only what is kept or drawn.
    Emulated runs that were not simulated are left out, and the other way round. Raises
    SmartGenError if nothing pairs.
    """
    simulated = {_same(run): run for run in runs if run.metrics["backend"] == "sim"}
    emulated = [run for run in runs if run.metrics.get("emulation")]
    found = [Pair(simulated[_same(run)], run) for run in emulated if _same(run) in simulated]
    if not found:
        raise SmartGenError(
            f"no emulated run (of {len(emulated)}) has the configuration of a simulated one "
            f"(of {len(simulated)}); run the same experiment with backend=sim and with backend=emu"
        )
    return found


def _same(run: Run) -> str:
    kept = what_happens(run.config)
    return json.dumps(
        {key: kept[key] for key in kept if key not in ("backend", "emu")},
        sort_keys=True,
        default=str,
    )


def emulation_lines(all_metrics: Sequence[Metrics]) -> list[str]:
    """How real runs were and how well the machine kept up, a line for each way of emulating.

    Times are the cards', as those of tables. Nothing is said of runs that were not emulated.
    """
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for told in (metrics.get("emulation") for metrics in all_metrics):
        if told:
            grouped.setdefault(_how(told), []).append(told)
    return [f"emulated: {how}; {_kept_up(alike)}" for how, alike in grouped.items()]


def _how(told: Mapping[str, Any]) -> str:
    scale = told["byte_scale"]
    bytes_moved = "every byte moved" if scale == 1 else f"1 byte stands for {scale}"
    shaped = "" if told["shaping"] == "wire" else f", shaping={told['shaping']}"
    return (
        f"{told['transport']}, {told['remote_lane']}{shaped}, 1 s takes {told['dilation']:g} s, "
        f"{bytes_moved}"
    )


def _kept_up(alike: Sequence[Mapping[str, Any]]) -> str:
    """Of several runs the worst of each."""
    late = [told["timer_late_s"] for told in alike]
    p50_ms, p99_ms = (max(each[name] for each in late) * 1e3 for name in ("p50", "p99"))
    text = f"timers late by {p50_ms:.2f} ms (p99 {p99_ms:.2f} ms)"
    if landings := sum(told["late_landings"] for told in alike):
        latest_ms = max(told["latest_landing_s"] for told in alike) * 1e3
        text += f", {landings} transfers landed late, by {latest_ms:.2f} ms at most"
    equal = sum(told.get("equal_pools", 0) for told in alike)
    if equal:
        text += f"; {equal} whole pools equal at both ends"
    failures = {what: why for told in alike for what, why in told.get("failures", {}).items()}
    return "; ".join([text, *(f"{what} failed: {why}" for what, why in failures.items())])
