"""An experiment: one inert value that says everything a backend needs to run it.

It also derives what follows from its parts (geometry, costs, plans, draws), so that every backend
derives the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smartgen.cluster import Cluster
from smartgen.cost import Cost, Gpu, Host, Network
from smartgen.cost.budget import Budget, expected_share
from smartgen.cost.recursion import ClosedBatch
from smartgen.engine.messages import Assign
from smartgen.errors import SmartGenError, count, one_of, positive, truth
from smartgen.kv import BlockMask, CountMask, Geometry, Mask
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Recorder
from smartgen.model import Model
from smartgen.policy import Plan, Policy, Profile, choose, order_blocks
from smartgen.policy.plan import ALWAYS_PLANNED_LAYERS
from smartgen.selection import (
    BlockDraw,
    BlockSelection,
    Draw,
    ExponentDraw,
    ExponentSelection,
    Selector,
)
from smartgen.workload import Request, Workload

Progress: TypeAlias = Callable[[], tuple[int, float]]
"""Answers, to another thread, how many requests are over and how late it is there."""

Watch: TypeAlias = Callable[[Progress], None]
"""Whoever wants to know; a backend hands over its answer when it starts."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Which long tables a run keeps: a row a posting, a decision, an act of a layer."""

    transfers: bool = False
    decisions: bool = False
    acts: bool = False

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            truth(f"record.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What a request must keep to count as good; null means that anything will do."""

    ttft_s: float | None = None
    ttst_s: float | None = None
    tbt_s: float | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) is not None:
                positive(f"targets.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything about a run but the world it runs in.

    mask_update: live masks change as blocks land; iteration lets them change only between
    iterations. profile: a file of measured importance, null for the selection law's own.
    """

    policy: Policy
    selector: Selector
    selection: BlockSelection | ExponentSelection
    model: Model
    gpu: Gpu
    host: Host
    network: Network
    cluster: Cluster
    workload: Workload
    targets: Targets
    record: Record
    blocks_per_layer: int
    mask_update: str
    seed: int
    profile: str | None = None

    def __post_init__(self) -> None:
        one_of("mask_update", self.mask_update, ("live", "iteration"))
        count("seed", self.seed, at_least=0)
        count("blocks_per_layer", self.blocks_per_layer)
        if self.profile is not None:
            self._check_profile(Profile.load(Path(self.profile)))
        if isinstance(self.selection, ExponentSelection):
            self._check_closed()
        _ = self.requests
        if self.workload.closed and self.cluster.prefill_pool_tokens is not None:
            self._check_together(self.cluster.prefill_pool_tokens)

    def _check_profile(self, profile: Profile) -> None:
        profile.check(self.geometry)
        for request in self.requests:
            if not profile.covers(request.prompt_tokens):
                raise SmartGenError(
                    f"profile={self.profile!r} was made for prompts of {profile.min_tokens} to "
                    f"{profile.max_tokens} tokens; this workload has one of {request.prompt_tokens}"
                )

    def _check_closed(self) -> None:
        """Refuse what the closed selection law says nothing about."""
        dense = "selection=exponent assumes that layers which load everything are pushed first"
        if self.policy.proactive == "none":
            raise SmartGenError(f"policy.proactive='none' needs selection=blocks; {dense}")
        if self.selector.dense_layers > ALWAYS_PLANNED_LAYERS and self.policy.proactive != "all":
            raise SmartGenError(
                f"selector.dense_layers={self.selector.dense_layers} needs selection=blocks; "
                f"{dense}, and of those only {ALWAYS_PLANNED_LAYERS} are sure to be"
            )
        if self.profile is not None:
            raise SmartGenError(
                f"profile={self.profile!r} needs selection=blocks; selection=exponent knows no "
                "positions"
            )

    def _check_together(self, room: int) -> None:
        """Refuse a closed batch that waits for itself.

        It starts when all of it is prefilled, and a prompt is let go when all of it has been sent.
        """
        if self.batch_blocks == self.geometry.num_blocks:
            return
        loads = [0] * self.cluster.prefill_nodes
        for turn, request in enumerate(self.requests):
            loads[choose(self.cluster.routing, turn, loads)] += request.prompt_tokens
        if max(loads) > room:
            raise SmartGenError(
                f"cluster.prefill_pool_tokens={room} must be at least {max(loads)} for this closed "
                "batch: no prompt is sent whole, so all are held until it starts"
            )

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """The requests to serve; what no pool could ever hold is refused, or left out if asked."""
        asked = self.workload.asked
        if self.workload.over_long == "leave_out":
            asked = tuple(request for request in asked if not self._over_long(request))
            if not asked:
                raise SmartGenError("workload.over_long=leave_out leaves no request to serve")
        for request in asked:
            why = self._over_long(request)
            if why:
                raise SmartGenError(why)
        return asked

    @property
    def left_out(self) -> int:
        """How many requests were left out as over-long."""
        return len(self.workload.asked) - len(self.requests)

    @property
    def echo(self) -> dict[str, Any]:
        """Facts about what is served of the workload, and how much was left out."""
        return {**self.workload.echo(self.requests), "left_out_over_long": self.left_out}

    @cached_property
    def window_s(self) -> tuple[float, float] | None:
        """First and last arrival, between which load is measured; null if all arrive at once."""
        arrivals = [request.arrival_s for request in self.requests]
        return None if min(arrivals) == max(arrivals) else (min(arrivals), max(arrivals))

    def _over_long(self, request: Request) -> str | None:
        """Why a request could never be served, instead of waiting for room that cannot come."""
        cluster = self.cluster
        need = request.prompt_tokens + request.output_tokens
        for key, room, wanted in (
            ("model.max_position_embeddings", self.model.max_position_embeddings, need),
            ("cluster.decode_pool_tokens", cluster.decode_pool_tokens, need),
            ("cluster.prefill_pool_tokens", cluster.prefill_pool_tokens, request.prompt_tokens),
        ):
            if room is not None and wanted > room:
                named = self.workload.name_of(request.request_id)
                return f"{key}={room} must be at least {wanted}, what {named} needs"
        return None

    @cached_property
    def geometry(self) -> Geometry:
        """The model's cache, cut into blocks."""
        return self.model.geometry(self.blocks_per_layer)

    @cached_property
    def cost(self) -> Cost:
        """Durations on this hardware."""
        selector = self.selector
        dense_layers = min(selector.dense_layers, self.model.num_hidden_layers)
        return Cost(self.model, self.gpu, self.host, selector.looks_ahead, dense_layers)

    @property
    def metadata_ratio(self) -> float:
        """Metadata bytes for each KV byte: none where nothing is selected."""
        if not self.policy.selects:
            return 0.0
        ratio = self.policy.metadata_ratio
        return self.selector.metadata_ratio if ratio is None else ratio

    @cached_property
    def budget(self) -> Budget:
        """How much is pushed during prefill."""
        return Budget(
            self.policy,
            self.geometry,
            self.cost,
            self.network,
            self.metadata_ratio,
            self.cluster,
        )

    @cached_property
    def batch_blocks(self) -> int:
        """K_r of each request of a closed batch, wherever it is decoded."""
        return self.budget.planned_blocks(self.requests)

    @cached_property
    def link_share(self) -> float:
        """The share of a decoding node's link that a prefill's pushes may expect to get."""
        if self.window_s is None:
            return 1.0
        busy_s = sum(
            self.cost.prefill_s(request.prompt_tokens, request.cached_tokens)
            for request in self.requests
        )
        cluster, (first_s, last_s) = self.cluster, self.window_s
        return expected_share(
            busy_s / (last_s - first_s), cluster.prefill_nodes, cluster.decode_nodes
        )

    def mask(self, plan: Plan) -> Mask:
        """What of a request is local once its plan has been delivered."""
        kind = CountMask if isinstance(self.selection, ExponentSelection) else BlockMask
        return kind(self.geometry, plan.left, self.cost.dense_layers)

    def draw(self, request_id: int, prompt_tokens: int) -> Draw:
        """The selections of one request."""
        geometry, selector, reuse = self.geometry, self.selector, self.policy.reuse
        if isinstance(self.selection, ExponentSelection):
            exponent = self.selection.exponent(self.policy.order)
            return ExponentDraw(self.selection, geometry, selector, prompt_tokens, exponent, reuse)
        return BlockDraw(
            self.selection, geometry, selector, prompt_tokens, request_id, self.seed, reuse
        )

    def planner(self) -> "Planner":
        """A new planner; each role has its own and both come to the same plans."""
        return Planner(self)

    def closed(self) -> ClosedBatch:
        """The same closed batch for the recursion (selection=exponent only)."""
        if not self.workload.closed:
            raise SmartGenError(
                f"workload.name={self.workload.name!r} is open; the recursion needs a closed batch"
            )
        if not isinstance(self.selection, ExponentSelection):
            raise SmartGenError("the recursion needs selection=exponent")
        law, exponent = self.selection, self.selection.exponent(self.policy.order)
        requests = self.requests
        nodes = self.cluster.prefill_nodes
        one_of("policy.speculation in the recursion", self.policy.speculation, ("fixed",))
        one_of("mask_update in the recursion", self.mask_update, ("iteration",))
        one_of("network.discipline in the recursion", self.network.discipline, ("fifo",))
        self._refuse_in_recursion()
        return ClosedBatch(
            policy=self.policy,
            geometry=self.geometry,
            cost=self.cost,
            network=self.network,
            requests=requests,
            plans=self.planner().plans_of(requests),
            prefill_nodes=[i % nodes for i in range(len(requests))],
            metadata_ratio=self.metadata_ratio,
            selected_ratio=self.selector.mean_ratio,
            missing=lambda local, step: law.missing_ratio(exponent, local, step, self.policy.reuse),
            grows=self.workload.grows,
        )

    def _refuse_in_recursion(self) -> None:
        """Refuse what the recursion does not know of cluster, clients and network."""
        cluster = self.cluster
        if self.network.variation is not None:
            raise SmartGenError(
                "the recursion knows no network.variation; it must be null, or backend=sim used"
            )
        for name in ("lost_s", "decode_pool_tokens", "prefill_pool_tokens", "decode_batch"):
            if getattr(cluster, name):
                raise SmartGenError(f"the recursion knows no cluster.{name}")
        if self.workload.abort_s:
            raise SmartGenError("the recursion knows no workload.abort_s")
        if cluster.decode_nodes > 1:
            raise SmartGenError(
                f"cluster.decode_nodes={cluster.decode_nodes} must be 1 for the recursion"
            )
        if self.network.sender_bytes_per_s < self.network.receiver_bytes_per_s:
            raise SmartGenError(
                f"network.sender_gbps={self.network.sender_gbps} must be at least "
                f"network.gbps={self.network.gbps} for the recursion, which knows one link"
            )


@dataclass(frozen=True)
class Outcome:
    """What a backend brings back: each node's recorder, and when the last thing happened.

    link_busy_s: for each link (``host0``, ``decode0``, ...) how long it was used, messages
    included, within window_s (in all, if there is none). emulation: how real bytes were moved, and
    how well the machine kept up; empty where nothing is real.
    """

    recorders: Sequence[Recorder]
    makespan_s: float
    link_busy_s: Mapping[str, float] = field(default_factory=dict)
    emulation: Mapping[str, Any] = field(default_factory=dict)


class Planner:
    """Plans of requests, derived from the experiment alone."""

    _MOST_PLANS = 32

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._common: Int | None = None
        self._plans: dict[int, Plan] = {}

    def plans_of(self, requests: Sequence[Request], rate: float | None = None) -> list[Plan]:
        """Plans of requests that arrive together; only a closed batch's share one budget.

        rate: bytes a second at which earlier requests' pushes were observed to arrive, or null.
        """
        experiment, budget = self._experiment, self._experiment.budget
        if experiment.workload.closed:
            return [self._plan(request, experiment.batch_blocks) for request in requests]
        share = experiment.link_share if rate is None else budget.share_at(rate)
        return [self._plan(r, budget.planned_blocks([r], share)) for r in requests]

    def plan_of(self, assign: Assign) -> Plan:
        """The same plan, from what the assignment says."""
        return self._plan(assign, assign.num_planned)

    def _plan(self, asked: Request | Assign, planned: int) -> Plan:
        experiment = self._experiment
        shape = (experiment.blocks_per_layer, experiment.geometry.num_layers)
        if experiment.policy.order in ("random", "optimal"):
            order = self._order(asked)
        else:
            if self._common is None:
                self._common = self._order(asked)
            order = self._common
        if asked.held_tokens:
            held = experiment.geometry.is_held(asked.prompt_tokens, asked.held_tokens)
            order = order[~held[order]]
            return Plan(order, min(planned, len(order)), *shape)
        if order is not self._common:
            return Plan(order, planned, *shape)
        if planned not in self._plans:
            if len(self._plans) == self._MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[planned] = Plan(order, planned, *shape)
        return self._plans[planned]

    def _order(self, asked: Request | Assign) -> Int:
        experiment = self._experiment
        geometry = experiment.geometry
        importance = np.zeros((geometry.num_layers, geometry.blocks_per_layer))
        policy = experiment.policy
        if isinstance(experiment.selection, ExponentSelection):
            dense_layers = experiment.cost.dense_layers
            policy = replace(policy, order="even", protect_layers=dense_layers)
        elif policy.order == "profile":
            importance = self._profile(experiment.selection).importance
        elif policy.order == "optimal":
            oracle = experiment.draw(asked.request_id, asked.prompt_tokens)
            assert isinstance(oracle, BlockDraw)
            importance = oracle.frequency(max(1, asked.output_tokens - 1))
        rng = np.random.default_rng([experiment.seed, 3, asked.request_id])
        return order_blocks(policy, geometry, importance, rng)

    def _profile(self, selection: BlockSelection) -> Profile:
        experiment = self._experiment
        if experiment.profile is not None:
            return Profile.load(Path(experiment.profile))
        length = None
        if experiment.geometry.windows is not None:  # made for prompts like those to be served
            lengths = sorted(request.prompt_tokens for request in experiment.requests)
            length = max(experiment.blocks_per_layer, lengths[len(lengths) // 2])
        return selection.profile(experiment.geometry, experiment.selector, experiment.seed, length)
