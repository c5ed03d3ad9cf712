"""What tells runs apart: the keys in which they differ, and short labels made from them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smartgen.metrics.store import Run

_BESIDE_THE_POINT = ("figures", "hydra", "plot", "record", "rerun", "results_dir", "targets")
"""Sections that change what is kept or drawn, not what happens."""


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Keys besides the policy's name in which runs differ, each with every run's value.

    A key that follows from its section's name is left out: runs on two networks differ in
    ``network``, runs on one network at two rates in ``network.gbps``. Runs of two backends differ
    in ``backend``, and emulated runs in the keys of ``emu``.
    """
    flat = [_flat(run) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    found = {}
    for key in keys:
        name = _name_of(key)
        if key == "policy.name" or not _varies(flat, key, None if key == name else name):
            continue
        found[key.removesuffix(".name")] = [values.get(key) for values in flat]
    if found.get("seed") == found.get("workload.seed"):  # the one follows the other
        found.pop("workload.seed", None)
    return found


def telling(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each run the keys that tell it from others, beside its scheme, with its values.

    What varies only in other schemes, or in other networks and the like, does not tell.
    """
    flat = [_flat(run) for run in runs]
    kept: list[dict[str, Any]] = [{} for _ in runs]
    for key, values in differences(runs).items():
        name = _name_of(key) if "." in key else ""
        alike: dict[str, set[str]] = {}
        for config, value in zip(flat, values, strict=True):
            alike.setdefault(repr(config.get(name)), set()).add(repr(value))
        for told, config, value in zip(kept, flat, values, strict=True):
            if len(alike[repr(config.get(name))]) > 1:
                told[key] = value
    return kept


def _equation(key: str, value: Any, run: Run) -> str:
    return f"{key.rsplit('.')[-1]}={value}"


def labels(runs: Sequence[Run], say: Callable[[str, Any, Run], str] = _equation) -> list[str]:
    """A label for each run: its scheme, then what else tells it from the others, as say puts it."""
    texts = [
        ", ".join([run.label, *(say(key, value, run) for key, value in keys.items())])
        for run, keys in zip(runs, telling(runs), strict=True)
    ]
    counts = Counter(texts)
    return [
        text if counts[text] == 1 else f"{text} ({run.folder.name})"
        for text, run in zip(texts, runs, strict=True)
    ]


def _varies(flat: Sequence[Mapping[str, Any]], key: str, name: str | None) -> bool:
    """Whether key has two values among runs that share the section's name."""
    seen: dict[str, str] = {}
    for values in flat:
        section = repr(values.get(name)) if name else ""
        if seen.setdefault(section, repr(values.get(key))) != repr(values.get(key)):
            return True
    return False


def what_happens(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the keys that change only what is kept or drawn."""
    return {key: config[key] for key in config if key not in _BESIDE_THE_POINT}


def _name_of(key: str) -> str:
    """The key of the section's name; emu's keys are the emulator's, which backend names."""
    section = key.split(".")[0]
    return "backend.name" if section == "emu" else f"{section}.name"


def _flat(run: Run) -> dict[str, Any]:
    leaves = _leaves(what_happens(run.config)) | {"backend.name": run.metrics["backend"]}
    # the emulator's settings are emu's
    return {key: leaves[key] for key in leaves if not key.startswith("backend.settings.")}


def _leaves(config: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            leaves |= _leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            leaves[f"{prefix}{key}"] = value
    return leaves
