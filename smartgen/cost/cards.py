"""Cards: the constants of a GPU, a host, a network. Their YAML names the source of every number.

Fields carry the unit people use; properties carry seconds and bytes, converted once, here.
"""

from dataclasses import dataclass

from smartgen.cost.variation import Random, Steps, Variation
from smartgen.errors import SmartGenError, not_negative, one_of, positive

MOST_GBPS = 1e6
"""More is a slip of units, and would drown in the clock's last digits."""

DISCIPLINES = ("fifo", "queue_pair", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class HackCost:
    """What HACK's codec costs; rates in nanoseconds for a byte of uncompressed KV.

    wire_ratio: size on the wire over the size of the uncompressed cache. saved_us: overhead of
    offloading that HACK avoids in each layer. unpack_batch: for the batch's cache; unpack_request:
    for the longest request's (the kernel is parallel over requests). handover: once, at admission.
    """

    wire_ratio: float
    saved_us: float
    unpack_batch_ns_per_byte: float
    unpack_request_ns_per_byte: float
    handover_ns_per_byte: float

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            not_negative(f"gpu.hack.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU's measured rates. Matrix and attention rates hold for prefill; decoding reads memory.

    launch_overhead_us: kernel launches, synchronisation and the runtime, per layer of an iteration.
    select_us, select_ns_per_token: the selector, per layer, fixed and per cached token.
    prefill_ms: norms and launches of one prefill.
    """

    name: str
    matmul_tflops: float
    attention_tflops: float
    memory_gbytes_per_s: float
    weights_efficiency: float
    attend_efficiency: float
    launch_overhead_us: float
    select_us: float
    select_ns_per_token: float
    prefill_ms: float
    hack: HackCost

    def __post_init__(self) -> None:
        for name in ("matmul_tflops", "attention_tflops", "memory_gbytes_per_s"):
            positive(f"gpu.{name}", getattr(self, name))
        for name in ("weights_efficiency", "attend_efficiency"):
            positive(f"gpu.{name}", getattr(self, name))
        for name in ("launch_overhead_us", "select_us", "select_ns_per_token", "prefill_ms"):
            not_negative(f"gpu.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host's software and memory paths.

    load: gather in host memory and copy to the GPU, in series. dense_load: the same for the layers
    that load everything. gather: gather and post at a prefill node for a fetch. rpc_us: fixed cost
    of the remote lane, per layer. handover_ms: from first token to the first decoding iteration.
    offload: copying a layer's new KV out of the prefill GPU, in chunks behind the computation.
    """

    name: str
    load_gbytes_per_s: float
    dense_load_gbytes_per_s: float
    gather_gbytes_per_s: float
    offload_gbytes_per_s: float
    rpc_us: float
    handover_ms: float

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name.endswith("_per_s"):
                positive(f"host.{name}", getattr(self, name))
        not_negative("host.rpc_us", self.rpc_us)
        not_negative("host.handover_ms", self.handover_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The link into the decoding node and the links out of the prefill hosts.

    gbps: decimal gigabits a second at the decoding node; sender_gbps: at each prefill host, shared
    by its GPUs. efficiency: reached share of the nominal rate. pair_us: cost of a block's pair of
    WRITEs (data, mask) at the receiver. rtt_us: round trip of an empty message. variation: how the
    rate at each decoding node varies around gbps, which is then the nominal rate; null if it does
    not. Those of prefill hosts never do.
    """

    name: str
    gbps: float
    sender_gbps: float
    efficiency: float = 1.0
    pair_us: float = 0.0
    rtt_us: float = 0.0
    discipline: str = "fifo"
    variation: Variation | None = None

    def __post_init__(self) -> None:
        for name in ("gbps", "sender_gbps", "efficiency"):
            if positive(f"network.{name}", getattr(self, name)) > MOST_GBPS:
                raise SmartGenError(
                    f"network.{name}={getattr(self, name)!r} must be at most {MOST_GBPS:g}"
                )
        not_negative("network.pair_us", self.pair_us)
        not_negative("network.rtt_us", self.rtt_us)
        one_of("network.discipline", self.discipline, DISCIPLINES)
        if not isinstance(self.variation, Steps | Random | None):
            raise SmartGenError(
                f"network.variation={self.variation!r} must be a cost.variation.Steps or "
                "cost.variation.Random, or null"
            )

    @property
    def receiver_bytes_per_s(self) -> float:
        """Nominal rate of the decoding node's receive side."""
        return self.gbps * 1e9 / 8 * self.efficiency

    @property
    def sender_bytes_per_s(self) -> float:
        """Rate of one prefill host's send side."""
        return self.sender_gbps * 1e9 / 8 * self.efficiency

    @property
    def pair_bytes(self) -> float:
        """Wire bytes that one sender could have moved in the time of one pair of WRITEs."""
        return self.pair_us * 1e-6 * min(self.receiver_bytes_per_s, self.sender_bytes_per_s)

    @property
    def one_way_s(self) -> float:
        """Latency of an empty message in one direction."""
        return self.rtt_us * 1e-6 / 2
