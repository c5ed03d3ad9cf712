"""A run's folder: written whole or not at all, and read back."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome
from smartgen.metrics.summary import Metrics, summarize
from smartgen.metrics.tables import SCHEMA_VERSION, Tables, make_tables

if TYPE_CHECKING:
    import pyarrow as pa

METRICS, CONFIG, PROVENANCE = "metrics.json", "config.yaml", "provenance.json"
FILES = (METRICS, CONFIG, "requests.parquet", "tokens.parquet", "iterations.parquet")
"""What a folder must hold to be a run."""


def write_run(
    folder: Path,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    backend: str,
    experiment: Experiment,
    outcome: Outcome,
) -> Metrics:
    """Write a run's folder and return its metrics.

    Everything is written beside folder first and then renamed, so that folder is never half
    written; an empty folder or an earlier run in its place is replaced whole. Raises SmartGenError
    if the run has no result, or if the place cannot be written or holds something else.
    """
    tables = make_tables(experiment, outcome)
    metrics = summarize(tables, experiment, backend, outcome.makespan_s, outcome.link_busy_s)
    if outcome.emulation:
        metrics["emulation"] = dict(outcome.emulation)
    folder = folder.absolute()
    partial = folder  # until there is one
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        name = tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".partial")
        partial = Path(name)
        partial.chmod(0o755)
        _write(partial, config, provenance, metrics, tables)
        _put(partial, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SmartGenError(f"the run cannot be written to {folder}: {reason}") from error
    finally:
        if partial != folder:
            shutil.rmtree(partial, ignore_errors=True)
    return metrics


def _write(
    folder: Path,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    metrics: Metrics,
    tables: Tables,
) -> None:
    from omegaconf import OmegaConf
    from pyarrow import parquet

    for name, table in tables.present().items():
        parquet.write_table(table, folder / f"{name}.parquet")
    plain: Any = config
    text = OmegaConf.to_yaml(OmegaConf.create(plain), resolve=True)
    (folder / CONFIG).write_text(text, encoding="utf-8")
    for name, value in ((METRICS, metrics), (PROVENANCE, provenance)):
        text = json.dumps(value, indent=2, allow_nan=False, default=str)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def _put(partial: Path, folder: Path) -> None:
    """Rename into place; an earlier run steps aside until the new one stands."""
    if not (folder / METRICS).is_file():
        partial.rename(folder)  # takes the place of an empty folder, of nothing else
        return
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    try:
        partial.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class Run:
    """A run that was read back. Tables are read when they are first asked for."""

    folder: Path
    config: dict[str, Any]
    metrics: Metrics

    @property
    def label(self) -> str:
        """The scheme's name, or the folder's if the configuration names none."""
        policy = self.config.get("policy")
        name = policy.get("name") if isinstance(policy, Mapping) else None
        return str(name or self.folder.name)

    @property
    def saturated(self) -> bool:
        """Whether something was busy nearly all the time, or a queue grew."""
        return bool(self.metrics["saturated"])

    @cached_property
    def requests(self) -> "pa.Table":
        """A row a request."""
        return self._read("requests")

    @cached_property
    def tokens(self) -> "pa.Table":
        """A row a token."""
        return self._read("tokens")

    @cached_property
    def iterations(self) -> "pa.Table":
        """A row an iteration."""
        return self._read("iterations")

    @cached_property
    def transfers(self) -> "pa.Table | None":
        """A row a posting, or null if they were not recorded."""
        return self._read("transfers") if self._has("transfers") else None

    @cached_property
    def decisions(self) -> "pa.Table | None":
        """A row a decision, or null if they were not recorded."""
        return self._read("decisions") if self._has("decisions") else None

    @cached_property
    def acts(self) -> "pa.Table | None":
        """A row an act of a layer, or null if they were not recorded."""
        return self._read("acts") if self._has("acts") else None

    def _has(self, name: str) -> bool:
        return (self.folder / f"{name}.parquet").is_file()

    def _read(self, name: str) -> "pa.Table":
        import pyarrow
        from pyarrow import parquet

        path = self.folder / f"{name}.parquet"
        try:
            return parquet.read_table(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise SmartGenError(f"{path} cannot be read: {_first_line(error)}") from error


def read_run(folder: Path) -> Run:
    """Read a run's folder; raises SmartGenError naming it if it is no run or of another schema."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise SmartGenError(f"{folder} is not a run: it has no {', no '.join(missing)}")
    try:
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        config = OmegaConf.to_container(OmegaConf.load(folder / CONFIG), resolve=True)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise SmartGenError(f"{folder} is not a run: {_first_line(error)}") from error
    version = metrics.get("schema_version") if isinstance(metrics, dict) else None
    if version != SCHEMA_VERSION:
        raise SmartGenError(
            f"{folder} has schema_version={version!r}; this version reads {SCHEMA_VERSION}"
        )
    if not isinstance(config, dict):
        raise SmartGenError(f"{folder} is not a run: its {CONFIG} holds no keys")
    return Run(folder, {str(key): value for key, value in config.items()}, metrics)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
