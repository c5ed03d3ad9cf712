"""Where a result came from: version, source, machine, cards; and whether a stored one still holds."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent

PRESENTATION = ("figures", "results_dir", "hydra")
"""Keys of a configuration that do not change its result."""


@cache
def source_digest() -> str:
    """A digest of every module and card of this package, links followed."""
    digest = hashlib.sha256()
    for folder, names, files in sorted(os.walk(PACKAGE, followlinks=True)):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in sorted(files):
            if name.endswith((".py", ".yaml")):
                path = Path(folder, name)
                digest.update(str(path.relative_to(PACKAGE)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def fingerprint(config: Mapping[str, Any]) -> str:
    """Identifies a result: the resolved configuration and the source that made it."""
    told = {key: value for key, value in config.items() if key not in PRESENTATION}
    text = json.dumps(told, sort_keys=True, default=str) + source_digest()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def provenance(config: Mapping[str, Any]) -> dict[str, Any]:
    """What provenance.json says."""
    return {
        "fingerprint": fingerprint(config),
        "version": version("smartgen-kv"),
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
        "cards": {key: config[key]["name"] for key in ("model", "gpu", "host", "network")},
    }


@cache
def _commit() -> str | None:
    """The commit of a checkout, with a plus if it was changed; null outside of one."""
    try:
        git = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--abbrev=12"]
        done = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
