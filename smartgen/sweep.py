"""What surrounds Hydra's runs and sweeps: names for folders, early refusal, and what is kept.

A sweep's folder is named after what was asked for, so the same command finds its own results and
runs only what is missing. A point counts as done if its fingerprint (configuration and source) is
that of the run at hand.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from smartgen import launch, progress
from smartgen.errors import SmartGenError
from smartgen.provenance import PRESENTATION, source_digest

COMMAND = "SMARTGEN_COMMAND"
"""Tells workers of the command they work for: they see the overrides of their own point only.

It is one of the variables that Hydra sets for a job, so that it reaches workers that were started
by others, elsewhere."""

_LONGEST_NAME = 150


class Refused(BaseException):
    """Carries a mistake past Hydra, which only warns of exceptions in callbacks."""

    def __init__(self, mistake: Exception) -> None:
        super().__init__(mistake)
        self.mistake = mistake


@dataclass(frozen=True)
class Started:
    """A run or sweep that was started: its folder, and all folders that were made for it.

    points: names of a sweep's points, in the order in which they were asked for.
    """

    config: DictConfig
    folder: Path
    made: Sequence[Path]
    points: Sequence[str]

    @property
    def folders(self) -> list[Path]:
        """Where results are once all is done."""
        return [self.folder / name for name in self.points] or [self.folder]


@dataclass(frozen=True)
class Command:
    """What workers need to know.

    swept: keys in which points differ. folder, notes, cwd: where results and notes of progress go,
    and from where paths are meant.
    """

    name: str = "none"
    swept: Sequence[str] = ()
    folder: str = ""
    notes: str = ""
    cwd: str = ""

    def text(self) -> str:
        """As JSON without what Hydra or OmegaConf would take for more than text."""
        return json.dumps(asdict(self)).replace("'", r"\u0027").replace("$", r"\u0024")


def command_of(hydra: Any) -> Command:
    """The command that a job is for, from Hydra's part of its configuration."""
    return Command(**json.loads(hydra.job.env_set.get(COMMAND, "{}")))


_started: list[Started] = []

ends = ExitStack()
"""What is to be ended with the command at hand."""


def started() -> Started | None:
    """The run or sweep that was started by this command, if one was."""
    return _started[-1] if _started else None


def forget() -> None:
    """Forget the last command."""
    _started.clear()


class SweepCallback(Callback):
    """Looks at what Hydra is about to start, so that mistakes are told before anything is run."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse what is wrong; claim the folder."""
        self._start(config, is_sweep=False)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse what is wrong in all points or in the first; claim the folder."""
        self._start(config, is_sweep=True)

    def _start(self, config: DictConfig, is_sweep: bool) -> None:
        try:
            _check_results_dir(config)
            values = choices(config) if is_sweep else {}
            _check_swept(values)
            _check(_first_point(config, values) if is_sweep else config)
            if is_sweep:
                _keep_apart(config, values)
                _begin(config, values)
            else:
                _begin_run(config)
        except Exception as error:
            raise Refused(error) from error


def _begin_run(config: DictConfig) -> None:
    _tell(config, Command(_command_name(config, is_sweep=False)))
    folder = Path(config.hydra.run.dir).absolute()
    _started.append(Started(config, folder, _make(folder), []))


def _begin(config: DictConfig, values: Mapping[str, Sequence[str]]) -> None:
    swept = [key for key, options in values.items() if len(options) > 1]
    points = [point_name(overrides, swept) for overrides in product(*values.values())]
    told = Command(_command_name(config, is_sweep=True), swept)
    _tell(config, told)
    folder = Path(config.hydra.sweep.dir).absolute()
    _started.append(Started(config, folder, _make(folder), points))
    _remove_notes(folder)
    notes = folder / f".notes-{secrets.token_hex(4)}"
    told = replace(told, folder=str(folder), notes=str(notes), cwd=str(Path.cwd()))
    _tell(config, told)
    with open_dict(config):
        config.hydra.overrides.hydra += [
            f"++hydra.job.env_set.{COMMAND}='{told.text()}'",
            "hydra.sweep.dir='${command_folder:}'",
        ]
    ends.enter_context(launch.held(config, folder, lambda point: point_name(point, swept)))
    stream = getattr(sys.stderr, "stream", sys.stderr)  # at once, whatever else is held
    ends.enter_context(progress.of_sweep(progress.Notes(notes), len(points), stream))


def _tell(config: DictConfig, command: Command) -> None:
    with open_dict(config):
        config.hydra.job.env_set[COMMAND] = command.text()


# -- what was asked for


def choices(config: DictConfig) -> dict[str, list[str]]:
    """Overrides of a sweep by key: one, or as many as are swept over; points are the product."""
    params = config.hydra.sweeper.params or {}
    texts = [*(f"{key}={value}" for key, value in params.items()), *config.hydra.overrides.task]
    loader = GlobalHydra.instance().config_loader()
    found: dict[str, list[str]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(texts):
        key = override.get_key_element()
        if override.is_sweep_override():
            found[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            found[key] = [f"{key}={override.get_value_element_as_str()}"]
    return found


def _first_point(config: DictConfig, values: Mapping[str, Sequence[str]]) -> DictConfig:
    loader = GlobalHydra.instance().config_loader()
    return loader.load_sweep_config(config, [options[0] for options in values.values()])


def _check(config: DictConfig) -> None:
    from smartgen.compose import backend_of, experiment_of, figures_of

    figures_of(config)
    experiment_of(config)
    backend_of(config)


def _check_swept(values: Mapping[str, Sequence[str]]) -> None:
    for key, options in values.items():
        if not options:
            raise SmartGenError(f"{key} is swept over nothing; it must have at least one value")
        if len(options) > 1 and key.lstrip("+") in PRESENTATION:
            raise SmartGenError(f"{key} cannot be swept; it holds for all points")
        if len(set(options)) < len(options):
            twice = next(option for option in options if options.count(option) > 1)
            raise SmartGenError(f"{twice} is asked for twice; every point must be another")


def _keep_apart(config: DictConfig, values: Mapping[str, Sequence[str]]) -> None:
    """Run points of the emulator one at a time, whatever was asked for: they are timed."""
    backends = {option.partition("=")[2] for option in values.get("backend", ())}
    backends.add(config.hydra.runtime.choices.get("backend"))
    if "emu" in backends and "n_jobs" in config.hydra.launcher:
        config.hydra.launcher.n_jobs = 1


def _check_results_dir(config: DictConfig) -> None:
    folder = config.get("results_dir")
    if not isinstance(folder, str) or not folder:
        raise SmartGenError(f"results_dir={folder!r} must be the path of a folder")


def _make(folder: Path) -> list[Path]:
    """Make a folder; returns those that were not there, the deepest first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(missing)
        raise SmartGenError(f"{folder} cannot be written: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise SmartGenError(f"{folder} cannot be written: permission denied")
    return missing


# -- names


def register_resolvers() -> None:
    """Teach OmegaConf the names that the configuration uses; launchers teach them to workers."""
    register = OmegaConf.register_new_resolver
    register("command_name", lambda *, _root_: command_of(_root_.hydra).name, replace=True)
    register("command_folder", lambda *, _root_: command_of(_root_.hydra).folder, replace=True)
    register(
        "point_name",
        lambda overrides, *, _root_: point_name(overrides, command_of(_root_.hydra).swept),
        replace=True,
    )


def _command_name(config: DictConfig, is_sweep: bool) -> str:
    """The scheme or experiment, and a digest of what else was asked for and where it was found."""
    experiment = config.hydra.runtime.choices.get("experiment")
    title = (experiment or "sweep") if is_sweep else config.policy.name
    told = [text for text in config.hydra.overrides.task if _key(text) not in PRESENTATION]
    told = [text for text in told if not (is_sweep and text == f"experiment={experiment}")]
    sources = config.hydra.runtime.config_sources
    told += [source.path for source in sources if source.provider == "command-line"]
    told += [name for name in (config.hydra.job.config_name,) if name != "config"]
    return _with_digest(_safe(title), " ".join(told)) if told else _safe(title)


def point_name(overrides: Sequence[str], swept: Sequence[str]) -> str:
    """A folder's name for a point: the overrides in which it differs from the others."""
    texts = sorted(text for text in overrides if text.split("=")[0] in swept)
    return _safe(",".join(texts)) or "point"


def _key(override: str) -> str:
    """The first key of an override."""
    return re.split(r"[.=@]", override.lstrip("+~"))[0]


def _safe(name: str) -> str:
    """A name that no file system refuses and no other name is made into."""
    safe = re.sub(r"[^\w.,=+-]", "_", name, flags=re.ASCII)
    if safe == name and len(name) <= _LONGEST_NAME and not name.startswith("."):
        return name
    return _with_digest(safe[:_LONGEST_NAME].lstrip("."), name)


def _with_digest(name: str, told: str) -> str:
    return f"{name}-{hashlib.sha256(told.encode(errors='backslashreplace')).hexdigest()[:8]}"


# -- what is kept


def is_done(folder: Path, fingerprint: str) -> bool:
    """Whether the folder holds a finished run of exactly this configuration and source."""
    return _told(folder).get("fingerprint") == fingerprint and (folder / "metrics.json").is_file()


def finished_points(folder: Path) -> list[Path]:
    """Folders of a sweep's finished points, in the order in which they were asked for."""
    found = (path.parent for path in folder.glob("*/metrics.json"))
    return sorted((path for path in found if not path.name.startswith(".")), key=_point)


def kept_points(begun: Started) -> int:
    """How many points the same command would not have to run again."""
    folders = [path for path in begun.folders if (path / "metrics.json").is_file()]
    return [_told(path).get("source_digest") for path in folders].count(source_digest())


def tidy(of: Started) -> None:
    """Remove what a run or sweep that was cut short has begun; leave what was finished."""
    for path in of.folder.glob(".*.partial"):
        shutil.rmtree(path, ignore_errors=True)
    _remove_notes(of.folder)
    _remove_empty([path for path in of.folder.glob("*") if path.is_dir()])
    if not finished_points(of.folder):
        (of.folder / "multirun.yaml").unlink(missing_ok=True)
    _remove_empty(of.made)


def _remove_notes(folder: Path) -> None:
    for path in folder.glob(".notes-*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _told(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "provenance.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _point(folder: Path) -> tuple[int, str]:
    number = _told(folder).get("point")
    return (number if isinstance(number, int) else 0), folder.name
