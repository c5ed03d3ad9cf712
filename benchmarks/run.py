"""Measures speed and memory of the simulator; prints a table and records it in results.md.

    python benchmarks/run.py            (or: make bench)

Rates are per CPU second of one process, the median of several runs; the machine's own speed is
given beside them (empty SimPy timeouts a second), because only ratios carry over to another one.
"""

import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import simpy
from hydra import compose, initialize_config_module

from smartgen.compose import experiment_of
from smartgen.cost.recursion import closed_batch_times
from smartgen.experiment import Experiment
from smartgen.sim import SimBackend

REPEATS = 5
CLOSED = ("selection=exponent", "mask_update=iteration")
ONE = ("workload.requests=1", "cluster.prefill_nodes=1", "network.gbps=10")
LAYERED = {
    "layered, batch of 1, a fetch in every sparse layer": (*ONE, "policy=partial_parallel"),
    "layered, batch of 1, speculating all the way": (
        *ONE,
        "policy.speculative_ratio=0.001",
        "network.gbps=5",
    ),
    "layered, batch of 1, nothing fetched": (*ONE, "policy=proactive_only"),
    "layered, batch of 6 on 6 nodes, 6 fetches in every sparse layer": ("policy=partial",),
    "layered, the same with drawn blocks": ("policy=partial", "selection=blocks"),
    "plain local, batch of 6": ("policy=full",),
    "plain local, batch of 1": (*ONE, "policy=full", "network.gbps=1000"),
}


def build(*overrides: str) -> Experiment:
    """An experiment from overrides, closed unless they say otherwise."""
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        return experiment_of(compose("config", [*CLOSED, *overrides]))


def rate(count: int, act: Callable[[], object]) -> float:
    """Median of so many per CPU second."""
    seconds = []
    for _ in range(REPEATS):
        start_s = time.process_time()
        act()
        seconds.append(time.process_time() - start_s)
    return count / statistics.median(seconds)


def empty_timeouts() -> float:
    """What SimPy itself does on this machine."""
    count = 200_000

    def run() -> None:
        env = simpy.Environment()

        def process():  # type: ignore[no-untyped-def]
            for _ in range(count):
                yield env.timeout(1)

        env.process(process())
        env.run()

    return rate(count, run)


def simulation_rates() -> list[tuple[str, float, str]]:
    """Iterations per CPU second of each kind."""
    rows = []
    for name, overrides in LAYERED.items():
        tokens = 1025 if name.startswith("plain") else 129
        experiment = build(*overrides, f"workload.output_tokens={tokens}")
        found = rate(tokens - 1, lambda e=experiment: SimBackend().run(e))  # type: ignore[misc]
        rows.append((name, found, "iterations / CPU s"))
    return rows


def recursion_rates() -> list[tuple[str, float, str]]:
    """Evaluations of a closed batch per CPU second."""
    rows = []
    for policy in ("full", "partial", "smartgen"):
        batch = build(f"policy={policy}").closed()
        found = rate(5, lambda b=batch: [closed_batch_times(b) for _ in range(5)])  # type: ignore[misc]
        rows.append((f"recursion, {policy}, batch of 6, 64 tokens", found, "evaluations / CPU s"))
    return rows


def help_seconds() -> float:
    """Median wall time of the command's help."""
    seconds = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        subprocess.run(["smartgen", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def peak_memory() -> tuple[float, float]:
    """Peak resident MiB of the largest process of the four-scheme comparison, and its wall time."""
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        command = ["smartgen", "experiment=compare"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        wall_s = time.perf_counter() - start_s
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, wall_s


def main() -> None:
    """Measure everything."""
    memory_mib, wall_s = peak_memory()
    rows = [("SimPy itself, empty timeouts", empty_timeouts(), "timeouts / CPU s")]
    rows += simulation_rates() + recursion_rates()
    rows += [
        ("smartgen --help", help_seconds(), "s wall"),
        ("smartgen experiment=compare, wall", wall_s, "s wall, 2 workers"),
        ("smartgen experiment=compare, peak memory of one process", memory_mib, "MiB"),
    ]
    lines = ["| what | value | unit |", "|---|---|---|"]
    for name, value, unit in rows:
        text = f"{value:.2f}" if value < 10 else f"{value:,.0f}"
        lines.append(f"| {name} | {text} | {unit} |")
    table = "\n".join(lines)
    print(table)
    told = f"Python {platform.python_version()}, {platform.machine()}, median of {REPEATS}"
    text = f"# Benchmarks\n\nRecorded by `make bench` ({told}).\n\n{table}\n"
    Path(__file__).with_name("results.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
