"""A transfer scheme is a value: the YAML files of conf/policy are the list of schemes."""

from dataclasses import dataclass

from smartgen.errors import SmartGenError, count, one_of, ratio, truth

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
        budget_source: whether K_r follows the batch at hand, is frozen at ``frozen_batch`` requests
            of the same lengths, or follows the batch at hand and the rate at which earlier
            requests' planned pushes were observed to arrive.
        metadata_ratio: bytes of metadata for each byte of KV; null means the selector's own.
        metadata_in_budget: subtract the selector's metadata from the window of Equation 2.
        decode_start: plan waits until every planned block has landed; handover starts at once and
            lets a layer's selection wait for what is still in flight for that layer.
        lanes: local and remote lane in parallel, serial, or none (what is not local is not
            attended).
        reuse: keep fetched entries for later steps.
        speculation: a fixed share of M is pushed per layer while the network idles, or what fits
            into the idle time that was observed in the last iteration.
        speculative_ratio: that share; fractions of a block are carried over. Under ``observed``
            what is pushed before anything was seen.
        speculative_fill: under ``observed``, how much of the idle time is filled.
        speculative_floor: under ``observed``, the share of M that is pushed per layer in any case.
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
    metadata_ratio: float | None = None
    metadata_in_budget: bool = False
    decode_start: str = "handover"
    lanes: str = "parallel"
    reuse: bool = False
    speculation: str = "fixed"
    speculative_ratio: float = 0.0
    speculative_fill: float = 0.9
    speculative_floor: float = 0.02
    first_speculative_step: int = 2
    placement: str = "host"
    codec: str = "none"

    def __post_init__(self) -> None:
        one_of("policy.order", self.order, ORDERS)
        one_of("policy.proactive", self.proactive, ("all", "overlap", "none"))
        one_of("policy.budget_source", self.budget_source, ("batch", "frozen", "observed"))
        one_of("policy.speculation", self.speculation, ("fixed", "observed"))
        one_of("policy.decode_start", self.decode_start, ("plan", "handover"))
        one_of("policy.lanes", self.lanes, ("parallel", "serial", "none"))
        one_of("policy.placement", self.placement, ("host", "gpu"))
        one_of("policy.codec", self.codec, ("none", "hack"))
        count("policy.protect_layers", self.protect_layers, at_least=0)
        count("policy.first_speculative_step", self.first_speculative_step)
        count("policy.frozen_batch", self.frozen_batch)
        for name in ("speculative_ratio", "speculative_fill", "speculative_floor"):
            ratio(f"policy.{name}", getattr(self, name))
        if self.metadata_ratio is not None:
            ratio("policy.metadata_ratio", self.metadata_ratio)
        truth("policy.reuse", self.reuse)
        truth("policy.metadata_in_budget", self.metadata_in_budget)
        if self.speculation == "observed" and self.speculative_floor == 0:
            raise SmartGenError(
                "policy.speculative_floor=0 must be above 0 with speculation=observed: where the "
                "network never idles, pushing would never end"
            )
        if self.placement == "gpu":
            # nothing is selected, so nothing can be missed: the cache must arrive whole
            one_of("policy.proactive with placement=gpu", self.proactive, ("all",))
            one_of("policy.decode_start with placement=gpu", self.decode_start, ("plan",))
        if self.codec == "hack":
            one_of("policy.placement with codec=hack", self.placement, ("gpu",))

    @property
    def observes(self) -> bool:
        """Whether anything is decided by what decoding nodes observe."""
        return "observed" in (self.speculation, self.budget_source)

    @property
    def selects(self) -> bool:
        """Whether a selector runs at the decoding node, so that its metadata must cross too."""
        return self.placement == "host"

    def announces_idle(self, step: int) -> bool:
        """Whether the decoding node tells prefill nodes in this step that the network idles."""
        speculates = self.speculation == "observed" or self.speculative_ratio > 0
        return speculates and step >= self.first_speculative_step
