"""T_p and T_t of a batch, and the plan size that follows (Equation 2)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from smartgen.cost.cards import Network
from smartgen.cost.cost import Cost
from smartgen.kv import Geometry
from smartgen.policy import Policy, proactive_budget
from smartgen.workload import Request


class Hosts(Protocol):
    """How many nodes there are, and how many prefill nodes share a host's link."""

    @property
    def prefill_nodes(self) -> int:
        """Prefill GPUs."""

    @property
    def gpus_per_host(self) -> int:
        """GPUs of each host."""

    @property
    def decode_nodes(self) -> int:
        """Decoding nodes, each behind a link of its own."""


@dataclass(frozen=True)
class Budget:
    """Computes how many blocks of each request are pushed during prefill.

    Of a network that varies it takes the nominal rate, as one who does not know what will come.
    """

    policy: Policy
    geometry: Geometry
    cost: Cost
    network: Network
    metadata_ratio: float
    cluster: Hosts

    def prefill_s(self, requests: Sequence[Request]) -> float:
        """T_p: from the batch's arrival to its last first token, requests dealt round robin."""
        busy_s = [0.0] * self.cluster.prefill_nodes
        for i, request in enumerate(requests):
            busy_s[i % len(busy_s)] += self.cost.prefill_s(
                request.prompt_tokens, request.cached_tokens
            )
        return max(busy_s)

    def transfer_s(self, requests: Sequence[Request]) -> float:
        """T_t: every block of the batch over the network, without metadata."""
        geometry = self.geometry
        entries = np.array([geometry.layer_tokens(request.prompt_tokens) for request in requests])
        pairs = np.minimum(entries, geometry.blocks_per_layer)  # [batch, L]
        sizes = entries.sum(axis=0) * geometry.entry_bytes
        return math.fsum(sizes + pairs.sum(axis=0) * self.network.pair_bytes) / self._bytes_per_s(
            len(requests)
        )

    def metadata_s(self, requests: Sequence[Request]) -> float:
        """Wire time of the selectors' metadata of the batch."""
        entries = sum(self.geometry.entries(request.prompt_tokens) for request in requests)
        size = entries * self.geometry.entry_bytes
        return self.metadata_ratio * size / self._bytes_per_s(len(requests))

    def _bytes_per_s(self, num_requests: int) -> float:
        """What the network carries of a batch: into all receivers, or out of all its hosts."""
        nodes = min(num_requests, self.cluster.prefill_nodes)
        hosts = -(-nodes // self.cluster.gpus_per_host)
        receivers = min(num_requests, self.cluster.decode_nodes)
        return min(
            receivers * self.network.receiver_bytes_per_s, hosts * self.network.sender_bytes_per_s
        )

    def share_at(self, bytes_per_s: float) -> float:
        """The share of its network that a request gets whose pushes arrive at such a rate."""
        return min(1.0, bytes_per_s / self._bytes_per_s(1))

    def planned_blocks(self, requests: Sequence[Request], link_share: float = 1.0) -> int:
        """K_r of each request of this batch, which gets a share of the network."""
        batch = list(requests)
        if self.policy.budget_source == "frozen":
            typical = sorted(batch, key=lambda r: r.prompt_tokens)[len(batch) // 2]
            batch = [replace(typical, request_id=i) for i in range(self.policy.frozen_batch)]
        return proactive_budget(
            self.policy,
            self.geometry,
            self.prefill_s(batch),
            self.transfer_s(batch) / link_share,
            self.metadata_s(batch) / link_share,
        )


def expected_share(prefills: float, prefill_nodes: int, decode_nodes: int) -> float:
    """Return the share of a decoding node's link that the pushes of one prefill may expect.

    Where requests come one by one there is no batch to take T_t of. A request's own transfer gets
    the whole link less what others push to the same decoding node meanwhile. prefills: how many
    run at a time on average (the offered load); each of the other nodes is busy for that share of
    the time, and pushes to this link as often as to any. On an unloaded system the share is 1, and
    K_r that of a closed batch of one.
    """
    busy = min(1.0, prefills / prefill_nodes)
    return 1.0 / (1.0 + busy * (prefill_nodes - 1) / decode_nodes)
