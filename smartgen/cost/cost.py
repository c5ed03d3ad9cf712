"""How long each act takes: counts in, seconds out. Simulator, emulator and recursion share it.

Equations and symbols: docs/fitted_model.md. The projections of a layer are booked at the start
of its own attention (with the launch overhead), as the fitted model does; the real runner computes
the next layer's with this layer's feed-forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smartgen.cost.cards import Gpu, Host
from smartgen.model import Model


class LocalStep(NamedTuple):
    """An iteration in which nothing is remote, cut along its critical path, in seconds."""

    overhead_s: float
    attend_s: float
    select_s: float
    feed_forward_s: float
    local_wait_s: float


@dataclass(frozen=True)
class Cost:
    """Durations of one model on one kind of GPU and host. Sizes in bytes, results in seconds."""

    model: Model
    gpu: Gpu
    host: Host
    looks_ahead: bool
    dense_layers: int

    # -- prefill node

    def prefill_s(self, prompt_tokens: int, cached_tokens: int) -> float:
        """One request on one prefill GPU, cached_tokens of its prompt found in a prefix cache."""
        new = prompt_tokens - cached_tokens
        model = self.model
        width = model.num_attention_heads * model.head_dim
        matmul = 2 * model.linear_params * new
        attention = 4 * model.num_hidden_layers * width * new * (cached_tokens + new / 2)
        return (
            matmul / (self.gpu.matmul_tflops * 1e12)
            + attention / (self.gpu.attention_tflops * 1e12)
            + self.gpu.prefill_ms * 1e-3
        )

    def offload_s(self, new_bytes: float, layer_s: float) -> float:
        """What copying a layer's new KV to the host adds: it runs in chunks behind the compute."""
        return max(0.0, new_bytes / (self.host.offload_gbytes_per_s * 1e9) - layer_s)

    def gather_s(self, num_bytes: float) -> float:
        """Collecting the rows of a fetch in a prefill node's host memory, and posting them."""
        return num_bytes / (self.host.gather_gbytes_per_s * 1e9)

    @cached_property
    def rpc_s(self) -> float:
        """Fixed cost of the remote lane: index to the host, wake-ups, posting."""
        return self.host.rpc_us * 1e-6

    # -- decoding node

    @cached_property
    def handover_s(self) -> float:
        """From the first token (or the delivered plan) to the first iteration."""
        return self.host.handover_ms * 1e-3

    @cached_property
    def launch_s(self) -> float:
        """Launches, synchronisation and runtime of one layer."""
        return self.gpu.launch_overhead_us * 1e-6

    @cached_property
    def project_s(self) -> float:
        """Reading one layer's attention projections."""
        return self._weights_s(self.model.attention_params)

    @cached_property
    def feed_forward_s(self) -> float:
        """Reading one layer's feed-forward weights."""
        return self._weights_s(self.model.feed_forward_params)

    @cached_property
    def head_s(self) -> float:
        """Reading the language-model head, once an iteration."""
        return self._weights_s(self.model.head_params)

    @cached_property
    def _attend_bytes_per_s(self) -> float:
        return self.gpu.attend_efficiency * self.gpu.memory_gbytes_per_s * 1e9

    def attend_s(self, num_bytes: float) -> float:
        """Attention over so many bytes of KV in GPU memory."""
        return num_bytes / self._attend_bytes_per_s

    def select_s(self, cached_tokens: int) -> float:
        """Selecting in one layer, over all cached tokens of the batch."""
        return self.gpu.select_us * 1e-6 + self.gpu.select_ns_per_token * 1e-9 * cached_tokens

    def load_s(self, num_bytes: float, layer: int) -> float:
        """The local lane: gather in host memory and copy to the GPU."""
        host = self.host
        rate = host.dense_load_gbytes_per_s if layer < self.dense_layers else host.load_gbytes_per_s
        return num_bytes / (rate * 1e9)

    def local_step(self, layer_bytes: Sequence[float], cached_tokens: int) -> LocalStep:
        """An iteration with nothing remote; layer_bytes[l] is what layer l selects, in bytes."""
        select_s, feed_forward_s = self.select_s(cached_tokens), self.feed_forward_s
        select_excess_s = local_excess_s = 0.0
        ahead = [*layer_bytes[1:], layer_bytes[0]] if self.looks_ahead else layer_bytes
        for following, size in enumerate(ahead):
            layer = (following + 1) % len(layer_bytes) if self.looks_ahead else following
            local_s = self.load_s(size, layer)
            if self.looks_ahead:
                select_excess_s += max(0.0, select_s - self.attend_s(layer_bytes[following]))
                local_excess_s += max(0.0, local_s - feed_forward_s)
            else:
                select_excess_s += select_s
                local_excess_s += local_s
        num_layers = len(layer_bytes)
        return LocalStep(
            num_layers * self.launch_s,
            num_layers * self.project_s + self.attend_s(sum(layer_bytes)),
            select_excess_s,
            num_layers * feed_forward_s + self.head_s,
            local_excess_s,
        )

    def gpu_step(self, batch_bytes: float, request_bytes: float, codec: str) -> LocalStep:
        """An iteration with the whole cache in GPU memory: batch_bytes in all layers together.

        Under codec=hack every step unpacks, at a cost per byte of the batch and of its longest
        request (request_bytes); sizes are those of the uncompressed cache.
        """
        layers = self.model.num_hidden_layers
        weights_s = layers * self.project_s
        feed_forward_s = layers * self.feed_forward_s + self.head_s
        if codec == "none":
            attend_s = weights_s + self.attend_s(batch_bytes)
            return LocalStep(layers * self.launch_s, attend_s, 0.0, feed_forward_s, 0.0)
        hack = self.gpu.hack
        overhead_s = layers * (self.launch_s - hack.saved_us * 1e-6)
        unpack_s = (
            hack.unpack_batch_ns_per_byte * batch_bytes
            + hack.unpack_request_ns_per_byte * request_bytes
        ) * 1e-9
        return LocalStep(overhead_s, weights_s + unpack_s, 0.0, feed_forward_s, 0.0)

    def admit_s(self, batch_bytes: float, codec: str) -> float:
        """Joining a batch: RPC, batch assembly, first launch; under hack also a conversion."""
        extra_ns = self.gpu.hack.handover_ns_per_byte * batch_bytes if codec == "hack" else 0.0
        return self.handover_s + extra_ns * 1e-9

    def wire_ratio(self, codec: str) -> float:
        """Bytes on the wire for a byte of KV."""
        return self.gpu.hack.wire_ratio if codec == "hack" else 1.0

    def _weights_s(self, params: int) -> float:
        rate = self.gpu.weights_efficiency * self.gpu.memory_gbytes_per_s * 1e9
        return params * self.model.dtype_bytes / rate
