"""What to measure for each claim: which runs, and what to make of them.

The runs are those of conf/experiment/figure_*.yaml, which figures are drawn from, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from smartgen.claims.facts import Facts, Point

Found = Mapping[Point, Facts]
"""What is known of every run."""


class Measure(Protocol):
    """How a claim's value follows from runs."""

    @property
    def points(self) -> Sequence[Point]:
        """The runs that it takes."""

    def value(self, found: Found) -> float:
        """The simulated value."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric of one run over that of another.

    marked: which of the two the figure marks, where the claim puts it given the other.
    """

    metric: str
    over: Point
    under: Point
    marked: str = "under"

    @property
    def points(self) -> Sequence[Point]:
        """The runs that it takes."""
        return (self.over, self.under)

    def value(self, found: Found) -> float:
        """The simulated value."""
        under = _metric(found, self.under, self.metric)
        return _metric(found, self.over, self.metric) / under if under else float("nan")

    def mark(self, found: Found, claimed: float) -> tuple[Point, float]:
        """Which run is marked, and the value that the claim gives it."""
        if self.marked == "under":
            return self.under, _metric(found, self.over, self.metric) / claimed
        return self.over, _metric(found, self.under, self.metric) * claimed


@dataclass(frozen=True, slots=True)
class Growth:
    """A metric of one run less that of another, in seconds."""

    metric: str
    high: Point
    low: Point

    @property
    def points(self) -> Sequence[Point]:
        """The runs that it takes."""
        return (self.high, self.low)

    def value(self, found: Found) -> float:
        """The simulated value."""
        return _metric(found, self.high, self.metric) - _metric(found, self.low, self.metric)

    def mark(self, found: Found, claimed: float) -> tuple[Point, float]:
        """The longer run, and the value that the claim gives it."""
        return self.high, _metric(found, self.low, self.metric) + claimed


@dataclass(frozen=True, slots=True)
class Peak:
    """The greatest ratio of transfer to prefill in a sweep."""

    points: Sequence[Point]
    metric: str = "transfer_over_prefill"

    def value(self, found: Found) -> float:
        """The simulated value."""
        return max(_ratio(found[point]) for point in self.points)

    def mark(self, found: Found, claimed: float) -> tuple[Point, float]:
        """The run at the peak, and the value that the claim gives it."""
        return max(self.points, key=lambda point: _ratio(found[point])), claimed


def _ratio(facts: Facts) -> float:
    return facts.transfer_s / facts.ttft_s


@dataclass(frozen=True, slots=True)
class Derived:
    """Anything else that follows from some runs."""

    points: Sequence[Point]
    of: Callable[[Sequence[Facts]], float]

    def value(self, found: Found) -> float:
        """The simulated value."""
        return float(self.of([found[point] for point in self.points]))


def _metric(found: Found, point: Point, metric: str) -> float:
    return float(getattr(found[point], metric))


def at(experiment: str, *overrides: str) -> Point:
    """A run of an experiment; a bare word names a policy."""
    return Point(experiment, tuple(o if "=" in o else f"policy={o}" for o in overrides))


# -- the runs that claims are about


def batch(policy: str, requests: int) -> Point:
    """Of the batch figure."""
    return at("figure_12_batch", policy, f"workload.requests={requests}")


def bandwidth(policy: str, network: str) -> Point:
    """Of the bandwidth figure."""
    return at("figure_12_bandwidth", f"network={network}", policy)


def length(policy: str, tokens: int) -> Point:
    """Of the sequence-length figure."""
    return at("figure_16a", policy, f"workload.prompt_tokens={tokens}")


def blocks(policy: str, number: int) -> Point:
    """Of the figure over M."""
    return at("figure_16b", policy, f"blocks_per_layer={number}")


def selected(policy: str, ratio: float) -> Point:
    """Of the selection-ratio figure, with InfiniGen."""
    return at("figure_16c", "selector=infinigen", policy, f"selector.selection_ratio={ratio}")


def speculative(ratio: float) -> Point:
    """Of the speculative-ratio figure."""
    return at("figure_14", f"policy.speculative_ratio={ratio:g}")


def phases(gpu: str, network: str) -> list[Point]:
    """The whole sweep of Figure 2b on one GPU and network."""
    lengths = range(1000, 10001, 1000)
    return [
        at("figure_2b", f"gpu={gpu}", f"network={network}", f"workload.prompt_tokens={n}")
        for n in lengths
    ]


MODELS_2A = [at("figure_2a", f"model={m}") for m in ("llama31_8b", "qwen3_8b", "qwen3_14b")]
SCHEMES = ("full", "partial", "hack", "smartgen")
MODELS_15 = ("qwen3_14b", "llama31_8b", "gemma3_12b")
SEEDS_15 = (0, 1, 2, 3)
DATASETS = ("multifieldqa", "govreport", "samsum", "lcc")
DATASET_MODELS = ("llama31_8b", "qwen3_8b", "qwen3_14b", "gemma3_12b_window", "phi4")
LENGTHS = (1000, 2000, 4000, 8000, 12000, 16000)
BATCHES = (1, 2, 3, 4, 5, 6)


def orders(other: str) -> list[Point]:
    """Of the order figure: profile and another order, by model, then by seed."""
    return [
        at("figure_15", policy, f"model={model}", f"seed={seed}")
        for model in MODELS_15
        for seed in SEEDS_15
        for policy in ("partial_parallel", other)
    ]


# -- what is made of them


def _by_scheme(facts: Sequence[Facts]) -> list[Sequence[Facts]]:
    """Runs of all SCHEMES together, for each of what they were run on."""
    return [facts[i : i + len(SCHEMES)] for i in range(0, len(facts), len(SCHEMES))]


def _pairs(facts: Sequence[Facts]) -> Iterable[tuple[Facts, Facts]]:
    """Runs two by two."""
    return zip(facts[::2], facts[1::2], strict=True)


def less_fetched(facts: Sequence[Facts]) -> float:
    """How much less profile fetches, in %: a mean over seeds, for the model with the most."""
    return 100 * _best_model(
        1 - (profile.on_demand_ratio or 0) / (other.on_demand_ratio or 1)
        for profile, other in _pairs(facts)
    )


def slower(facts: Sequence[Facts]) -> float:
    """TBT of another order over profile's: a mean over seeds, for the model with the most."""
    return _best_model(other.tbt_s / profile.tbt_s for profile, other in _pairs(facts))


def _best_model(gains: Iterable[float]) -> float:
    by_seed = list(gains)
    seeds = len(SEEDS_15)
    means = [sum(by_seed[i : i + seeds]) / seeds for i in range(0, len(by_seed), seeds)]
    return max(means)


def worst_over_none(facts: Sequence[Facts]) -> float:
    """Worst later TBT of a run over that of the same token without speculation."""
    with_it, without = facts
    pairs = zip(with_it.later_gaps_s, without.later_gaps_s, strict=True)
    return max(a / b for a, b in pairs)


def least_at_every_length(facts: Sequence[Facts]) -> bool:
    """Whether smartgen's TTST and TBT are least; full's TBT, the ideal, is set aside."""
    return all(
        smartgen.ttst_s <= min(full.ttst_s, partial.ttst_s, hack.ttst_s)
        and smartgen.tbt_s <= min(partial.tbt_s, hack.tbt_s)
        for full, partial, hack, smartgen in _by_scheme(facts)
    )


def ctl_generally_least(facts: Sequence[Facts]) -> bool:
    """Whether smartgen's CTL is least over most of the tokens, on every dataset."""
    return all(map(_is_generally_least, _by_scheme(facts)))


def _is_generally_least(facts: Sequence[Facts]) -> bool:
    *others, smartgen = [_running_mean(one.gaps_s) for one in facts]
    least = [own <= min(rest) for own, *rest in zip(smartgen, *others, strict=True)]
    return bool(sum(least) > len(least) / 2)


def _running_mean(gaps_s: Sequence[float]) -> list[float]:
    means, total = [], 0.0
    for number, gap_s in enumerate(gaps_s, start=1):
        total += gap_s
        means.append(total / number)
    return means


def full_is_ideal(facts: Sequence[Facts]) -> bool:
    """Whether no scheme's TBT lies more than 5 % below full's."""
    least = [min(one.tbt_s for one in group) / group[0].tbt_s for group in _by_scheme(facts)]
    return bool(min(least) >= 0.95)


def most_unstable(facts: Sequence[Facts]) -> float:
    """Of TTST and TBT of all schemes, the ratio of many blocks to few that is farthest from 1."""
    many, few = facts[: len(facts) // 2], facts[len(facts) // 2 :]
    ratios: list[float] = [
        getattr(a, metric) / getattr(b, metric)
        for a, b in zip(many, few, strict=True)
        for metric in ("ttst_s", "tbt_s")
    ]
    return max(ratios, key=lambda ratio: abs(ratio - 1))


def iterations(facts: Sequence[Facts]) -> float:
    """After how many iterations everything was local."""
    found = facts[0].iterations_to_whole
    return float("nan") if found is None else found


L20, V100S = "figure_13_l20", "figure_13_v100s"
FASTEST, SLOWEST = "elastic_32g", "elastic_15g"


def _gain(testbed: str, before: str, after: str) -> Ratio:
    return Ratio("tbt_s", at(testbed, before), at(testbed, after))


MEASURES: Mapping[str, Measure] = {
    "C002": Derived(
        MODELS_2A,
        lambda facts: max(f.transfer_s for f in facts) / min(f.transfer_s for f in facts),
    ),
    "C003": Derived(MODELS_2A, lambda facts: max(f.ttft_s for f in facts)),
    "C005": Peak(phases("l20", "elastic_25g")),
    "C006": Peak(phases("l20", "elastic_15g")),
    "C008": Ratio(
        "ttft_s", phases("l20", "elastic_25g")[-1], phases("a100_sxm", "elastic_25g")[-1]
    ),
    "C010": Ratio("tbt_s", at("figure_3b", "partial_reuse"), at("figure_3b", "full"), "over"),
    "C030": Derived(
        [
            at("figure_12_models", f"model={model}", "workload=govreport", policy)
            for model in DATASET_MODELS
            for policy in ("full", "smartgen")
        ],
        lambda facts: max(full.ttst_s / smartgen.ttst_s for full, smartgen in _pairs(facts)),
    ),
    "C032": Ratio("ttst_s", batch("full", 6), batch("smartgen", 6)),
    "C033": Ratio("ttst_s", batch("full", 6), batch("hack", 6)),
    "C034": Ratio("ttst_s", batch("full", 6), batch("partial", 6)),
    "C035": Ratio("ttst_s", batch("partial", 6), batch("smartgen", 6)),
    "C036": Ratio("ttst_s", batch("full", 6), batch("full", 1), "over"),
    "C037": Ratio("ttst_s", batch("partial", 6), batch("partial", 1), "over"),
    "C038": Ratio("ttst_s", batch("hack", 6), batch("hack", 1), "over"),
    "C039": Ratio("ttst_s", batch("smartgen", 6), batch("smartgen", 1), "over"),
    "C040": Ratio("tbt_s", batch("partial", 6), batch("smartgen", 6), "over"),
    "C041": Ratio("tbt_s", batch("partial", 6), batch("full", 6), "over"),
    "C042": Ratio("tbt_s", batch("hack", 6), batch("smartgen", 6), "over"),
    "C043": Ratio("tbt_s", batch("hack", 6), batch("full", 6), "over"),
    "C044": Ratio("tbt_s", batch("full", 6), batch("full", 1), "over"),
    "C045": Ratio("tbt_s", batch("partial", 6), batch("partial", 1), "over"),
    "C046": Ratio("tbt_s", batch("hack", 6), batch("hack", 1), "over"),
    "C047": Ratio("tbt_s", batch("smartgen", 6), batch("smartgen", 1), "over"),
    "C049": Ratio("ttst_s", bandwidth("full", FASTEST), bandwidth("smartgen", FASTEST)),
    "C050": Ratio("ttst_s", bandwidth("full", SLOWEST), bandwidth("smartgen", SLOWEST)),
    "C051": Ratio("tbt_s", bandwidth("partial", FASTEST), bandwidth("smartgen", FASTEST), "over"),
    "C052": Ratio("tbt_s", bandwidth("partial", SLOWEST), bandwidth("smartgen", SLOWEST), "over"),
    "C053": Ratio("ttst_s", bandwidth("smartgen", SLOWEST), bandwidth("full", "unlimited"), "over"),
    "C054": Ratio("ttst_s", at(L20, "full"), at(L20, "partial")),
    "C055": Ratio("ttst_s", at(V100S, "full"), at(V100S, "partial")),
    "C056": Ratio("tbt_s", at(L20, "partial"), at(L20, "full"), "over"),
    "C057": Ratio("tbt_s", at(V100S, "partial"), at(V100S, "full"), "over"),
    "C058": _gain(L20, "partial", "partial_profile"),
    "C059": _gain(V100S, "partial", "partial_profile"),
    "C060": Derived(orders("order_random"), slower),
    "C061": Derived(orders("order_sequential"), slower),
    "C062": Derived(orders("order_random"), less_fetched),
    "C063": Derived(orders("order_sequential"), less_fetched),
    "C064": Derived(orders("order_streaming_llm"), slower),
    "C065": Derived(orders("order_streaming_llm"), less_fetched),
    "C066": _gain(L20, "partial_profile", "partial_parallel"),
    "C067": _gain(V100S, "partial_profile", "partial_parallel"),
    "C068": _gain(L20, "partial_parallel", "smartgen"),
    "C069": _gain(V100S, "partial_parallel", "smartgen"),
    "C070": Derived([speculative(0.2)], iterations),
    "C071": Derived([speculative(0.2), speculative(0)], worst_over_none),
    "C072": Derived([speculative(0.05)], iterations),
    "C073": Derived([speculative(0.05), speculative(0)], worst_over_none),
    "C074": Derived([speculative(0.1)], iterations),
    "C074b": Derived([speculative(0.1), speculative(0)], worst_over_none),
    "C076": Growth("ttst_s", length("full", 16000), length("full", 1000)),
    "C077": Growth("ttst_s", length("partial", 16000), length("partial", 1000)),
    "C078": Growth("ttst_s", length("hack", 16000), length("hack", 1000)),
    "C079": Growth("ttst_s", length("smartgen", 16000), length("smartgen", 1000)),
    "C080": Growth("tbt_s", length("partial", 16000), length("partial", 1000)),
    "C081": Growth("tbt_s", length("hack", 16000), length("hack", 1000)),
    "C082": Growth("tbt_s", length("full", 16000), length("full", 1000)),
    "C083": Growth("tbt_s", length("smartgen", 16000), length("smartgen", 1000)),
    "C084": Ratio("ttst_s", blocks("full", 4000), blocks("full", 1000), "over"),
    "C085": Derived(
        [blocks(p, m) for m in (4000, 1000) for p in ("partial", "hack", "smartgen")],
        most_unstable,
    ),
    "C087": Ratio("ttst_s", selected("full", 0.6), selected("full", 0.1), "over"),
    "C088": Ratio("ttst_s", selected("partial", 0.6), selected("partial", 0.1), "over"),
    "C089": Ratio("ttst_s", selected("smartgen", 0.6), selected("smartgen", 0.1), "over"),
    "C090": Ratio("tbt_s", selected("partial", 0.6), selected("partial", 0.1), "over"),
    "C091": Ratio("tbt_s", selected("smartgen", 0.6), selected("smartgen", 0.1), "over"),
    "C097": Derived([length(p, n) for n in LENGTHS for p in SCHEMES], least_at_every_length),
    "C098": Derived(
        [at("figure_9", f"workload={w}", p) for w in DATASETS for p in SCHEMES],
        ctl_generally_least,
    ),
    "C099": Derived([batch(p, n) for n in BATCHES for p in SCHEMES], full_is_ideal),
    "C100": Derived(
        [at("figure_9", f"workload={w}", p) for w in DATASETS for p in ("hack", "full")],
        lambda facts: all(hack.tbt_s > full.tbt_s for hack, full in _pairs(facts)),
    ),
    "E01": Peak(MODELS_2A[:1]),
}
"""By the claim's id."""
