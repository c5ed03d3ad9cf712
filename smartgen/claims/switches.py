"""The mechanisms that decide the outcome, each switched off or set otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smartgen.claims.facts import Facts

if TYPE_CHECKING:
    from smartgen.experiment import Experiment

PARTIAL = ("partial", "partial_profile", "partial_parallel", "partial_reuse", "parallel_reuse")


@dataclass(frozen=True, slots=True)
class Switch:
    """A mechanism, and the same experiment without it.

    changes: by part of the experiment ("" for its own), the fields that change. policies: the
    schemes that it is about; all, if there are none. adjust: what is made of every run's facts.
    """

    name: str
    meaning: str
    changes: dict[str, dict[str, Any]]
    policies: tuple[str, ...] = ()
    adjust: Callable[[Facts], Facts] | None = None

    @property
    def is_recursive(self) -> bool:
        """Whether the recursion knows the experiment without it."""
        network, whole = self.changes.get("network", {}), self.changes.get("", {})
        return "discipline" not in network and "mask_update" not in whole

    def __call__(self, experiment: "Experiment") -> "Experiment":
        """The experiment with the mechanism off, or set otherwise."""
        if self.policies and experiment.policy.name not in self.policies:
            return experiment
        changed: dict[str, Any] = {}
        for part, fields in self.changes.items():
            if part == "":
                changed.update(fields)
            elif part in _SPECIAL:
                changed.update(_SPECIAL[part](experiment, fields))
            elif part != "selector" or experiment.selector.name == "infinigen":
                changed[part] = replace(getattr(experiment, part), **fields)
        return replace(experiment, **changed)


def _linear_selection(experiment: "Experiment", _: dict[str, Any]) -> dict[str, Any]:
    """Selected in proportion to the cap, as much as before at 20 %."""
    selector = experiment.selector
    if selector.name != "infinigen":
        return {}
    share = replace(selector, selection_ratio=0.2).mean_ratio / 0.2
    return {"selector": replace(selector, natural_ratio=None, scale=share)}


def _from_arrival(facts: Facts) -> Facts:
    return replace(facts, ttst_s=facts.ttft_s + facts.ttst_s)


def _six_requests(experiment: "Experiment", _: dict[str, Any]) -> dict[str, Any]:
    """Batches of three, which only the bandwidth figure has."""
    workload: Any = experiment.workload
    return {"workload": replace(workload, requests=6)} if workload.requests == 3 else {}


_SPECIAL: dict[str, Callable[["Experiment", dict[str, Any]], dict[str, Any]]] = {
    "linear_selection": _linear_selection,
    "six_requests": _six_requests,
}

SWITCHES: Sequence[Switch] = (
    Switch("TTST counts from the first token", "from arrival", {}, adjust=_from_arrival),
    Switch(
        "selection saturates",
        "the cap always binds: 20 % are selected",
        {"selector": {"natural_ratio": None, "scale": 1.0}},
    ),
    Switch(
        "selection saturates, same at 20 %", "in proportion to the cap", {"linear_selection": {}}
    ),
    Switch(
        "metadata spills out of the window",
        "K_r leaves room for it",
        {"policy": {"metadata_in_budget": True}},
    ),
    Switch("metadata", "none is sent", {"selector": {"metadata_ratio": 0.0}}),
    Switch(
        "only smartgen starts before its plan has landed",
        "partial, too",
        {"policy": {"decode_start": "handover"}},
        PARTIAL,
    ),
    Switch(
        "smartgen starts before its plan has landed",
        "it waits",
        {"policy": {"decode_start": "plan"}},
        ("smartgen",),
    ),
    Switch(
        "NIC serves in order of posting", "fetches first", {"network": {"discipline": "priority"}}
    ),
    Switch(
        "NIC serves in order of posting",
        "fair between queue pairs",
        {"network": {"discipline": "queue_pair"}},
    ),
    Switch("masks change between iterations", "live", {"": {"mask_update": "live"}}),
    Switch(
        "partial fetches again", "it keeps what it fetched", {"policy": {"reuse": True}}, PARTIAL
    ),
    Switch(
        "a fetch costs more than its bytes",
        "no call, no gather",
        {"host": {"rpc_us": 0.0, "gather_gbytes_per_s": 1e6}},
    ),
    Switch("a fetch is gathered", "at no cost", {"host": {"gather_gbytes_per_s": 1e6}}),
    Switch("a fetch costs a call", "no call", {"host": {"rpc_us": 0.0}}),
    Switch("a block costs a pair of WRITEs", "for nothing", {"network": {"pair_us": 0.0}}),
    Switch("handover takes time", "none", {"host": {"handover_ms": 0.0}}),
    Switch(
        "K_r follows the batch",
        "frozen at six requests",
        {"policy": {"budget_source": "frozen"}},
    ),
    Switch(
        "speculation starts with the third token",
        "with the second",
        {"policy": {"first_speculative_step": 1}},
    ),
    Switch(
        "layers 0 and 1 load through the same gather",
        "at 20 GB/s",
        {"host": {"dense_load_gbytes_per_s": 20.0}},
    ),
    Switch(
        "selecting costs 1 ns a token",
        "65 ns, layers 0 and 1 at 20 GB/s",
        {"gpu": {"select_ns_per_token": 65.0}, "host": {"dense_load_gbytes_per_s": 20.0}},
    ),
    Switch("selection looks ahead", "it does not", {"selector": {"looks_ahead": False}}),
    Switch("the bandwidth figure has batches of three", "of six", {"six_requests": {}}),
    Switch("a prefill's norms take 17 ms", "25 ms", {"gpu": {"prefill_ms": 25.0}}),
    Switch("generated entries add", "they do not", {"workload": {"grows": False}}),
)
