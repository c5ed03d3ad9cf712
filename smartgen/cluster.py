"""The machines: prefill nodes on hosts that share a NIC, decoding nodes, and their pools."""

from collections.abc import Sequence
from dataclasses import dataclass

from smartgen.cost import Network
from smartgen.cost.variation import Course, courses
from smartgen.errors import count, one_of, pairs, positive
from smartgen.policy.routing import RULES


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Prefill nodes (one GPU each) on hosts that share a NIC, and decoding nodes with one each.

    Null means unlimited throughout.

    Attributes:
        decode_batch: most requests in a decoding node's batch; the others wait, first come first.
        decode_pool_tokens: a decoding node's room for prompts and outputs, reserved before a
            transfer starts.
        prefill_pool_tokens: a prefill node's room for prompts, from the start of the prefill until
            the decoding node holds everything or the request is over.
        prefill_lease_s: a prefill node keeps a request's pages so long after the last word on it;
            then the request fails.
        decode_cache_tokens: a decoding node's room for prefixes of requests that are over, which
            need not be sent again; prefill_cache_tokens: the same at a prefill node, where they
            need not be computed again. Both matter only to workloads that name their prefixes.
        routing: how the nodes of a request are chosen.
        lost_s: pairs of a prefill node's number and the time at which it dies.
    """

    prefill_nodes: int
    gpus_per_host: int
    decode_nodes: int = 1
    decode_batch: int | None = None
    decode_pool_tokens: int | None = None
    prefill_pool_tokens: int | None = None
    prefill_lease_s: float | None = None
    prefill_cache_tokens: int | None = None
    decode_cache_tokens: int | None = None
    routing: str = "round_robin"
    lost_s: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        for name in ("prefill_nodes", "gpus_per_host", "decode_nodes"):
            count(f"cluster.{name}", getattr(self, name))
        for name in ("decode_batch", "decode_pool_tokens", "prefill_pool_tokens"):
            if getattr(self, name) is not None:
                count(f"cluster.{name}", getattr(self, name))
        for name in ("prefill_cache_tokens", "decode_cache_tokens"):
            if getattr(self, name) is not None:
                count(f"cluster.{name}", getattr(self, name), at_least=0)
        if self.prefill_lease_s is not None:
            positive("cluster.prefill_lease_s", self.prefill_lease_s)
        one_of("cluster.routing", self.routing, RULES)
        _ = self.losses

    @property
    def losses(self) -> dict[int, float]:
        """When which prefill node dies; refuses by name what lost_s must not be."""
        return pairs("cluster.lost_s", self.lost_s, self.prefill_nodes)

    def host_of(self, prefill_node: int) -> str:
        """The host of a prefill node, which is also the name of its link."""
        return f"host{prefill_node // self.gpus_per_host}"


def links(network: Network, cluster: Cluster) -> dict[str, float]:
    """Nominal bytes a second of every link: out of each prefill host, into each decoding node."""
    hosts = {cluster.host_of(i): network.sender_bytes_per_s for i in range(cluster.prefill_nodes)}
    nodes = (f"decode{i}" for i in range(cluster.decode_nodes))
    return {**hosts, **dict.fromkeys(nodes, network.receiver_bytes_per_s)}


def varying_links(network: Network, cluster: Cluster) -> dict[str, Course]:
    """How the links into decoding nodes vary, by name; none where the network is constant."""
    return courses(network.variation, (f"decode{i}" for i in range(cluster.decode_nodes)))
