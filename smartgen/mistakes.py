"""A mistake in one line: what Hydra, OmegaConf and the operating system say, cut to what helps."""

import re
import sys
import traceback
from typing import Any

from smartgen.errors import SmartGenError

_OTHERS = ("hydra", "hydra_plugins", "omegaconf", "yaml", "joblib")
_SCHEDULERS = ("submitit", "ray")
"""Packages whose errors come of what was asked for."""


def one_line(error: BaseException) -> str | None:
    """What to tell the user, or null for a fault that is ours and needs its traceback."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, SmartGenError):
            return str(seen)
        seen = seen.__cause__
    if isinstance(error, MemoryError):
        return f"out of memory: {error}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    frames = list(traceback.walk_tb(error.__traceback__))
    where = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    is_ours = hasattr(error, "__notes__")  # by _job, in a worker
    package = where.partition(".")[0]
    if package in _OTHERS and not is_ours:
        return _told_by_hydra(error)
    if package in _SCHEDULERS and not is_ours:
        return str(error)
    return str(error) if isinstance(error, OSError) else None


def _told_by_hydra(error: BaseException) -> str:
    """Hydra's own words, or better ones where it is an option or key that does not exist."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

    told, cause = _first_part(str(error)), error.__cause__
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = ", ".join(name for name in error.options if name != "base")
        told = f"{group}={option} is unknown; there are {options}"
        if group == "hydra/launcher" and option.startswith(("submitit", "ray")):
            told += " (others are plugins, see docs/sweeps.md)"
    elif isinstance(error, OverrideParseException) and error.override not in told:
        told = f"{error.override!r} cannot be read: {told}"
    elif isinstance(cause, ConfigAttributeError | ConfigKeyError):
        asked = str(error).rpartition("use +")[2]
        told = f"{asked} is no key; {_near(cause.full_key or '', cause.parent_node)}"
    elif isinstance(cause, OmegaConfBaseException):
        told = f"{error}: {_first_part(str(cause))}"
    elif isinstance(error, OmegaConfBaseException) and error.full_key:
        told = f"{error.full_key}: {told}"
    elif not isinstance(error, HydraException):
        told = f"{told} (asked for: {' '.join(sys.argv[1:])})"
    return told


def _first_part(text: str) -> str:
    """Without search paths, links and types of nodes."""
    return re.split(r"Config search path|See https:|full_key:", text)[0].strip()


def _near(full_key: str, parent: Any) -> str:
    """What could have been meant by a key that does not exist."""
    from difflib import get_close_matches

    section, _, key = full_key.rpartition(".")
    known = [str(name) for name in parent if name not in ("hydra", "_target_")]
    close = get_close_matches(key, known, 1)
    if close:
        return f"did you mean {'.'.join((section, *close)).lstrip('.')}?"
    return f"{section or 'the configuration'} has {', '.join(known)}"


def is_interruption(error: BaseException | None) -> bool:
    """Whether it is one, or was raised by someone who was cleaning up after one."""
    return error is not None and (
        isinstance(error, KeyboardInterrupt) or is_interruption(error.__context__)
    )
