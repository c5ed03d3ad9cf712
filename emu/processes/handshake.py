"""What two processes must agree on before a byte moves, told by name where they do not."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from smartgen.emu.processes.words import PROTOCOL
from smartgen.emu.settings import Settings
from smartgen.experiment import Experiment

LAYOUT = "layer, token, KV head, K|V, head_dim"
"""How entries lie in memory."""

_SETTINGS = (
    "transport",
    "dilation",
    "byte_scale",
    "shaping",
    "max_recv_sge",
    "remote_lane",
    "checksum",
)


def facts_of(experiment: Experiment, settings: Settings) -> dict[str, str]:
    """What must be the same at both ends, by name, in the order in which it is compared."""
    geometry = experiment.geometry
    facts = {
        "layout": LAYOUT,
        "model.num_hidden_layers": geometry.num_layers,
        "model.num_key_value_heads": geometry.num_kv_heads,
        "values of a row": geometry.row_values,
        "bytes of a value": geometry.dtype_bytes,
        "blocks_per_layer": geometry.blocks_per_layer,
        "model.windows": geometry.windows,
        **{f"emu.{name}": getattr(settings, name) for name in _SETTINGS},
        **dict(_flat("", asdict(experiment))),
        "what the file of profile holds": _hash_of(experiment.profile),
        "the requests": hashlib.sha256(repr(experiment.requests).encode()).hexdigest(),
    }
    return {name: _text(value) for name, value in facts.items()}


def _text(value: object) -> str:
    """Numbers that are equal read alike: 5 and 5.0."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value)  # type: ignore[call-overload]


def _flat(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Keys of the configuration with their values."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), inner)
    else:
        yield path, value


def _hash_of(path: str | None) -> str:
    return "" if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()


def mismatch(protocol: int, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """What does not agree, the first of it; null if everything does."""
    if protocol != PROTOCOL:
        return (
            f"protocol {protocol} of the decoding process is not {PROTOCOL}, the prefill process's"
        )
    for name, value in ours.items():
        there = theirs.get(name, "unknown")
        if there != value:
            if len(value) > 60:
                return f"{name} is not the same at the decoding and at the prefill process"
            return (
                f"{name} is {there} at the decoding process and {value} at the prefill process; "
                "it must be the same"
            )
    return None


def machine() -> str:
    """Names this machine since it was started: processes that name the same share a clock."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text(encoding="ascii").strip() if boot.exists() else ""
