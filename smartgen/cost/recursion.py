"""A closed batch as a recursion over the physics equations: no events, no engine, no nodes.

It is what fitting runs, and the contract holds the event-driven simulator to it (1e-9) under
``selection=exponent``, ``network.discipline=fifo`` and ``mask_update=iteration``.

Everything is max and plus: a wire that serves in order of posting is one busy-until time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from smartgen.cost.cards import Network
from smartgen.cost.cost import Cost
from smartgen.kv import Geometry
from smartgen.policy import Plan, Policy, Progress, speculate
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
    """

    first_token_s: list[float]
    tail_s: float
    iteration_end_s: list[float] = field(default_factory=list)

    @property
    def ttst_s(self) -> float:
        """Last first token to second token."""
        return self.iteration_end_s[0] - max(self.first_token_s)

    @property
    def tbt_s(self) -> float:
        """Mean of the later gaps."""
        return (self.iteration_end_s[-1] - self.iteration_end_s[0]) / (
            len(self.iteration_end_s) - 1
        )

    @property
    def steps_s(self) -> list[float]:
        """Gaps between iteration ends, from the third token on."""
        ends = self.iteration_end_s
        return [b - a for a, b in zip(ends, ends[1:], strict=False)]


def closed_batch_times(batch: ClosedBatch) -> ClosedResult:
    """Run the recursion."""
    return _Recursion(batch).run()


class _Recursion:
    """State: the wire's busy-until time, each request's progress and landed blocks."""

    def __init__(self, batch: ClosedBatch) -> None:
        self.batch = batch
        network, cost = batch.network, batch.cost
        self.rate = min(network.receiver_bytes_per_s, network.sender_bytes_per_s)
        self.one_way_s = network.one_way_s
        self.layers = batch.geometry.num_layers
        self.dense = cost.dense_layers
        self.busy_s = 0.0
        self.progress = [Progress(plan.num_planned) for plan in batch.plans]
        self.landed = [plan.num_planned for plan in batch.plans]
        self.flying: list[tuple[float, float, int, int]] = []  # start, end, request, blocks
        self.sizes = [self._cumulated_sizes(i) for i in range(len(batch.requests))]
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
        if policy.selects and batch.cost.looks_ahead:
            start_s = max(start_s, self.done_s[0])
        for step in range(1, max(request.output_tokens for request in batch.requests)):
            start_s = self._iteration(start_s, step)
            result.iteration_end_s.append(start_s)
        return result

    # -- prefill

    def _prefill(self) -> list[float]:
        """Post every layer's planned pushes in order of time; return the first-token times."""
        batch = self.batch
        first_s, postings = [], []
        node_free_s: dict[int, float] = {}  # requests of one node are prefilled one after the other
        for i, request in enumerate(batch.requests):
            total_s = batch.cost.prefill_s(request.prompt_tokens, request.cached_tokens)
            layer_s = total_s / self.layers
            new_tokens = request.prompt_tokens - request.cached_tokens
            offload_s = batch.cost.offload_s(new_tokens * batch.geometry.entry_bytes, layer_s)
            extra_s = offload_s if batch.policy.placement == "host" else 0.0
            clock_s = node_free_s.get(batch.prefill_nodes[i], self.one_way_s)
            for layer in range(self.layers):
                clock_s += layer_s
                size = self._planned_size(i, layer)
                clock_s += extra_s
                postings.append((clock_s, batch.prefill_nodes[i], i, layer, size))
            first_s.append(clock_s)
            node_free_s[batch.prefill_nodes[i]] = clock_s
        for posted_s, _, i, layer, size in sorted(postings):
            self.busy_s = max(self.busy_s, posted_s) + size / self.rate
            self.done_s[layer] = max(self.done_s[layer], self.busy_s + self.one_way_s)
            self.plan_done_s[i] = self.busy_s + self.one_way_s
        return first_s

    def _planned_size(self, i: int, layer: int) -> float:
        batch = self.batch
        entries = batch.geometry.block_entries(batch.requests[i].prompt_tokens)
        planned = entries[batch.plans[i].by_layer[layer] % batch.geometry.blocks_per_layer]
        size = float(planned.sum()) * batch.geometry.entry_bytes
        if batch.policy.codec != "none":
            return size * batch.cost.wire_ratio(batch.policy.codec)
        if batch.policy.selects:
            whole = batch.requests[i].prompt_tokens * batch.geometry.entry_bytes
            size += batch.metadata_ratio * whole
        return size + float(np.count_nonzero(planned)) * batch.network.pair_bytes

    def _cumulated_sizes(self, i: int) -> list[float]:
        """Wire bytes of the first k blocks in pushing order, for every k."""
        batch = self.batch
        entries = batch.geometry.block_entries(batch.requests[i].prompt_tokens)
        ordered = entries[batch.plans[i].order % batch.geometry.blocks_per_layer]
        sizes = ordered * batch.geometry.entry_bytes + (ordered > 0) * batch.network.pair_bytes
        return list(accumulate(sizes.tolist(), initial=0.0))

    # -- decoding

    def _iteration(self, start_s: float, step: int) -> float:
        """One iteration that starts at start_s; returns its end."""
        self._land(start_s)
        batch, cost = self.batch, self.batch.cost
        cached = [r.prompt_tokens + (step - 1 if batch.grows else 0) for r in batch.requests]
        entry_bytes = batch.geometry.entry_bytes
        if not batch.policy.selects:
            sizes = [tokens * entry_bytes * self.layers for tokens in cached]
            return start_s + sum(cost.gpu_step(sum(sizes), max(sizes), batch.policy.codec))
        whole = float(sum(cached) * entry_bytes)
        sparse = batch.selected_ratio * whole
        complete = all(n == len(p.order) for n, p in zip(self.landed, batch.plans, strict=True))
        if complete and self.done_s[-1] <= start_s:
            layer_bytes = [whole] * self.dense + [sparse] * (self.layers - self.dense)
            return start_s + sum(cost.local_step(layer_bytes[: self.layers], sum(cached)))
        missing = self._missing_bytes(step)
        walk = self._look_ahead if cost.looks_ahead else self._plain
        return walk(start_s, step, sum(cached), whole, sparse, missing) + cost.head_s

    def _look_ahead(
        self, now: float, step: int, cached: int, whole: float, sparse: float, missing: list[float]
    ) -> float:
        cost = self.batch.cost
        select_s = cost.select_s(cached)
        for layer in range(self.layers):
            following = (layer + 1) % self.layers
            self._announce_idle(now, step)
            now += cost.launch_s + cost.project_s
            attend_s = cost.attend_s(whole if layer < self.dense else sparse)
            waits = self.done_s[following] > now
            now += attend_s if waits else max(attend_s, select_s)
            lanes_s = now
            if waits:
                lanes_s = max(now, self.done_s[following]) + select_s
            end_s = self._lanes(lanes_s, following, whole, sparse, missing)
            now = max(now + cost.feed_forward_s, end_s)
        return now

    def _plain(
        self, now: float, step: int, cached: int, whole: float, sparse: float, missing: list[float]
    ) -> float:
        cost = self.batch.cost
        for layer in range(self.layers):
            self._announce_idle(now, step)
            now += cost.launch_s + cost.project_s
            now = max(now, self.done_s[layer]) + cost.select_s(cached)
            now = self._lanes(now, layer, whole, sparse, missing)
            now += cost.attend_s(whole if layer < self.dense else sparse)
            now += cost.feed_forward_s
        return now

    def _lanes(
        self, start_s: float, layer: int, whole: float, sparse: float, missing: list[float]
    ) -> float:
        """End of a layer's local and remote lane; missing bytes per prefill node."""
        cost, policy = self.batch.cost, self.batch.policy
        if layer < self.dense:
            return start_s + cost.load_s(whole, layer)
        fetched = [size for size in missing if size > 0]
        local_s = cost.load_s(max(0.0, sparse - sum(fetched)), layer)
        if not fetched or policy.lanes == "none":
            return start_s + local_s
        remote_s = start_s + (local_s if policy.lanes == "serial" else 0.0)
        posts = sorted(
            (remote_s + self.one_way_s + (cost.rpc_s + cost.gather_s(n)), n) for n in fetched
        )
        for posted_s, size in posts:
            self.busy_s = max(self.busy_s, posted_s) + size / self.rate
        return max(start_s + local_s, self.busy_s + self.one_way_s)

    def _missing_bytes(self, step: int) -> list[float]:
        """Bytes to fetch in a sparse layer from each prefill node."""
        batch = self.batch
        missing: dict[int, float] = {}
        for i, request in enumerate(batch.requests):
            dense_blocks = self.dense * batch.geometry.blocks_per_layer
            sparse_blocks = len(batch.plans[i].order) - dense_blocks
            landed = self.landed[i] + self.partial[i] - dense_blocks
            local = landed / sparse_blocks if sparse_blocks else 1.0
            selected = batch.selected_ratio * request.prompt_tokens * batch.geometry.entry_bytes
            size = selected * batch.missing(local, step)
            node = batch.prefill_nodes[i]
            missing[node] = missing.get(node, 0.0) + size
        return list(missing.values())

    # -- speculation

    def _announce_idle(self, now: float, step: int) -> None:
        batch = self.batch
        if not batch.policy.announces_idle(step):
            return
        posted_s = now + self.one_way_s
        for i in self.posting_order:
            plan = batch.plans[i]
            if self.landed[i] == len(plan.order) or posted_s < self.plan_done_s[i]:
                continue
            before = self.progress[i].posted
            blocks, self.progress[i] = speculate(batch.policy, plan, self.progress[i])
            if not len(blocks):
                continue
            size = self.sizes[i][before + len(blocks)] - self.sizes[i][before]
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
        tokens = sum(request.prompt_tokens for request in self.batch.requests)
        return float(tokens * geometry.entry_bytes * geometry.num_layers)
