"""Measures how soon it is known that a process has died or stalled; records it in faults.md.

    python benchmarks/faults.py

Real processes, the tiny model; what becomes of the requests is recorded beside it.
"""

import os
import platform
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smartgen.claims.compose import configs_of
from smartgen.compose import experiment_of
from smartgen.emu.processes.launcher import Launch
from smartgen.emu.settings import TRANSPORTS, Settings
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment
from smartgen.metrics.records import merge

KEYS = (
    "model=tiny",
    "workload=tiny",
    "workload.requests=6",
    "workload.prompt_tokens=[180,250,301,97,200,333]",
    "workload.output_tokens=40",
    "blocks_per_layer=32",
    "cluster.prefill_nodes=3",
    "network.gbps=0.01",
)
AFTER_S = 0.2
TIMES = 3


@dataclass(frozen=True)
class Fault:
    """A signal to a process, 0.2 s after time 0, while plans are on their way."""

    what: str
    process: str
    signal: signal.Signals
    deadline_s: float


FAULTS = (
    Fault("a prefill process is killed", "prefill1", signal.SIGKILL, 5.0),
    Fault("a prefill process stalls, deadline 0.5 s", "prefill1", signal.SIGSTOP, 0.5),
    Fault("a prefill process stalls, deadline 2 s", "prefill1", signal.SIGSTOP, 2.0),
    Fault("the decoding process is killed", "decode0", signal.SIGKILL, 5.0),
)


class Faulty(Launch):
    """A run in which a signal is sent once it has begun."""

    def __init__(self, experiment: Experiment, settings: Settings, act: Callable[[], None]) -> None:
        super().__init__(experiment, settings)
        self._act = threading.Timer(AFTER_S, act)

    def _note(self, kind: str, told: Sequence[Any]) -> None:
        super()._note(kind, told)
        if kind == "started":
            self._act.start()


def measure(fault: Fault, transport: str, experiment: Experiment) -> tuple[str, float]:
    """The outcome, and the real seconds from the signal to the word that the process is lost."""
    sent_s = 0.0

    def act() -> None:
        nonlocal sent_s
        sent_s = time.monotonic()
        os.kill(launch.pid(fault.process), fault.signal)

    launch = Faulty(experiment, Settings(transport=transport, deadline_s=fault.deadline_s), act)
    try:
        outcome = launch.run(None)
    except SmartGenError as error:
        return f"the run ends: {error}", time.monotonic() - sent_s
    rows = merge(list(outcome.recorders)).requests.values()
    counts = Counter(str(row.status) for row in rows)
    [(_, _, lost_s)] = launch.lost
    return ", ".join(f"{counts[s]} {s}" for s in sorted(counts)), lost_s - sent_s


def main() -> None:
    """Measure, print and write."""
    [config] = configs_of([list(KEYS)])
    experiment = experiment_of(config)
    lines = [
        "# Faults of processes",
        "",
        f"Recorded by `python benchmarks/faults.py`; {platform.machine()}, {os.cpu_count()} CPUs.",
        "",
        f"Six requests at three prefill processes, a signal {AFTER_S} s after time 0. Real",
        "seconds from the signal until the decoding process knows (or the parent, if it is that",
        f"one which dies): median of {TIMES}, and the worst.",
        "",
        "| fault | transport | outcome | known after, s | worst, s |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        for transport in TRANSPORTS:
            found = [measure(fault, transport, experiment) for _ in range(TIMES)]
            outcomes = "; ".join(sorted({outcome for outcome, _ in found}))
            times_s = [seconds for _, seconds in found]
            lines.append(
                f"| {fault.what} | {transport} | {outcomes} "
                f"| {statistics.median(times_s):.3f} | {max(times_s):.3f} |"
            )
            print(lines[-1])
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
