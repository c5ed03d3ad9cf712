"""A closed batch as a recursion over the cost model's equations: no events, no engine, no nodes.

It is what fitting runs, and the contract holds the event-driven simulator to it (1e-9) under
``selection=exponent``, ``network.discipline=fifo`` and ``mask_update=iteration``.

Everything is max and plus: a wire that serves in order of posting is one busy-until time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from smartgen.cost.cards import Network
from smartgen.cost.cost import Cost
from smartgen.kv import Geometry
from smartgen.policy import Plan, Policy, fixed_quotas, speculate
from smartgen.workload import Request


@dataclass(frozen=True)
class ClosedBatch:
    """What the recursion needs. plan belongs to each request; prompts may differ in length.

    selected_ratio: share of a sparse layer that is selected. missing(local_ratio, step): share of
    that which must be fetched. grows: whether generated entries add to attention and loading.
    """

    policy: Policy
    geometry: Geometry
    cost: Cost
    network: Network
    requests: Sequence[Request]
    plans: Sequence[Plan]
    prefill_nodes: Sequence[int]
    metadata_ratio: float
    selected_ratio: float
    missing: Callable[[float, int], float]
    grows: bool = True


@dataclass
class ClosedResult:
    """Times in seconds since arrival. first_token_s of each request; iteration_end_s of all.

    tail_s: what is left of the planned pushes when the last first token is made.
    iterations_to_whole: at the end of so many every block had landed (0: all were planned); null
    if that never was.
    """

    first_token_s: list[float]
    tail_s: float
    iteration_end_s: list[float] = field(default_factory=list)
    iterations_to_whole: int | None = None

    @property
    def ttst_s(self) -> float:
        """Last first token to second token; NaN if there is none."""
        if not self.iteration_end_s:
            return math.nan
        return self.iteration_end_s[0] - max(self.first_token_s)

    @property
    def tbt_s(self) -> float:
        """Mean of the later gaps; NaN if there are none."""
        if len(self.iteration_end_s) < 2:
            return math.nan
        return (self.iteration_end_s[-1] - self.iteration_end_s[0]) / (
            len(self.iteration_end_s) - 1
        )

    @property
    def steps_s(self) -> list[float]:
        """Gaps between iteration ends, from the third token on."""
        ends = self.iteration_end_s
        return [b - a for a, b in pairwise(ends)]


_Kind = tuple[bool, int | None]
"""Of a layer: whether it is dense, and its window."""


class _Acts(NamedTuple):
    """Seconds of a layer's acts; fetches: (until posted, on the wire) by prefill node."""

    attend_s: float
    select_s: float
    load_s: float
    fetches: Sequence[tuple[float, float]]


def closed_batch_times(batch: ClosedBatch) -> ClosedResult:
    """Run the recursion."""
    return _Recursion(batch).run()


class _Recursion:
    """State: the wire's busy-until time, each request's progress and landed blocks."""

    def __init__(self, batch: ClosedBatch) -> None:
        self.batch = batch
        network, cost = batch.network, batch.cost
        self.rate = network.receiver_bytes_per_s
        self.one_way_s = network.one_way_s
        self.layers = batch.geometry.num_layers
        self.dense = cost.dense_layers
        windows = batch.geometry.windows or (None,) * self.layers
        # layers of one kind (whether dense, window) do the same
        self.kinds = [(layer < self.dense, window) for layer, window in enumerate(windows)]
        self.busy_s = 0.0
        self.posted = [plan.num_planned for plan in batch.plans]
        self.landed = [plan.num_planned for plan in batch.plans]
        self.flying: list[tuple[float, float, int, int]] = []  # start, end, request, blocks
        self.sizes: dict[tuple[int, Plan], list[float]] = {}
        self.planned_sizes: dict[tuple[int, Plan], list[float]] = {}
        # landed planned pushes: [layer], the last request's
        self.done_s = [0.0] * self.layers
        self.plan_done_s = [0.0] * len(batch.requests)
        # what is posted at the same instant is served by node, then by request
        self.posting_order = sorted(
            range(len(batch.plans)), key=lambda i: (batch.prefill_nodes[i], i)
        )

    def run(self) -> ClosedResult:
        batch, policy = self.batch, self.batch.policy
        first_s = self._prefill()
        last_first_s = max(first_s)
        result = ClosedResult(first_s, max(0.0, self.busy_s - last_first_s))
        start_s = last_first_s + self.one_way_s
        if policy.decode_start == "plan":
            start_s = max(start_s, self.done_s[-1])
        start_s += batch.cost.admit_s(self._batch_bytes(), policy.codec)
        start_s = max(start_s, self.done_s[0])  # the first layer comes with the handover
        for step in range(1, max(request.output_tokens for request in batch.requests)):
            if result.iterations_to_whole is None and self._is_whole(start_s):
                result.iterations_to_whole = step - 1
            start_s = self._iteration(start_s, step)
            result.iteration_end_s.append(start_s)
        if result.iterations_to_whole is None and self._is_whole(start_s):
            result.iterations_to_whole = len(result.iteration_end_s)
        return result

    def _is_whole(self, now: float) -> bool:
        """Whether nothing is left to push or still on its way."""
        posted = all(n == len(p.order) for n, p in zip(self.posted, self.batch.plans, strict=True))
        return posted and all(end_s <= now - self.one_way_s for _, end_s, _, _ in self.flying)

    # -- prefill

    def _prefill(self) -> list[float]:
        """Post every layer's planned pushes in order of time; return the first-token times."""
        batch = self.batch
        first_s, postings = [], []
        node_free_s: dict[int, float] = {}  # requests of one node are prefilled one after the other
        for i, request in enumerate(batch.requests):
            total_s = batch.cost.prefill_s(request.prompt_tokens, request.cached_tokens)
            layer_s = total_s / self.layers
            new = batch.geometry.layer_tokens(request.prompt_tokens - request.cached_tokens)
            new_bytes = new * batch.geometry.entry_bytes
            offload_s = batch.cost.offload_s(new_bytes, layer_s).tolist()
            sizes = self._planned_sizes(i)
            clock_s = node_free_s.get(batch.prefill_nodes[i], self.one_way_s)
            for layer in range(self.layers):
                clock_s += layer_s
                if batch.policy.placement == "host":
                    clock_s += offload_s[layer]
                postings.append((clock_s, batch.prefill_nodes[i], i, layer, sizes[layer]))
            first_s.append(clock_s)
            node_free_s[batch.prefill_nodes[i]] = clock_s
        for posted_s, _, i, layer, size in sorted(postings):
            self.busy_s = max(self.busy_s, posted_s) + size / self.rate
            self.done_s[layer] = max(self.done_s[layer], self.busy_s + self.one_way_s)
            self.plan_done_s[i] = self.busy_s + self.one_way_s
        return first_s

    def _planned_sizes(self, i: int) -> list[float]:
        """Wire bytes of every layer's planned push; alike for requests of one length and plan."""
        key = (self.batch.requests[i].prompt_tokens, self.batch.plans[i])
        if key not in self.planned_sizes:
            layers = range(self.layers)
            self.planned_sizes[key] = [self._planned_size(i, layer) for layer in layers]
        return self.planned_sizes[key]

    def _planned_size(self, i: int, layer: int) -> float:
        batch = self.batch
        tokens = batch.requests[i].prompt_tokens
        planned = batch.geometry.sizes(tokens)[batch.plans[i].by_layer[layer]]
        size = float(planned.sum()) * batch.geometry.entry_bytes
        if batch.policy.codec != "none":
            return size * batch.cost.wire_ratio(batch.policy.codec)
        if batch.policy.selects:
            kept = int(batch.geometry.layer_tokens(tokens)[layer])
            size += batch.metadata_ratio * (kept * batch.geometry.entry_bytes)
        return size + float(np.count_nonzero(planned)) * batch.network.pair_bytes

    def _cumulated_sizes(self, i: int) -> list[float]:
        """Wire bytes of the first k blocks in pushing order, for every k."""
        key = (self.batch.requests[i].prompt_tokens, self.batch.plans[i])
        if key not in self.sizes:
            self.sizes[key] = self._cumulate(i)
        return self.sizes[key]

    def _cumulate(self, i: int) -> list[float]:
        batch = self.batch
        entries = batch.geometry.sizes(batch.requests[i].prompt_tokens)
        ordered = entries[batch.plans[i].order]
        sizes = ordered * batch.geometry.entry_bytes + (ordered > 0) * batch.network.pair_bytes
        return list(accumulate(sizes.tolist(), initial=0.0))

    # -- decoding

    def _iteration(self, start_s: float, step: int) -> float:
        """One iteration that starts at start_s; returns its end."""
        self._land(start_s)
        batch, cost = self.batch, self.batch.cost
        cached = [r.prompt_tokens + (step - 1 if batch.grows else 0) for r in batch.requests]
        if not batch.policy.selects:
            sizes = [self._reached_bytes(tokens) for tokens in cached]
            return start_s + sum(
                cost.gpu_step(sum(sizes), max(sizes), len(sizes), batch.policy.codec)
            )
        complete = all(n == len(p.order) for n, p in zip(self.landed, batch.plans, strict=True))
        if complete and self.done_s[-1] <= start_s:
            of = {kind: self._selected_bytes(kind, cached) for kind in set(self.kinds)}
            layer_bytes = [of[kind] for kind in self.kinds]
            reached = np.array([sum(_reached(cached, window)) for _, window in self.kinds])
            return start_s + sum(cost.local_step(np.array(layer_bytes), reached, len(cached)))
        self.feed_forward_s = cost.feed_forward_s(len(cached)).tolist()
        walk = self._look_ahead if cost.looks_ahead else self._plain
        return walk(start_s, step, self._acts(step, cached)) + cost.head_s

    def _reached_bytes(self, cached: int) -> int:
        """Bytes that all layers together attend of one request."""
        geometry = self.batch.geometry
        return int(geometry.reach(cached).sum()) * geometry.entry_bytes

    def _selected_bytes(self, kind: _Kind, cached: Sequence[int]) -> float:
        """Bytes that a layer of that kind selects of the batch."""
        dense, window = kind
        whole = float(sum(_reached(cached, window)) * self.batch.geometry.entry_bytes)
        return whole if dense else self.batch.selected_ratio * whole

    def _acts(self, step: int, cached: Sequence[int]) -> list[_Acts]:
        """Durations of every layer of an iteration, [L]."""
        of = {kind: self._acts_of(kind, step, cached) for kind in set(self.kinds)}
        return [of[kind] for kind in self.kinds]

    def _acts_of(self, kind: _Kind, step: int, cached: Sequence[int]) -> _Acts:
        cost, drops = self.batch.cost, self.batch.policy.lanes == "none"
        dense, window = kind
        selected = self._selected_bytes(kind, cached)
        missing = [] if dense else self._missing_bytes(step, window)
        fetched = [size for size in missing if size > 0]
        local = max(0.0, selected - sum(fetched))
        fetches = [(cost.rpc_s + cost.gather_s(size), size / self.rate) for size in fetched]
        return _Acts(
            cost.attend_s(local if drops else selected),
            cost.select_s(sum(_reached(cached, window))),
            cost.load_s(local, self.kinds.index(kind)),
            [] if drops else sorted(fetches),
        )

    def _look_ahead(self, now: float, step: int, acts: Sequence[_Acts]) -> float:
        cost, layers = self.batch.cost, self.layers
        if step == 1 and self._lacks_first_layer():
            now = self._lanes(max(now, self.done_s[0]) + acts[0].select_s, acts[0])
        for layer in range(layers):
            following = (layer + 1) % layers
            self._announce_idle(now, step, layer)
            now += cost.launch_s + cost.project_s
            landed_s = self.done_s[following]
            if landed_s > now:
                now += acts[layer].attend_s
                lanes_s = max(now, landed_s) + acts[following].select_s
            else:
                now += max(acts[layer].attend_s, acts[following].select_s)
                lanes_s = now
            end_s = self._lanes(lanes_s, acts[following])
            now = max(now + self.feed_forward_s[layer], end_s)
        return now

    def _lacks_first_layer(self) -> bool:
        """Whether layer 0 did not come whole with the handover."""
        blocks = self.batch.geometry.blocks_per_layer
        return any(len(plan.by_layer[0]) < blocks for plan in self.batch.plans)

    def _plain(self, now: float, step: int, acts: Sequence[_Acts]) -> float:
        cost = self.batch.cost
        for layer in range(self.layers):
            self._announce_idle(now, step, layer)
            now += cost.launch_s + cost.project_s
            now = max(now, self.done_s[layer]) + acts[layer].select_s
            now = self._lanes(now, acts[layer])
            now += acts[layer].attend_s
            now += self.feed_forward_s[layer]
        return now

    def _lanes(self, start_s: float, acts: _Acts) -> float:
        """End of a layer's local and remote lane."""
        if not acts.fetches:
            return start_s + acts.load_s
        serial = self.batch.policy.lanes == "serial"
        remote_s = start_s + acts.load_s + self.one_way_s if serial else start_s + self.one_way_s
        busy_s = self.busy_s
        for delay_s, wire_s in acts.fetches:
            posted_s = remote_s + delay_s
            busy_s = (busy_s if busy_s > posted_s else posted_s) + wire_s
        self.busy_s = busy_s
        return max(start_s + acts.load_s, busy_s + self.one_way_s)

    def _missing_bytes(self, step: int, window: int | None) -> list[float]:
        """Bytes to fetch from each prefill node in a sparse layer with that window."""
        batch = self.batch
        missing: dict[int, float] = {}
        tokens = _reached([request.prompt_tokens for request in batch.requests], window)
        for i, reached in enumerate(tokens):
            dense_blocks = self.dense * batch.geometry.blocks_per_layer
            sparse_blocks = len(batch.plans[i].order) - dense_blocks
            landed = self.landed[i] + self.partial[i] - dense_blocks
            local = landed / sparse_blocks if sparse_blocks else 1.0
            selected = batch.selected_ratio * reached * batch.geometry.entry_bytes
            size = selected * batch.missing(local, step)
            node = batch.prefill_nodes[i]
            missing[node] = missing.get(node, 0.0) + size
        return list(missing.values())

    # -- speculation

    def _announce_idle(self, now: float, step: int, layer: int) -> None:
        batch = self.batch
        if not batch.policy.announces_idle(step):
            return
        posted_s = now + self.one_way_s
        for i in self.posting_order:
            plan = batch.plans[i]
            if self.landed[i] == len(plan.order) or posted_s < self.plan_done_s[i]:
                continue
            before = self.posted[i]
            quota = fixed_quotas(batch.policy, self.layers, plan.blocks_per_layer, step)[layer]
            blocks = speculate(plan, before, quota)
            if not len(blocks):
                continue
            self.posted[i] = before + len(blocks)
            sizes = self._cumulated_sizes(i)
            size = sizes[self.posted[i]] - sizes[before]
            start_s = max(self.busy_s, posted_s)
            self.busy_s = start_s + size / self.rate
            self.flying.append((start_s, self.busy_s, i, len(blocks)))

    def _land(self, now: float) -> None:
        """Count the blocks that have landed by now; keep what is still flying."""
        still = []
        for start_s, end_s, i, blocks in self.flying:
            arrived_s = now - self.one_way_s
            if end_s <= arrived_s:
                self.landed[i] += blocks
            else:
                still.append((start_s, end_s, i, blocks))
        self.flying = still
        self.partial = [0] * len(self.landed)
        for start_s, end_s, i, blocks in still:
            if end_s > start_s:
                share = (now - self.one_way_s - start_s) / (end_s - start_s)
                self.partial[i] += max(0, int(share * blocks + 1e-6))

    def _batch_bytes(self) -> float:
        geometry = self.batch.geometry
        entries = sum(geometry.entries(request.prompt_tokens) for request in self.batch.requests)
        return float(entries * geometry.entry_bytes)


def _reached(tokens: Sequence[int], window: int | None) -> Sequence[int]:
    return tokens if window is None else [min(one, window) for one in tokens]
