"""What claims ask of a run, from either source: a run's folder, or the recursion."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from smartgen.experiment import Experiment, Outcome
    from smartgen.metrics.store import Run


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One run of an experiment of conf/experiment: the overrides that pick it, in their order."""

    experiment: str
    overrides: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """What to type after smartgen."""
        return [f"experiment={self.experiment}", *self.overrides]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one run. Latencies are means over requests, in seconds.

    gaps_s: before each token, from the second on. transfer_s: what the planned bytes need on a
    decoding node's link at its nominal rate. iterations_to_whole: after so many nothing was remote
    any more (0: from the start); null if something was to the end.
    """

    ttft_s: float
    ttst_s: float
    tbt_s: float
    gaps_s: tuple[float, ...]
    transfer_s: float
    iterations_to_whole: int | None
    on_demand_ratio: float | None = None

    @property
    def later_gaps_s(self) -> tuple[float, ...]:
        """From the third token on."""
        return self.gaps_s[1:]


def facts_of_run(run: "Run") -> Facts:
    """Read a run's folder."""
    network: Mapping[str, Any] = run.config["network"]
    rate = network["gbps"] * 1e9 / 8 * network.get("efficiency", 1.0)
    return _facts(run.iterations, run.tokens, run.metrics, rate)


def facts_of_outcome(experiment: "Experiment", outcome: "Outcome") -> Facts:
    """The same of what a backend has just brought back."""
    from smartgen.metrics.summary import summarize
    from smartgen.metrics.tables import make_tables

    tables = make_tables(experiment, outcome)
    metrics = summarize(tables, experiment, "", outcome.makespan_s, outcome.link_busy_s)
    rate = experiment.network.receiver_bytes_per_s
    return _facts(tables.iterations, tables.tokens, metrics, rate)


def _facts(
    iterations: "pa.Table", tokens: "pa.Table", metrics: Mapping[str, Any], bytes_per_s: float
) -> Facts:
    from smartgen.metrics.tokens import mean_gaps

    left = iterations.column("remote_blocks_left").to_numpy()
    remote = np.flatnonzero(left)
    is_whole = not len(left) or not left[-1]
    last = int(remote[-1]) + 2 if len(remote) else 0
    means = {name: metrics[name]["mean"] for name in ("ttft_s", "ttst_s", "tbt_s")}
    return Facts(
        **{name: float("nan") if mean is None else mean for name, mean in means.items()},
        gaps_s=tuple(mean_gaps(tokens).tolist()),
        transfer_s=metrics["bytes"]["proactive"] / bytes_per_s,
        iterations_to_whole=last if is_whole else None,
        on_demand_ratio=metrics["on_demand_ratio"],
    )


def facts_of_recursion(experiment: "Experiment") -> Facts:
    """Compute the same by the recursion (closed batches, selection=exponent, fifo)."""
    from smartgen.cost.recursion import closed_batch_times

    batch = experiment.closed()
    result = closed_batch_times(batch)
    gaps_s = (result.ttst_s, *result.steps_s) if result.iteration_end_s else ()
    planned = [
        batch.geometry.sizes(request.prompt_tokens)[plan.order[: plan.num_planned]].sum()
        for request, plan in zip(batch.requests, batch.plans, strict=True)
    ]
    size = float(sum(planned)) * batch.geometry.entry_bytes
    size *= batch.cost.wire_ratio(batch.policy.codec)
    return Facts(
        ttft_s=float(np.mean(result.first_token_s)),
        ttst_s=result.ttst_s,
        tbt_s=result.tbt_s,
        gaps_s=gaps_s,
        transfer_s=size / batch.network.receiver_bytes_per_s,
        iterations_to_whole=result.iterations_to_whole,
    )
