"""What surrounds Hydra's sweeps: names for folders, progress, and what is kept after an interruption.

A sweep's folder is named after what was asked for, so the same command finds its own results and
runs only what is missing. A point counts as done if its fingerprint (configuration and source) is
that of the run at hand.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from smartgen.provenance import PRESENTATION

NUM_POINTS = "SMARTGEN_SWEEP_POINTS"
"""Environment variable that tells workers how many points their sweep has."""

NAME = "SMARTGEN_SWEEP_NAME"
"""Environment variable that tells workers the name: they see their own overrides, not the sweep's."""

_started: list[DictConfig] = []


class SweepCallback(Callback):
    """Remembers the sweep that Hydra starts."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note the configuration; tell workers the sweep's name and how many points it has."""
        os.environ.pop(NAME, None)
        os.environ[NAME] = Path(config.hydra.sweep.dir).name
        os.environ[NUM_POINTS] = str(num_points(config))
        _started.append(config)


def started() -> DictConfig | None:
    """The configuration of the sweep that was started in this process, if one was."""
    return _started[-1] if _started else None


def num_points(config: DictConfig) -> int:
    """How many points a sweep's overrides span."""
    params = config.hydra.sweeper.params or {}
    texts = [*config.hydra.overrides.task, *(f"{key}={value}" for key, value in params.items())]
    overrides = OverridesParser.create().parse_overrides(texts)
    swept = {o.key_or_group: o for o in reversed(overrides) if o.is_sweep_override()}
    return math.prod(len(list(o.sweep_string_iterator())) for o in swept.values())


def sweep_name(experiment: str | None, overrides: Sequence[str]) -> str:
    """A folder's name for a sweep: the experiment, and a digest of what else was asked for."""
    if NAME in os.environ:
        return os.environ[NAME]
    told = ("experiment", *PRESENTATION)
    asked = sorted(text for text in overrides if re.split(r"[.=]", text)[0] not in told)
    name = experiment or "sweep"
    if not asked:
        return name
    return f"{name}-{hashlib.sha256(' '.join(asked).encode()).hexdigest()[:8]}"


def point_name(override_dirname: str) -> str:
    """A folder's name for a point: its overrides, made safe and not too long."""
    name = re.sub(r"[^\w.,=+-]", "_", override_dirname) or "point"
    if len(name) <= 150:
        return name
    return f"{name[:130]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def register_resolvers() -> None:
    """Teach OmegaConf the two names above."""
    OmegaConf.register_new_resolver("sweep_name", sweep_name, replace=True)
    OmegaConf.register_new_resolver("point_name", point_name, replace=True)


def is_done(folder: Path, fingerprint: str) -> bool:
    """Whether the folder holds a finished run of exactly this configuration and source."""
    try:
        told = json.loads((folder / "provenance.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(told.get("fingerprint") == fingerprint)


def finished_points(folder: Path) -> list[Path]:
    """Folders of a sweep's finished points, in the order in which they were asked for."""
    found = (path.parent for path in folder.glob("*/metrics.json"))
    return sorted((path for path in found if not path.name.startswith(".")), key=_point)


def _point(folder: Path) -> tuple[int, str]:
    try:
        return int(json.loads((folder / "provenance.json").read_text())["point"]), folder.name
    except (OSError, ValueError, KeyError, TypeError):
        return 0, folder.name


def remove_if_empty(folder: Path) -> None:
    """Leave nothing behind of a sweep or run that came to nothing."""
    if not folder.is_dir() or finished_points(folder):
        return
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.name == "multirun.yaml":
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
