"""From a composed configuration to values: the YAML names each class, the class checks its values.

What no class can check is checked here: keys that are unknown or missing, parts of another kind.
A model names no class: its keys are Hugging Face's, and smartgen.model reads them.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Protocol, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from smartgen.errors import SmartGenError, one_of
from smartgen.experiment import Experiment, Outcome, Watch
from smartgen.model import Model, read_model, resolve

BESIDES = ("backend", "emu", "figures", "results_dir")
"""Keys of a configuration that are no part of an experiment."""


class Backend(Protocol):
    """A world to run experiments in."""

    @property
    def name(self) -> str:
        """As it is called on the command line."""

    def run(self, experiment: Experiment, watch: Watch | None = None) -> Outcome:
        """Run to the end, watched or not; returns what every node recorded."""


def plain_of(config: DictConfig) -> dict[str, Any]:
    """Resolved keys and values of a configuration, without Hydra's own; a model's from its file."""
    copy = config.copy()
    with open_dict(copy):
        copy.pop("hydra", None)
    container: Any = OmegaConf.to_container(copy, resolve=True)
    plain = {str(key): value for key, value in container.items()}
    if isinstance(plain.get("model"), Mapping):
        plain["model"] = resolve(plain["model"])
    return plain


def experiment_of(config: DictConfig) -> Experiment:
    """The experiment a configuration describes; raises SmartGenError for a value that is wrong."""
    _refuse_keys_beside_a_file(config)
    plain = plain_of(config)
    parts = {key: value for key, value in plain.items() if key not in BESIDES}
    _check_keys("", parts, Experiment)
    profile = parts.get("profile")
    if not isinstance(profile, str | None):
        raise SmartGenError(f"profile={profile!r} must be the path of a file, or null")
    hints = get_type_hints(Experiment)
    return Experiment(**{key: _value(key, value, hints[key]) for key, value in parts.items()})


def _value(key: str, value: Any, kind: Any) -> Any:
    if kind in (int, str, str | None):
        return value
    return read_model(_keys_of(key, value)) if kind is Model else _part(key, value, kind)


def _refuse_keys_beside_a_file(config: DictConfig) -> None:
    """Refuse keys of a model that were typed beside model.config: its file replaces them all.

    Only where Hydra's own keys are there to say what was typed, which is before anything runs.
    """
    if OmegaConf.select(config, "model.config", default=None) is None:
        return
    for typed in OmegaConf.select(config, "hydra.overrides.task", default=None) or ():
        key = typed.partition("=")[0].lstrip("+~")
        if key.startswith("model.") and key not in ("model.config", "model.window_only"):
            raise SmartGenError(
                f"{typed} has no effect beside model.config={config.model.config!r}, whose file "
                "holds all keys of the model; leave one of them out"
            )


def backend_of(config: DictConfig) -> Backend:
    """The backend a configuration names; importing it is left to this moment."""
    plain = _keys_of("backend", plain_of(config).get("backend"))
    backend: Backend = _part("backend", plain, object)
    if not hasattr(backend, "run"):
        raise SmartGenError(f"backend._target_={plain['_target_']!r} must name a backend's class")
    return backend


def figures_of(config: DictConfig) -> list[str]:
    """The kinds of chart to draw; raises SmartGenError for one that does not exist."""
    from smartgen.plot import KINDS

    figures = config.get("figures")
    if not OmegaConf.is_list(figures):
        raise SmartGenError(
            f"figures={figures!r} must be a list of {', '.join(KINDS)}, like [{next(iter(KINDS))}]"
        )
    for kind in figures:
        one_of("figures", kind, KINDS)
    return list(figures)


def _part(path: str, config: Any, kind: Any) -> Any:
    """Make one part, and see that it and what it holds are of the kind that is expected."""
    keys = _keys_of(path, config)
    if "_target_" not in keys:
        raise SmartGenError(f"{path}={config!r} must have a _target_, the name of its class")
    _check_target(path, keys)
    try:
        built = instantiate(keys, _convert_="object")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, SmartGenError):
            raise cause from None
        raise SmartGenError(f"{path} cannot be made: {cause or error}") from error
    _check_kind(path, built, kind)
    return built


def _check_target(path: str, keys: Mapping[str, Any]) -> None:
    """Check the keys of a part, and of the parts that it holds, against their classes."""
    try:
        target = get_class(keys["_target_"])
    except (ImportError, ValueError, TypeError) as error:
        raise SmartGenError(
            f"{path}._target_={keys['_target_']!r} must name a class: {error}"
        ) from error
    _check_keys(path, {key: keys[key] for key in keys if key != "_target_"}, target)
    for key, value in keys.items():
        if isinstance(value, Mapping) and "_target_" in value:
            _check_target(f"{path}.{key}", value)
    name = keys.get("name", path)
    if not isinstance(name, str) or not name:
        raise SmartGenError(f"{path}.name={name!r} must be a name")


def _check_keys(path: str, keys: Mapping[str, Any], target: type) -> None:
    """Refuse keys that a class does not have; demand those without which it cannot be made."""
    if not is_dataclass(target):
        return
    known: dict[str, Field[Any]] = {field.name: field for field in fields(target)}
    dot = f"{path}." if path else ""
    for key, value in keys.items():
        if key not in known:
            raise SmartGenError(
                f"{dot}{key}={value!r} is no key; {path or 'an experiment'} has {', '.join(known)}"
            )
    for key, field in known.items():
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if keys.get(key, "???" if is_needed else None) == "???":
            raise SmartGenError(f"{dot}{key} is missing; it must be given")


def _check_kind(path: str, built: Any, kind: Any) -> None:
    if not isinstance(built, kind):
        right = getattr(kind, "__name__", kind)
        raise SmartGenError(f"{path} makes a {type(built).__name__}; it must make a {right}")
    if not is_dataclass(built):
        return
    hints = get_type_hints(type(built))
    for field in fields(built):
        if is_dataclass(hints[field.name]):
            _check_kind(f"{path}.{field.name}", getattr(built, field.name), hints[field.name])


def _keys_of(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise SmartGenError(f"{path}={value!r} must be keys with values; see smartgen --cfg job")
    return {str(key): item for key, item in value.items()}
