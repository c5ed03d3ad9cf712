"""A transfer scheme is a value: the YAML files of conf/policy are the list of schemes."""

from dataclasses import dataclass

from smartgen.errors import count, one_of, ratio, truth

ORDERS = ("profile", "sequential", "random", "streaming_llm", "optimal", "even")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to push, in which order, when; how what is missing is fetched; where the cache lies.

    Attributes:
        name: as the scheme's owner spells it.
        order: which blocks come first. profile: by importance (Equation 1); sequential:
            layer-major; random; streaming_llm: sinks, then the most recent tokens of every layer;
            optimal: by what this request will select; even: the same share of every layer, which
            is what the closed selection model assumes.
        protect_layers: so many first layers always come first (infinite importance).
        proactive: all blocks, as many as prefill can hide (overlap, Equation 2), or none.
        budget_source: whether K_r follows the batch at hand, or is frozen at ``frozen_batch``
            requests of the same lengths.
        metadata_in_budget: subtract the selector's metadata from the window of Equation 2.
        decode_start: plan waits until every planned block has landed; handover starts at once and
            lets a layer's selection wait for what is still in flight for that layer.
        lanes: local and remote lane in parallel, serial, or none (what is not local is not
            attended).
        reuse: keep fetched entries for later steps.
        speculative_ratio: share of M pushed per layer while the network idles; fractions of a
            block are carried over.
        first_speculative_step: decoding step from which idleness is announced; step 1 makes the
            second token.
        placement: the decoding node's cache lies in host memory or on the gpu.
        codec: none, or hack (2-bit codes on the wire and in the cache).
    """

    name: str
    order: str = "profile"
    protect_layers: int = 2
    proactive: str = "overlap"
    budget_source: str = "batch"
    frozen_batch: int = 6
    metadata_in_budget: bool = False
    decode_start: str = "handover"
    lanes: str = "parallel"
    reuse: bool = False
    speculative_ratio: float = 0.0
    first_speculative_step: int = 2
    placement: str = "host"
    codec: str = "none"

    def __post_init__(self) -> None:
        one_of("policy.order", self.order, ORDERS)
        one_of("policy.proactive", self.proactive, ("all", "overlap", "none"))
        one_of("policy.budget_source", self.budget_source, ("batch", "frozen"))
        one_of("policy.decode_start", self.decode_start, ("plan", "handover"))
        one_of("policy.lanes", self.lanes, ("parallel", "serial", "none"))
        one_of("policy.placement", self.placement, ("host", "gpu"))
        one_of("policy.codec", self.codec, ("none", "hack"))
        count("policy.protect_layers", self.protect_layers, at_least=0)
        count("policy.first_speculative_step", self.first_speculative_step)
        count("policy.frozen_batch", self.frozen_batch)
        ratio("policy.speculative_ratio", self.speculative_ratio)
        truth("policy.reuse", self.reuse)
        truth("policy.metadata_in_budget", self.metadata_in_budget)
        if self.placement == "gpu":
            # nothing is selected, so nothing can be missed: the cache must arrive whole
            one_of("policy.proactive with placement=gpu", self.proactive, ("all",))
            one_of("policy.decode_start with placement=gpu", self.decode_start, ("plan",))
        if self.codec == "hack":
            one_of("policy.placement with codec=hack", self.placement, ("gpu",))

    @property
    def selects(self) -> bool:
        """Whether a selector runs at the decoding node, so that its metadata must cross too."""
        return self.placement == "host"

    def announces_idle(self, step: int) -> bool:
        """Whether the decoding node tells prefill nodes in this step that the network idles."""
        return self.speculative_ratio > 0 and step >= self.first_speculative_step
