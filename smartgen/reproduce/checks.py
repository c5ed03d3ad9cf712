"""What follows from sizes and measured rates alone, beside what the paper states."""

import math
from dataclasses import dataclass

from smartgen.claims.compose import experiments_of
from smartgen.claims.facts import Point
from smartgen.experiment import Experiment

MASK_TOKENS = 64 * 1024
"""Of footnote 1: one byte a token and layer."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of arithmetic. claim: its id, if the list of claims has it."""

    name: str
    arithmetic: str
    value: float
    unit: str
    stated: str
    claim: str = ""


def checks() -> list[Check]:
    """All of them, for the defaults of the batch, bandwidth and length figures."""
    six = Point("figure_12_batch", ("policy=smartgen", "workload.requests=6"))
    llama = Point("figure_2a", ("model=llama31_8b",))
    full_batch = Point("figure_16a", ("policy=smartgen", "workload.prompt_tokens=10000"))
    found = experiments_of([six, llama, full_batch])
    return [
        _growth(found[llama], found[six]),
        _masks(found[six]),
        *(_iterations(found[six], ratio) for ratio in (0.05, 0.1, 0.2)),
        *(_capacity(found[six], ratio) for ratio in (0.1, 0.2)),
        *(_spill(found[full_batch], gbps) for gbps in (25.0, 15.0)),
    ]


def _token_bytes(experiment: Experiment) -> int:
    geometry = experiment.geometry
    return geometry.num_layers * geometry.entry_bytes


def _growth(small: Experiment, large: Experiment) -> Check:
    of = _token_bytes(large), _token_bytes(small)
    text = f"{of[0]:,} over {of[1]:,} bytes a token"
    return Check("KV growth over models", text, of[0] / of[1], "x", "1.3", "C002")


def _masks(experiment: Experiment) -> Check:
    layers = experiment.geometry.num_layers
    text = f"{layers} layers x {MASK_TOKENS // 1024} KiB"
    return Check("masks of 64K tokens", text, layers * MASK_TOKENS / 2**20, "MiB", "2.5", "C022")


def _planned_ratio(experiment: Experiment) -> float:
    return experiment.batch_blocks / experiment.geometry.num_blocks


def _iterations(experiment: Experiment, ratio: float) -> Check:
    left = 1 - _planned_ratio(experiment)
    text = f"1 + {left:.3f} / {ratio:g}, rounded up: pushed from the second iteration on"
    value = 1 + math.ceil(left / ratio - 1e-9)
    stated = {0.05: "about 20", 0.1: "10", 0.2: "at most 5"}[ratio]
    name = f"iterations to deliver everything, {ratio:.0%}".replace("%", " %")
    return Check(name, text, value, "iterations", stated)


def _capacity(experiment: Experiment, ratio: float) -> Check:
    size = ratio * sum(r.prompt_tokens for r in experiment.requests) * _token_bytes(experiment)
    seconds = size / experiment.network.receiver_bytes_per_s
    text = f"{size / 1e9:.2f} GB an iteration at {experiment.network.gbps:g} Gbps"
    stated = {0.1: "no interference", 0.2: "interference"}[ratio]
    name = f"wire time of an iteration's pushes, {ratio:.0%}".replace("%", " %")
    return Check(name, text, seconds, "s", stated)


def _spill(experiment: Experiment, gbps: float) -> Check:
    layers = experiment.geometry.num_layers
    ratio = 2 / layers + experiment.metadata_ratio
    size = ratio * sum(r.prompt_tokens for r in experiment.requests) * _token_bytes(experiment)
    window_s = experiment.budget.prefill_s(experiment.requests) * (layers - 1) / layers
    text = f"{ratio:.1%} of the KV of 60K tokens, {size / 1e9:.2f} GB, over {window_s:.3f} s"
    value = size / (gbps * 1e9 / 8) / window_s
    stated = {25.0: "", 15.0: "above 1 (C053)"}[gbps]
    name = f"two layers and metadata over the prefill window, {gbps:g} Gbps"
    return Check(name, text.replace("%", " %"), value, "x", stated)
