"""A dense decoder with grouped-query attention, under the keys of a Hugging Face config.json."""

from dataclasses import dataclass

from smartgen.errors import SmartGenError, count
from smartgen.kv import Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The values of a decoder's configuration that decide bytes and FLOPs.

    Field names are those of config.json. Weights and cache share one dtype of ``dtype_bytes``.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for field in self.__dataclass_fields__:
            if field != "name":
                count(f"model.{field}", getattr(self, field))
        if self.num_attention_heads % self.num_key_value_heads:
            raise SmartGenError(
                f"model.num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"model.num_key_value_heads={self.num_key_value_heads}"
            )

    def geometry(self, blocks_per_layer: int) -> Geometry:
        """The KV cache of this model, cut into blocks_per_layer blocks a layer."""
        return Geometry(
            num_layers=self.num_hidden_layers,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            dtype_bytes=self.dtype_bytes,
            blocks_per_layer=blocks_per_layer,
        )

    @property
    def attention_params(self) -> int:
        """Weights of one layer's Q, K, V and output projections."""
        query = self.num_attention_heads * self.head_dim
        key_value = 2 * self.num_key_value_heads * self.head_dim
        return self.hidden_size * (2 * query + key_value)

    @property
    def feed_forward_params(self) -> int:
        """Weights of one layer's gated feed-forward (gate, up, down)."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def head_params(self) -> int:
        """Weights of the language-model head, read once an iteration."""
        return self.hidden_size * self.vocab_size

    @property
    def linear_params(self) -> int:
        """Weights of all layers, without embeddings and head: what prefill multiplies."""
        return self.num_hidden_layers * (self.attention_params + self.feed_forward_params)
