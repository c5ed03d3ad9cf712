"""How long each act takes: counts in, seconds out. Simulator, emulator and recursion share it.

Equations and symbols: docs/fitted_model.md, and docs/models.md for what depends on a model. The
projections of a layer are booked at the start of its own attention (with the launch overhead), as
the fitted model does; the real runner computes the next layer's with this layer's feed-forward.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from smartgen.cost.cards import Gpu, Host
from smartgen.model import Model

Amount = TypeVar("Amount", float, NDArray[np.float64])
"""One number, or one for each layer."""


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
        matmul = 2 * self.model.active_linear_params * new
        pair_flops = self.model.attention.pair_flops
        attention = 0.0
        for window, num_layers in self._layers_by_window.items():
            if window is None:
                attention += pair_flops * num_layers * new * (cached_tokens + new / 2)
            else:
                pairs = _pairs_in_window(cached_tokens, new, window)
                attention += pair_flops * num_layers * pairs
        # few tokens are bound by reading the weights that they use
        read_s = self._weights_s(self._used_params(max(1, new)))
        return (
            max(matmul / (self.gpu.matmul_tflops * 1e12), read_s)
            + attention / (self.gpu.attention_tflops * 1e12)
            + self.gpu.prefill_ms * 1e-3
        )

    def _used_params(self, num_tokens: int) -> float:
        """Weights of all layers that so many tokens use."""
        layers = self.model.num_hidden_layers * self.model.attention.params
        of = Counter(self.model.feed_forwards)
        return layers + sum(n * layer.read_params(num_tokens) for layer, n in of.items())

    def offload_s(self, new_bytes: NDArray[np.int64], layer_s: float) -> NDArray[np.float64]:
        """What copying a layer's new KV to the host adds: it runs in chunks behind the compute."""
        return np.maximum(0.0, new_bytes / (self.host.offload_gbytes_per_s * 1e9) - layer_s)

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
        return self._weights_s(self.model.attention.params)

    def feed_forward_s(self, batch_size: int) -> NDArray[np.float64]:
        """Reading every layer's feed-forward weights, [L]; of experts, those the batch chooses."""
        return self._feed_forward(batch_size)[0]

    def _feed_forward(self, batch_size: int) -> tuple[NDArray[np.float64], float]:
        """The same, and the sum."""
        known = self._known_feed_forward.get(batch_size)
        if known is None:
            layers = self.model.feed_forwards
            of = {layer: self._weights_s(layer.read_params(batch_size)) for layer in set(layers)}
            seconds = np.array([of[layer] for layer in layers])
            known = self._known_feed_forward[batch_size] = seconds, math.fsum(seconds)
        return known

    @cached_property
    def _known_feed_forward(self) -> dict[int, tuple[NDArray[np.float64], float]]:
        """By batch size."""
        return {}

    @cached_property
    def head_s(self) -> float:
        """Reading the language-model head, once an iteration."""
        return self._read_s(self.model.head_params * self.model.dtype_bytes)

    @cached_property
    def _attend_bytes_per_s(self) -> float:
        return self.gpu.attend_efficiency * self.gpu.memory_gbytes_per_s * 1e9

    def attend_s(self, num_bytes: Amount) -> Amount:
        """Attention over so many bytes of KV in GPU memory."""
        return num_bytes / self._attend_bytes_per_s

    def select_s(self, reached_tokens: Amount) -> Amount:
        """Selecting in one layer, over all tokens of the batch that its attention reaches."""
        return reached_tokens * (self.gpu.select_ns_per_token * 1e-9) + self.gpu.select_us * 1e-6

    def load_s(self, num_bytes: float, layer: int) -> float:
        """The local lane: gather in host memory and copy to the GPU."""
        host = self.host
        rate = host.dense_load_gbytes_per_s if layer < self.dense_layers else host.load_gbytes_per_s
        return num_bytes / (rate * 1e9)

    def local_step(
        self, layer_bytes: NDArray[np.float64], reached_tokens: NDArray[np.float64], batch_size: int
    ) -> LocalStep:
        """An iteration with nothing remote; layer_bytes[l] is what layer l selects, in bytes.

        reached_tokens[l]: tokens of the batch that its attention reaches.
        """
        feed_forward_s, all_feed_forward_s = self._feed_forward(batch_size)
        load_s, attend_s = layer_bytes / self._load_bytes_per_s, self.attend_s(layer_bytes)
        select_s = self.select_s(reached_tokens)
        if self.looks_ahead:
            ahead = self._ahead
            select_s = np.maximum(0.0, select_s[ahead] - attend_s)
            load_s = np.maximum(0.0, load_s[ahead] - feed_forward_s)
        num_layers = len(layer_bytes)
        return LocalStep(
            num_layers * self.launch_s,
            num_layers * self.project_s + float(attend_s.sum()),
            float(select_s.sum()),
            all_feed_forward_s + self.head_s,
            float(load_s.sum()),
        )

    @cached_property
    def _ahead(self) -> NDArray[np.int64]:
        """The layer that follows each, the first after the last."""
        num_layers = self.model.num_hidden_layers
        return (np.arange(num_layers) + 1) % num_layers

    @cached_property
    def _load_bytes_per_s(self) -> NDArray[np.float64]:
        dense = np.arange(self.model.num_hidden_layers) < self.dense_layers
        host = self.host
        return np.where(dense, host.dense_load_gbytes_per_s, host.load_gbytes_per_s) * 1e9

    def gpu_step(
        self, batch_bytes: float, request_bytes: float, batch_size: int, codec: str
    ) -> LocalStep:
        """An iteration with the whole cache in GPU memory.

        batch_bytes: what the batch attends in all layers together; request_bytes: what its longest
        request does; both of the uncompressed cache. Under codec=hack every step unpacks, at a cost
        per byte of each.
        """
        layers = self.model.num_hidden_layers
        weights_s = layers * self.project_s
        feed_forward_s = self._feed_forward(batch_size)[1] + self.head_s
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

    @cached_property
    def _layers_by_window(self) -> Counter[int | None]:
        windows = self.model.windows
        return Counter([None] * self.model.num_hidden_layers if windows is None else windows)

    def _weights_s(self, params: float) -> float:
        return self._read_s(params * self.model.weight_bytes)

    def _read_s(self, num_bytes: float) -> float:
        rate = self.gpu.weights_efficiency * self.gpu.memory_gbytes_per_s * 1e9
        return num_bytes / rate


def _pairs_in_window(cached: int, new: int, window: int) -> float:
    """Pairs of a new token and one it attends: the integral of min(position, window)."""
    rising = min(new, max(0, window - cached))  # tokens that still attend all before them
    return rising * (cached + rising / 2) + (new - rising) * window
