"""Measures how fast requests that arrive over time are simulated; records it in serving.md.

    python benchmarks/serving.py [AzureLLMInferenceTrace_conv.csv]

Without the trace, requests are drawn with its rate and mean lengths. Rates are per CPU second of
one process, the simulation alone: writing tables is measured beside it. Only ratios carry over to
another machine; its own speed is given as empty SimPy timeouts a second.
"""

import resource
import sys
import time
from pathlib import Path

from hydra import compose, initialize_config_module
from run import empty_timeouts

from smartgen.compose import experiment_of
from smartgen.experiment import Experiment, Outcome
from smartgen.metrics.records import merge
from smartgen.metrics.summary import summarize
from smartgen.metrics.tables import make_tables
from smartgen.sim import SimBackend
from smartgen.sweep import register_resolvers

COMMON = ("selection=exponent", "cluster=pd42", "network.sender_gbps=64", "blocks_per_layer=100")
DRAWN = (
    "workload=poisson",
    "workload.rate_per_s=4.63",
    "workload.prompt_tokens.mean_tokens=1014",
    "workload.output_tokens=247",
)


def build(trace: str | None, requests: int, *overrides: str) -> Experiment:
    """The first requests of the trace on 4 prefill and 2 decoding nodes."""
    workload = ("workload=azure", f"workload.path={trace}") if trace else DRAWN
    told = (*COMMON, *workload, f"workload.requests={requests}", *overrides)
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        experiment = experiment_of(compose("config", list(told)))
    _ = experiment.requests, experiment.link_share
    return experiment


def timed(experiment: Experiment, fold: bool, repeats: int) -> tuple[float, Outcome]:
    """Median CPU seconds of a run, and what came out."""
    seconds = []
    for _ in range(repeats):
        start_s = time.process_time()
        outcome = SimBackend(fold=fold).run(experiment)
        seconds.append(time.process_time() - start_s)
    return sorted(seconds)[repeats // 2], outcome


def row(name: str, experiment: Experiment, fold: bool = True, repeats: int = 3) -> list[str]:
    """A line of the table."""
    seconds, outcome = timed(experiment, fold, repeats)
    iterations = merge(list(outcome.recorders)).iterations
    live = sum(1 for iteration in iterations if iteration.remote_entries) / len(iterations)
    batch = sum(iteration.batch_size for iteration in iterations) / len(iterations)
    return [
        name,
        f"{len(experiment.requests):,}",
        f"{batch:.1f}",
        f"{live:.2f}",
        f"{len(experiment.requests) / seconds:,.0f}",
        f"{len(iterations) / seconds:,.0f}",
    ]


def difference(experiment: Experiment) -> float:
    """Largest relative difference of an iteration's end between folded and layered."""
    ends = [
        [iteration.end_s for iteration in merge(list(outcome.recorders)).iterations]
        for outcome in (SimBackend(fold=fold).run(experiment) for fold in (True, False))
    ]
    if len(ends[0]) != len(ends[1]):
        return float("inf")
    return max(abs(a - b) / b for a, b in zip(*ends, strict=True))


def table_seconds(experiment: Experiment) -> float:
    """CPU seconds from what was recorded to tables and metrics."""
    outcome = SimBackend().run(experiment)
    start_s = time.process_time()
    tables = make_tables(experiment, outcome)
    summarize(tables, experiment, "sim", outcome.makespan_s, outcome.link_busy_s)
    return time.process_time() - start_s


def main() -> None:
    """Measure everything."""
    register_resolvers()
    trace = sys.argv[1] if len(sys.argv) > 1 else None
    rows = [row("smartgen, 25 Gbps", build(trace, 1000))]
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slow, few = ("network.gbps=5",), build(trace, 100, "network.gbps=5")
    rows += [
        row("smartgen, 25 Gbps", build(trace, 10_000), repeats=1),
        row("smartgen, 5 Gbps", build(trace, 1000, *slow), repeats=1),
        row("partial, 5 Gbps", build(trace, 300, *slow, "policy=partial"), repeats=1),
        row("smartgen, 5 Gbps", few),
        row("the same, layered", few, fold=False),
        row("the same, layered, 25 Gbps", build(trace, 100), fold=False),
    ]
    rows += [
        row(f"smartgen, 5 Gbps, {name}", build(trace, 100, *slow, f"network.discipline={name}"))
        for name in ("queue_pair", "priority")
    ]
    head = ["run", "requests", "mean batch", "fetching", "requests / CPU s", "iterations / CPU s"]
    lines = ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows]]
    notes = [
        f"Source: {'the first rows of the Azure 2023 conversation trace' if trace else 'drawn'}.",
        "fetching: share of iterations in which something was fetched.",
        f"Folded and layered iteration ends differ by at most {difference(few):.1e} (relative, "
        "100 requests, 5 Gbps).",
        f"Peak memory after the first row: {memory_mib:.0f} MiB.",
        f"Tables and metrics of the 1,000 requests: {table_seconds(build(trace, 1000)):.2f} CPU s.",
        f"SimPy itself: {empty_timeouts():,.0f} empty timeouts / CPU s.",
    ]
    text = "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"
    print(text)
    told = "Recorded by `python benchmarks/serving.py AzureLLMInferenceTrace_conv.csv`"
    path = Path(__file__).with_name("serving.md")
    path.write_text(f"# Requests that arrive over time\n\n{told}.\n\n{text}")


if __name__ == "__main__":
    main()
