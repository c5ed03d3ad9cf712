"""Reads a model: the section ``model`` of a configuration, or a Hugging Face config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smartgen.errors import SmartGenError, one_of
from smartgen.model.families import FAMILIES, NEEDED, Family, Keys, windows
from smartgen.model.model import Model

_OURS = ("name", "config", "window_only")
"""Keys of the section that are none of Hugging Face's."""

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_NOT_MODELLED = {
    "attention_chunk_size": "chunked attention",
    "dual_chunk_attention_config": "dual chunk attention",
    "full_attention_interval": "linear attention between layers of full attention",
    "index_topk": "an indexer that selects for attention",
    "num_kv_shared_layers": "layers that share a cache",
    "mamba_d_state": "state-space layers",
}
"""Keys that change what a known family caches or computes, unless they are null, 0 or false."""


def read_model(section: Mapping[str, Any]) -> Model:
    """The model that a section describes.

    Besides ``name``, ``config`` and ``window_only`` it has Hugging Face's keys. ``config`` names a
    config.json (or the folder that holds it), whose keys then count instead of the section's.
    Raises SmartGenError for a key or value that is unknown, missing, wrong or not modelled.
    """
    section = resolve(section)
    _refuse_unmodelled(section)
    try:
        family = _family(section)
        keys = _known_keys(section, family)
        return _model(section, family, keys)
    except SmartGenError as error:
        raise _told_where(error, section.get("config")) from None


def resolve(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with what its ``config`` says in the place of the keys and the name it had."""
    path = section.get("config")
    if path is None:
        return dict(section)
    if path == "???":
        raise SmartGenError("model.config is missing; it must be given")
    if not isinstance(path, str) or not path:
        raise SmartGenError(f"model.config={path!r} must be the path of a config.json, or null")
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    keys = _load(path, file)
    try:
        _refuse_unmodelled(keys)
        family = _family(keys)
    except SmartGenError as error:
        raise _told_where(error, path) from None
    known = {key: keys[key] for key in ("model_type", *family.keys) if key in keys}
    kept = {key: section[key] for key in ("window_only",) if key in section}
    return {"name": _name_of(file), "config": path, **kept, **known}


def _load(path: str, file: Path) -> dict[str, Any]:
    """The keys of the decoder in a config.json; of a model for more than text, its text_config."""
    right = "it must be a Hugging Face config.json, or a folder that holds one"
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SmartGenError(
            f"model.config={path!r} cannot be read ({error.strerror}); {right}"
        ) from None
    except ValueError as error:
        raise SmartGenError(f"model.config={path!r} cannot be read ({error}); {right}") from None
    if not isinstance(keys, dict):
        raise SmartGenError(f"model.config={path!r} holds no keys; {right}")
    inner = keys.get("text_config")
    if not isinstance(inner, dict):
        return keys
    shared = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")
    return {**{key: keys[key] for key in shared if key in keys}, **inner}


def _name_of(file: Path) -> str:
    """What a model is called by where its file lies, also in Hugging Face's cache."""
    file = file.absolute()
    for part in file.parts:
        if part.startswith("models--"):
            return part.rpartition("--")[2]
    return file.stem if file.name != "config.json" else file.parent.name or "config"


def _family(keys: Mapping[str, Any]) -> Family:
    if keys.get("model_type", "???") == "???":
        raise SmartGenError("model.model_type is missing; it must be given")
    one_of("model.model_type", keys["model_type"], FAMILIES)
    return FAMILIES[keys["model_type"]]


def _refuse_unmodelled(keys: Mapping[str, Any]) -> None:
    for key, what in _NOT_MODELLED.items():
        if keys.get(key):
            raise SmartGenError(f"model.{key}={keys[key]!r} is not modelled: {what}")


def _known_keys(section: Mapping[str, Any], family: Family) -> Keys:
    """The family's keys with its defaults; refuses unknown keys, and demands needed ones."""
    known = ("model_type", *family.keys)
    for key, value in section.items():
        if key not in (*_OURS, *known):
            raise SmartGenError(
                f"model.{key}={value!r} is no key; model has {', '.join((*_OURS, *known))}"
            )
    values = {**family.keys, **{key: section[key] for key in known if key in section}}
    for key, value in values.items():
        if value is NEEDED or value == "???":
            raise SmartGenError(f"model.{key} is missing; it must be given")
    return Keys(values)


def _model(section: Mapping[str, Any], family: Family, keys: Keys) -> Model:
    if "name" not in section:
        raise SmartGenError("model.name is missing; it must be given")
    dtype_bytes = _dtype_bytes(keys)
    longest = keys["max_position_embeddings"]
    return Model(
        name=section["name"],
        hidden_size=keys.count("hidden_size"),
        vocab_size=keys.count("vocab_size"),
        attention=family.attention(keys),
        feed_forwards=family.feed_forwards(keys),
        windows=windows(family, keys),
        dtype_bytes=dtype_bytes,
        weight_bytes=_weight_bytes(keys, dtype_bytes),
        tied_embeddings=keys.truth("tie_word_embeddings"),
        max_position_embeddings=None if longest is None else keys.count("max_position_embeddings"),
        window_only=section.get("window_only", False),
    )


def _dtype_bytes(keys: Keys) -> int:
    key = "torch_dtype" if keys["dtype"] is None else "dtype"
    dtype = "bfloat16" if keys[key] is None else str(keys[key]).removeprefix("torch.")
    one_of(f"model.{key}", dtype, _DTYPE_BYTES)
    return _DTYPE_BYTES[dtype]


def _weight_bytes(keys: Keys, dtype_bytes: int) -> int:
    quantization = keys["quantization_config"]
    if quantization is None:
        return dtype_bytes
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != "fp8":
        raise SmartGenError(
            f"model.quantization_config.quant_method={method!r} is not modelled; it must be fp8, "
            "or take the config.json of the model that was quantised"
        )
    return 1


def _told_where(error: SmartGenError, path: str | None) -> SmartGenError:
    return error if path is None else SmartGenError(f"in model.config={path!r}, {error}")
