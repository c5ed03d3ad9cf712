"""What surrounds Hydra's runs and sweeps: names for folders, early refusal, and what is kept.

A sweep's folder is named after what was asked for, so the same command finds its own results and
runs only what is missing. A point counts as done if its fingerprint (configuration and source) is
that of the run at hand.
"""

import _thread
import hashlib
import json
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from smartgen.errors import SmartGenError
from smartgen.provenance import PRESENTATION, source_digest

COMMAND = "SMARTGEN_COMMAND"
"""Environment variable that tells workers the name, number of points and swept keys of a command:
they see the overrides of their own point only."""

_LONGEST_NAME = 150


class Refused(BaseException):
    """Carries a mistake past Hydra, which only warns of exceptions in callbacks."""

    def __init__(self, mistake: Exception) -> None:
        super().__init__(mistake)
        self.mistake = mistake


@dataclass(frozen=True)
class Started:
    """A run or sweep that was started: its folder, and all folders that were made for it."""

    config: DictConfig
    folder: Path
    made: Sequence[Path]
    num_points: int
    is_sweep: bool


_started: list[Started] = []

ends = ExitStack()
"""What is to be ended with the command at hand."""


def started() -> Started | None:
    """The run or sweep that was started by this command, if one was."""
    return _started[-1] if _started else None


def forget() -> None:
    """Forget the last command."""
    _started.clear()
    os.environ.pop(COMMAND, None)


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
            name, num_points = _command_name(config, is_sweep), math.prod(map(len, values.values()))
            swept = [key for key, options in values.items() if len(options) > 1]
            told = {"name": name, "swept": swept, "points": num_points}
            os.environ[COMMAND] = json.dumps(told)
            folder = Path(config.hydra.sweep.dir if is_sweep else config.hydra.run.dir).absolute()
            _started.append(Started(config, folder, _make(folder), num_points, is_sweep))
            if is_sweep:
                ends.enter_context(_workers_deaf_to_interrupts())
        except Exception as error:
            raise Refused(error) from error


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
    """Teach OmegaConf the names that the configuration uses."""
    OmegaConf.register_new_resolver("command_name", lambda: _command()["name"], replace=True)
    OmegaConf.register_new_resolver("point_name", point_name, replace=True)


def _command() -> dict[str, Any]:
    none: dict[str, Any] = {"name": "none", "swept": [], "points": 1}
    return {**none, **json.loads(os.environ.get(COMMAND, "{}"))}


def num_points() -> int:
    """How many points the sweep at hand has."""
    return int(_command()["points"])


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


def point_name(overrides: Sequence[str]) -> str:
    """A folder's name for a point: the overrides in which it differs from the others."""
    swept = _command()["swept"]
    return (
        _safe(",".join(sorted(text for text in overrides if text.split("=")[0] in swept)))
        or "point"
    )


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


def mark_kept(folder: Path) -> None:
    """Mark a point of an earlier sweep as one of the sweep at hand."""
    os.utime(folder / "metrics.json")


def finished_points(folder: Path) -> list[Path]:
    """Folders of a sweep's finished points, in the order in which they were asked for."""
    found = (path.parent for path in folder.glob("*/metrics.json"))
    return sorted((path for path in found if not path.name.startswith(".")), key=_point)


def points_of_this_sweep(folder: Path) -> list[Path]:
    """Those of them that the sweep at hand ran or kept: since Hydra noted its start."""
    try:
        start_ns = (folder / "multirun.yaml").stat().st_mtime_ns
    except FileNotFoundError:
        return finished_points(folder)
    found = finished_points(folder)
    return [path for path in found if (path / "metrics.json").stat().st_mtime_ns >= start_ns]


def kept_points(folder: Path) -> int:
    """How many points the same command would not have to run again."""
    found = [_told(path).get("source_digest") for path in finished_points(folder)]
    return found.count(source_digest())


def tidy(of: Started) -> None:
    """Remove what a run or sweep that was cut short has begun; leave what was finished."""
    for path in of.folder.glob(".*.partial"):
        shutil.rmtree(path, ignore_errors=True)
    _remove_empty([path for path in of.folder.glob("*") if path.is_dir()])
    if not finished_points(of.folder):
        (of.folder / "multirun.yaml").unlink(missing_ok=True)
    _remove_empty(of.made)


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


# -- interruptions


@contextmanager
def _workers_deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C reaches this process only, which ends its workers; they would print tracebacks.

    Workers inherit the mask of the thread that starts them. So this thread masks the signal, and
    another waits for it and interrupts this one.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "sigwait"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it unmasks the signal when it starts
    over = threading.Event()

    def pass_on() -> None:
        while True:
            signal.sigwait({signal.SIGINT})
            if over.is_set():
                return
            _thread.interrupt_main()

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiting = threading.Thread(target=pass_on, daemon=True)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        if waiting.ident is not None:
            signal.pthread_kill(waiting.ident, signal.SIGINT)
        waiting.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
