"""The command line in this process: what it says, how it exits, what it leaves behind."""

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from smartgen.cli import main

TINY = ("model=tiny", "workload=tiny", "blocks_per_layer=32", "figures=[]")
"""A run of a moment."""


@dataclass(frozen=True)
class Told:
    """What a command came to."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Told]]:
    """Runs ``smartgen ARGUMENTS`` in an empty folder, the test's tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    handler = signal.getsignal(signal.SIGINT)

    def run(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["smartgen", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            GlobalHydra.instance().clear()
        return Told(code, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGINT, handler)


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[], list[str]]:
    """Lists everything below the test's tmp_path."""
    return lambda: sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))


@pytest.fixture(scope="session")
def tiny_run() -> tuple[str, ...]:
    """Overrides for a run of a moment without figures."""
    return TINY
