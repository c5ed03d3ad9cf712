"""The figures of the evaluation: which experiments each draws, and how."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One file of results/reference. experiments: of conf/experiment, drawn over each other.

    is_banded: also run over batches of drawn lengths, one a seed, drawn as a band.
    """

    name: str
    kind: str
    experiments: tuple[str, ...]
    caption: str
    is_banded: bool = True


FIGURES = (
    Figure(
        name="figure_2a",
        kind="phases",
        experiments=("figure_2a",),
        caption="Prefill and KV transfer of 48K tokens, six L20, one NIC of 25 Gbps.",
        is_banded=False,
    ),
    Figure(
        name="figure_2b",
        kind="phases",
        experiments=("figure_2b",),
        caption="Prefill and KV transfer over the batch's tokens, Qwen3-14B; their ratio.",
        is_banded=False,
    ),
    Figure(
        name="figure_3b",
        kind="gaps",
        experiments=("figure_3b",),
        caption="TBT of each token with fetching, with and without reuse, and with all local.",
    ),
    Figure(
        name="figure_5",
        kind="importance",
        experiments=("figure_5",),
        caption="Share of heads and requests that select a position, by the drawn law.",
        is_banded=False,
    ),
    Figure(
        name="figure_9",
        kind="ctl",
        experiments=("figure_9",),
        caption="CTL over time on four datasets' mean lengths, Qwen3-14B, batches of six.",
    ),
    Figure(
        name="figure_12_models",
        kind="bars",
        experiments=("figure_12_models",),
        caption="TTST and TBT of five models on four datasets' mean lengths, batches of six.",
    ),
    Figure(
        name="figure_12_batch",
        kind="latencies",
        experiments=("figure_12_batch",),
        caption="TTST and TBT over the batch.",
    ),
    Figure(
        name="figure_12_bandwidth",
        kind="latencies",
        experiments=("figure_12_bandwidth",),
        caption="TTST and TBT over the decoding instance's bandwidth, batches of three.",
    ),
    Figure(
        name="figure_13_l20",
        kind="bars",
        experiments=("figure_13_l20",),
        caption="From partial to smartgen, a design at a time: L20.",
    ),
    Figure(
        name="figure_13_v100s",
        kind="bars",
        experiments=("figure_13_v100s",),
        caption="From partial to smartgen, a design at a time: V100S, Llama-3.1-8B, two requests.",
    ),
    Figure(
        name="figure_14",
        kind="gaps",
        experiments=("figure_14", "figure_14_reuse"),
        caption="TBT of each token at four speculative ratios, with reuse, and with all local.",
    ),
    Figure(
        name="figure_15",
        kind="orders",
        experiments=("figure_15",),
        caption="On-demand ratio and TBT by pushing order and model, four seeds.",
        is_banded=False,
    ),
    Figure(
        name="figure_16a",
        kind="latencies",
        experiments=("figure_16a",),
        caption="TTST and TBT over the prompts' length.",
    ),
    Figure(
        name="figure_16b",
        kind="latencies",
        experiments=("figure_16b",),
        caption="TTST and TBT over M, the blocks of a layer.",
    ),
    Figure(
        name="figure_16c",
        kind="latencies",
        experiments=("figure_16c",),
        caption="TTST and TBT over the selection ratio, InfiniGen and HATA.",
    ),
    Figure(
        name="speculation_map",
        kind="map",
        experiments=("speculation_map", "speculation_map_full"),
        caption="Beyond the paper: where speculation pays, by bandwidth and speculative ratio.",
        is_banded=False,
    ),
)

COMPARED = ("adaptive", "adaptive_varying")
"""Experiments of adaptive schemes against the fixed 10 %, drawn and tabled by themselves."""
