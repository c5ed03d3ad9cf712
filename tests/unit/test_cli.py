"""The command line's own answers, and what it makes of errors."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import smartgen
from smartgen import cli, mistakes, provenance
from smartgen.errors import SmartGenError
from smartgen.plot import KINDS


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["smartgen", *arguments])
        cli.main()
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["help"], ["plot", "--help"]], ids=str)
def test_help_is_given_wherever_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert answered(capsys, *arguments).startswith("usage: smartgen [KEY=VALUE ...]")


@pytest.mark.parametrize(
    "group", ["experiment", "policy", "backend", "model", "gpu", "host", "network"]
)
def test_help_lists_every_option(capsys: pytest.CaptureFixture[str], group: str) -> None:
    told = answered(capsys, "--help").split()
    conf = Path(smartgen.__file__).parent / "conf"
    for path in (conf / group).glob("*.yaml"):
        assert path.stem == "base" or path.stem in told


def test_help_names_every_kind_of_plot(capsys: pytest.CaptureFixture[str]) -> None:
    told = " ".join(answered(capsys, "--help").split())
    assert f"kinds of plot: {' '.join(KINDS)} Every key" in told


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(capsys, "--version") == "smartgen 0.1.0\n"


def test_a_checkout_that_is_not_installed_knows_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(provenance, "version", fail)
    assert provenance.program_version.__wrapped__() == "0.1.0"


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_a_mere_question_imports_neither_hydra_nor_numpy(flag: str) -> None:
    code = (
        "import sys; from smartgen.cli import main; sys.argv = ['smartgen', sys.argv[1]]; main(); "
        "print([name for name in ('hydra', 'numpy', 'omegaconf', 'simpy') if name in sys.modules])"
    )
    asked = [sys.executable, "-c", code, flag]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_mistake_is_told_as_it_is_even_below_another_error() -> None:
    error = RuntimeError("something else")
    error.__cause__ = SmartGenError("seed=-1 must be positive")
    assert mistakes.one_line(error) == "seed=-1 must be positive"


def test_a_fault_of_ours_is_told_by_its_traceback() -> None:
    error = KeyError("x")
    error.__context__ = SmartGenError("what was handled when it happened")
    assert mistakes.one_line(error) is None


def test_a_fault_in_a_worker_keeps_the_traceback_that_was_noted_there() -> None:
    error = TypeError("x")
    error.add_note("Traceback ... in the worker")
    assert mistakes.one_line(error) is None


def test_an_error_of_the_operating_system_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        (tmp_path / "no" / "file").write_text("")
    assert mistakes.one_line(caught.value) == f"{tmp_path}/no/file: No such file or directory"


def test_an_interruption_is_one_even_if_an_error_came_of_it() -> None:
    error = UnboundLocalError("f")
    error.__context__ = KeyboardInterrupt()
    assert mistakes.is_interruption(error)
    assert not mistakes.is_interruption(UnboundLocalError("f"))
