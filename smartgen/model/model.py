"""A decoder as values: what decides the bytes of its cache and weights, and its FLOPs."""

from dataclasses import dataclass
from functools import cached_property

from smartgen.errors import SmartGenError, truth
from smartgen.kv import Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A layer's attention, the same in all layers but for the window.

    num_heads: query heads, each comparing qk_dim values and adding up v_dim. num_kv_heads rows of
    row_values values make an entry of the cache. params: weights of all projections.
    """

    num_heads: int
    qk_dim: int
    v_dim: int
    num_kv_heads: int
    row_values: int
    params: int

    @property
    def pair_flops(self) -> int:
        """FLOPs of one query token on one key token in one layer: scores, and their sum over V."""
        return 2 * self.num_heads * (self.qk_dim + self.v_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """A layer's feed-forward: weights that every token uses, and experts of which it uses some.

    params: a dense layer's weights, or of a mixture its router and shared experts.
    """

    params: int
    expert_params: int = 0
    num_experts: int = 0
    experts_per_token: int = 0

    @property
    def total_params(self) -> int:
        """All weights."""
        return self.params + self.num_experts * self.expert_params

    @property
    def active_params(self) -> int:
        """Weights that one token uses."""
        return self.params + self.experts_per_token * self.expert_params

    def read_params(self, batch_size: int) -> float:
        """Weights that a decoding step of batch_size tokens reads, on average.

        Each token is assumed to choose its experts uniformly and independently of the others, so
        that E (1 - (1 - k/E)^b) of E experts are read. Real routers favour some: they read fewer.
        """
        if not self.num_experts:
            return self.params
        unread = (1 - self.experts_per_token / self.num_experts) ** batch_size
        return self.params + self.num_experts * (1 - unread) * self.expert_params


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder. feed_forwards and windows have one value a layer.

    windows: how many last tokens a layer attends, null for all; null altogether where every layer
    attends all. dtype_bytes: of a value in the cache, in embeddings and head; weight_bytes: of a
    weight in the layers. max_position_embeddings: longest context, null where nothing says.
    window_only: a layer caches, and is sent, no more than its window.
    """

    name: str
    hidden_size: int
    vocab_size: int
    attention: Attention
    feed_forwards: tuple[FeedForward, ...]
    windows: tuple[int | None, ...] | None = None
    dtype_bytes: int = 2
    weight_bytes: int = 2
    tied_embeddings: bool = False
    max_position_embeddings: int | None = None
    window_only: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SmartGenError(f"model.name={self.name!r} must be a name")
        truth("model.window_only", self.window_only)

    def geometry(self, blocks_per_layer: int) -> Geometry:
        """The KV cache of this model, cut into blocks_per_layer blocks a layer."""
        return Geometry(
            num_layers=self.num_hidden_layers,
            num_kv_heads=self.attention.num_kv_heads,
            row_values=self.attention.row_values,
            dtype_bytes=self.dtype_bytes,
            blocks_per_layer=blocks_per_layer,
            windows=self.windows,
            window_only=self.window_only,
        )

    @property
    def num_hidden_layers(self) -> int:
        """L."""
        return len(self.feed_forwards)

    @property
    def kv_bytes_per_layer(self) -> int:
        """Bytes of one token's entry in one layer."""
        return self.attention.num_kv_heads * self.attention.row_values * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's entries in all layers, inside every window."""
        return self.num_hidden_layers * self.kv_bytes_per_layer

    @property
    def head_params(self) -> int:
        """Weights of the language-model head, read once an iteration."""
        return self.hidden_size * self.vocab_size

    @cached_property
    def linear_params(self) -> int:
        """Weights of all layers, without embeddings and head. Norms and biases are not counted."""
        attention = self.num_hidden_layers * self.attention.params
        return attention + sum(layer.total_params for layer in self.feed_forwards)

    @cached_property
    def active_linear_params(self) -> int:
        """Of these, what one token is multiplied with."""
        attention = self.num_hidden_layers * self.attention.params
        return attention + sum(layer.active_params for layer in self.feed_forwards)

    @property
    def params(self) -> int:
        """All weights, embeddings and head included."""
        return self.linear_params + self._embedding_params

    @property
    def active_params(self) -> int:
        """Weights that one token uses, as publishers count: embeddings and head included."""
        return self.active_linear_params + self._embedding_params

    @property
    def _embedding_params(self) -> int:
        return self.head_params if self.tied_embeddings else 2 * self.head_params
