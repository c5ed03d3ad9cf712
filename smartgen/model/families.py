"""Families of decoders: which keys of a Hugging Face config.json they have, and what these mean.

Keys that a file leaves out take the defaults of the family's configuration class in transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from smartgen.errors import SmartGenError, count, truth
from smartgen.model.model import Attention, FeedForward

NEEDED = object()
"""In the place of a default: there is none."""


class Keys:
    """A configuration's values by key; each is refused by name where it is wrong."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values.get(key)

    def count(self, key: str, at_least: int = 1) -> int:
        """An integer."""
        return count(f"model.{key}", self[key], at_least)

    def count_or(self, key: str, default: int, at_least: int = 1) -> int:
        """An integer, or default where it is null."""
        return default if self[key] is None else self.count(key, at_least)

    def truth(self, key: str) -> bool:
        """True or false."""
        truth(f"model.{key}", self[key])
        return bool(self[key])

    def must_divide(self, divisor: str, key: str, where: str = "") -> None:
        """Refuse a count that is no multiple of another."""
        if self.count(key) % self.count(divisor):
            raise SmartGenError(
                f"model.{key}={self[key]} must be a multiple of model.{divisor}={self[divisor]}"
                + where
            )


@dataclass(frozen=True)
class Family:
    """Decoders that are read alike.

    keys: those of this family and their defaults. slides: whether a layer (from 0) has a sliding
    window where layer_types does not say and the window is on.
    """

    keys: Mapping[str, Any]
    attention: Callable[[Keys], Attention]
    feed_forwards: Callable[[Keys], tuple[FeedForward, ...]]
    slides: Callable[[Keys, int], bool] = lambda keys, layer: True


def windows(family: Family, keys: Keys) -> tuple[int | None, ...] | None:
    """The window of every layer, null for none; null altogether where no layer has one."""
    num_layers = keys.count("num_hidden_layers")
    kinds = _layer_types(keys, num_layers)
    is_off = "use_sliding_window" in family.keys and not keys.truth("use_sliding_window")
    if is_off or keys["sliding_window"] is None:
        if kinds and "sliding_attention" in kinds and not is_off:
            raise SmartGenError(
                "model.layer_types names sliding_attention; model.sliding_window must say how wide"
            )
        return None
    window = keys.count("sliding_window")
    if kinds is None:
        slides = [family.slides(keys, layer) for layer in range(num_layers)]
    else:
        slides = [kind == "sliding_attention" for kind in kinds]
    return tuple(window if slide else None for slide in slides) if any(slides) else None


def _layer_types(keys: Keys, num_layers: int) -> list[str] | None:
    kinds = keys["layer_types"]
    if kinds is None:
        return None
    if not isinstance(kinds, list):
        raise SmartGenError(f"model.layer_types={kinds!r} must be a list, one kind a layer")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise SmartGenError(
                f"model.layer_types names {kind!r}; only full_attention and sliding_attention are "
                "modelled"
            )
    if len(kinds) != num_layers:
        raise SmartGenError(
            f"model.layer_types lists {len(kinds)} layers; it must list "
            f"model.num_hidden_layers={num_layers}"
        )
    return kinds


# -- attention


def _grouped(keys: Keys) -> Attention:
    hidden, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    kv_heads = keys.count_or("num_key_value_heads", heads)
    if keys["num_key_value_heads"] is not None:
        keys.must_divide("num_key_value_heads", "num_attention_heads")
    if keys["head_dim"] is None:
        keys.must_divide("num_attention_heads", "hidden_size", ", or model.head_dim be given")
    dim = keys.count_or("head_dim", hidden // heads)
    return Attention(
        num_heads=heads,
        qk_dim=dim,
        v_dim=dim,
        num_kv_heads=kv_heads,
        row_values=2 * dim,
        params=hidden * 2 * (heads + kv_heads) * dim,
    )


def _latent(keys: Keys) -> Attention:
    """Multi-head latent attention: the cache holds a compressed row and a rotary key."""
    hidden, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    latent, rope = keys.count("kv_lora_rank"), keys.count("qk_rope_head_dim")
    nope, v_dim = keys.count("qk_nope_head_dim"), keys.count("v_head_dim")
    query = heads * (nope + rope)
    if keys["q_lora_rank"] is None:
        query_params = hidden * query
    else:
        query_params = keys.count("q_lora_rank") * (hidden + query)
    return Attention(
        num_heads=heads,
        qk_dim=nope + rope,
        v_dim=v_dim,
        num_kv_heads=1,
        row_values=latent + rope,
        params=query_params
        + hidden * (latent + rope)
        + latent * heads * (nope + v_dim)
        + heads * v_dim * hidden,
    )


# -- feed-forward


def _gated(keys: Keys, width: int) -> int:
    """Weights of gate, up and down."""
    return 3 * keys.count("hidden_size") * width


def _dense(keys: Keys) -> tuple[FeedForward, ...]:
    layer = FeedForward(params=_gated(keys, keys.count("intermediate_size")))
    return (layer,) * keys.count("num_hidden_layers")


def _experts(keys: Keys, number: str, width: int, shared: int = 0) -> FeedForward:
    num_experts, chosen = keys.count(number), keys.count("num_experts_per_tok")
    if chosen > num_experts:
        raise SmartGenError(
            f"model.num_experts_per_tok={chosen} must be at most model.{number}={num_experts}"
        )
    router = keys.count("hidden_size") * num_experts
    return FeedForward(
        params=router + _gated(keys, shared),
        expert_params=_gated(keys, width),
        num_experts=num_experts,
        experts_per_token=chosen,
    )


def _mixtral(keys: Keys) -> tuple[FeedForward, ...]:
    layer = _experts(keys, "num_local_experts", keys.count("intermediate_size"))
    return (layer,) * keys.count("num_hidden_layers")


def _qwen_moe(keys: Keys) -> tuple[FeedForward, ...]:
    dense = FeedForward(params=_gated(keys, keys.count("intermediate_size")))
    sparse = _experts(keys, "num_experts", keys.count("moe_intermediate_size"))
    step, only_dense = keys.count("decoder_sparse_step"), keys["mlp_only_layers"] or []
    if not isinstance(only_dense, list):
        raise SmartGenError(f"model.mlp_only_layers={only_dense!r} must be a list of layers")
    return tuple(
        dense if layer in only_dense or (layer + 1) % step else sparse
        for layer in range(keys.count("num_hidden_layers"))
    )


def _deepseek(keys: Keys) -> tuple[FeedForward, ...]:
    if keys["n_routed_experts"] is None:
        return _dense(keys)
    width = keys.count("moe_intermediate_size")
    dense = FeedForward(params=_gated(keys, keys.count("intermediate_size")))
    shared = width * keys.count_or("n_shared_experts", 0, at_least=0)
    sparse = _experts(keys, "n_routed_experts", width, shared)
    first, step = keys.count("first_k_dense_replace", at_least=0), keys.count("moe_layer_freq")
    return tuple(
        dense if layer < first or layer % step else sparse
        for layer in range(keys.count("num_hidden_layers"))
    )


# -- families

_EVERY = {
    "hidden_size": NEEDED,
    "num_hidden_layers": NEEDED,
    "num_attention_heads": NEEDED,
    "vocab_size": NEEDED,
    "intermediate_size": NEEDED,
    "max_position_embeddings": None,
    "tie_word_embeddings": False,
    "torch_dtype": None,
    "dtype": None,
    "quantization_config": None,
    "layer_types": None,
}
_GROUPED = {**_EVERY, "num_key_value_heads": None, "head_dim": None}
_QWEN = {**_GROUPED, "use_sliding_window": False, "sliding_window": 4096}
_GEMMA = {
    **_GROUPED,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
}
_MIXTURE = {"num_experts_per_tok": NEEDED, "moe_intermediate_size": NEEDED}
_DEEPSEEK = {
    **_EVERY,
    **_MIXTURE,
    "kv_lora_rank": NEEDED,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": NEEDED,
    "qk_nope_head_dim": NEEDED,
    "v_head_dim": NEEDED,
    "n_routed_experts": NEEDED,
    "n_shared_experts": NEEDED,
    "moe_layer_freq": 1,
}


def _slides_late(keys: Keys, layer: int) -> bool:
    return layer >= keys.count("max_window_layers", at_least=0)


def _slides_but_every_nth(keys: Keys, layer: int) -> bool:
    return (layer + 1) % keys.count("sliding_window_pattern") != 0


FAMILIES: Mapping[str, Family] = {
    "llama": Family(_GROUPED, _grouped, _dense),
    "mistral": Family({**_GROUPED, "sliding_window": 4096}, _grouped, _dense),
    "phi3": Family({**_GROUPED, "sliding_window": None}, _grouped, _dense),
    "qwen2": Family({**_QWEN, "max_window_layers": 28}, _grouped, _dense, _slides_late),
    "qwen3": Family(
        {**_QWEN, "max_window_layers": 28, "head_dim": 128}, _grouped, _dense, _slides_late
    ),
    "gemma2": Family(
        {**_GEMMA, "vocab_size": 256_000, "sliding_window_pattern": 2},
        _grouped,
        _dense,
        _slides_but_every_nth,
    ),
    "gemma3_text": Family(
        {
            **_GEMMA,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "sliding_window_pattern": 6,
        },
        _grouped,
        _dense,
        _slides_but_every_nth,
    ),
    "mixtral": Family(
        {
            **_GROUPED,
            "sliding_window": None,
            "num_local_experts": NEEDED,
            "num_experts_per_tok": NEEDED,
        },
        _grouped,
        _mixtral,
    ),
    "qwen3_moe": Family(
        {
            **_QWEN,
            **_MIXTURE,
            "num_experts": NEEDED,
            "mlp_only_layers": None,
            "decoder_sparse_step": 1,
        },
        _grouped,
        _qwen_moe,
    ),
    "deepseek_v2": Family({**_DEEPSEEK, "first_k_dense_replace": 0}, _latent, _deepseek),
    "deepseek_v3": Family({**_DEEPSEEK, "first_k_dense_replace": 3}, _latent, _deepseek),
}
"""By model_type."""
