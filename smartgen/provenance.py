"""Where a result came from: version, source, machine, cards; and whether it still holds."""

import hashlib
import json
import os
import platform
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent

PRESENTATION = ("figures", "results_dir", "hydra")
"""Keys of a configuration that do not change its result."""


_TELLS_ONLY = (
    *("calibrate", "claims", "reproduce", "plot"),
    *("cli.py", "launch.py", "progress.py", "sweep.py"),
    *("emu/measure.py", "emu/loopback.py"),
)
"""Modules that start runs, say or draw what came out, or make cards."""


@cache
def source_digest() -> str:
    """A digest of every module that makes results, links followed.

    Cards are not in it: what they say is in the configuration.
    """
    digest = hashlib.sha256()
    for path in sorted(_modules(PACKAGE)):
        name = path.relative_to(PACKAGE)
        if name.parts[0] not in _TELLS_ONLY and name.as_posix() not in _TELLS_ONLY:
            digest.update(name.as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _modules(folder: Path) -> Iterator[Path]:
    for root, _, files in os.walk(folder, followlinks=True):
        yield from (Path(root, name) for name in files if name.endswith(".py"))


def fingerprint(config: Mapping[str, Any]) -> str:
    """Identifies a result: the resolved configuration, the files it names, the source."""
    told = {key: value for key, value in config.items() if key not in PRESENTATION}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    digest.update(source_digest().encode())
    digest.update(json.dumps(file_digests(config)).encode())
    return digest.hexdigest()[:16]


def file_digests(config: Mapping[str, Any]) -> dict[str, str]:
    """A digest of every file that the configuration names, the profile and the trace."""
    workload = config.get("workload")
    trace = workload.get("path") if isinstance(workload, Mapping) else None
    digests = {}
    for path in (config.get("profile"), trace):
        if isinstance(path, str):
            with suppress(OSError):  # a file that is not there is refused by whoever loads it
                digests[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    return digests


@cache
def program_version() -> str:
    """The version that is installed, or that of the checkout."""
    try:
        return version("smartgen-kv")
    except PackageNotFoundError:
        project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["project"]["version"])


def provenance(config: Mapping[str, Any]) -> dict[str, Any]:
    """What provenance.json says."""
    return {
        "fingerprint": fingerprint(config),
        "version": program_version(),
        "commit": _commit(),
        "source_digest": source_digest(),
        "machine": {
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": version("numpy"),
            "simpy": version("simpy"),
        },
        "seeds": {"seed": config.get("seed")},
        "files": file_digests(config),
        "cards": {key: config[key]["name"] for key in ("model", "gpu", "host", "network")},
    }


@cache
def _commit() -> str | None:
    """The commit of a checkout, with a plus if it was changed; null outside of one."""
    if not (PACKAGE.parent / ".git").exists():
        return None  # installed, maybe below someone else's checkout
    try:
        git = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--abbrev=12"]
        quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # many workers may ask at once
        done = subprocess.run(
            git, capture_output=True, text=True, check=True, timeout=10, env=quiet
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
