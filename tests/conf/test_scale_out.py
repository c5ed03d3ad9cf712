"""Sweeps by every launcher that is installed: the same tables, nothing lost if one is cut short."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from smartgen.metrics.store import read_run

TINY = ("model=tiny", "workload=tiny", "blocks_per_layer=32", "figures=[]")

JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def needs(package: str, *overrides: str) -> object:
    missing = find_spec(package) is None
    skipped = pytest.mark.skipif(missing, reason=f"{package} is not installed")
    return pytest.param(overrides, marks=skipped, id=overrides[0].partition("=")[2])


SUBMITIT = needs("submitit", "hydra/launcher=submitit_local")
RAY = needs("ray", "hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2")

BACKEND = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from smartgen.sim import SimBackend

@dataclass(frozen=True)
class Backend(SimBackend):
    name: str = "odd"

    def run(self, experiment, watch=None):
        if experiment.seed == 2 and Path("lost").exists():
            os._exit(3)
        while experiment.seed >= 2 and Path("wait").exists():
            time.sleep(0.01)
        return super().run(experiment, watch)
"""
"""Waits, or ends without a word, where it is told to by a file."""

ODD = ("--config-dir", "mine", "-m", "backend=odd", "seed=range(0,4)", *TINY)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a backend of its own."""
    (tmp_path / "odd.py").write_text(BACKEND, encoding="utf-8")
    (tmp_path / "mine" / "backend").mkdir(parents=True)
    text = "_target_: odd.Backend\nname: odd\n"
    (tmp_path / "mine" / "backend" / "odd.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@contextmanager
def begun(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    paths = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    with subprocess.Popen(
        [sys.executable, "-m", "smartgen", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process


def ran(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with begun(folder, *arguments) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def only_sweep(folder: Path) -> Path:
    (found,) = (folder / "results" / "sweeps").iterdir()
    return found


def assert_same_results(one: Path, other: Path) -> None:
    assert (one / "summary.csv").read_bytes() == (other / "summary.csv").read_bytes()
    names = {path.name for path in one.iterdir()}
    assert names == {path.name for path in other.iterdir()}
    for name in names - {"summary.csv", "multirun.yaml"}:
        assert read_run(one / name).tokens == read_run(other / name).tokens
        assert read_run(one / name).metrics == read_run(other / name).metrics


@pytest.mark.parametrize("launcher", [SUBMITIT, RAY])
def test_every_launcher_gives_the_same_tables(place: Path, launcher: tuple[str, ...]) -> None:
    asked = ("-m", "policy=full,smartgen", "network.gbps=0.02,0.05", *TINY)
    told = {}
    for name, overrides in (("joblib", JOBLIB), ("other", launcher)):
        (place / name).mkdir()
        told[name] = ran(place / name, *asked, *overrides)
    code, out, err = told["other"]
    assert (code, out) == (0, told["joblib"][1])
    assert len(re.findall(r"^\[[1-4]/4\] network.gbps=.*,policy=.*: TTST", err, re.M)) == 4
    if launcher[0] != "hydra/launcher=ray":  # which says that it asks for a token
        assert len(err.splitlines()) == 4, err
    assert_same_results(only_sweep(place / "joblib"), only_sweep(place / "other"))


@pytest.mark.parametrize("launcher", [pytest.param(JOBLIB, id="joblib"), SUBMITIT])
def test_an_interrupted_sweep_continues_and_comes_to_the_same(
    place: Path, launcher: tuple[str, ...]
) -> None:
    assert ran(place, *ODD, *JOBLIB, "results_dir=whole/results")[0] == 0
    (place / "wait").touch()
    with begun(place, *ODD, *launcher) as process:
        assert process.stderr is not None
        assert [process.stderr.readline()[:5] for _ in range(2)] == ["[1/4]", "[2/4]"]
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)  # all who could write are gone, too
    assert process.returncode == 130
    assert err == (
        "smartgen: interrupted; 2 of 4 points are finished and kept, "
        "the same command runs the others\n"
    )
    folder = only_sweep(place)
    assert {path.name for path in folder.iterdir()} == {"multirun.yaml", "seed=0", "seed=1"}
    made_ns = (folder / "seed=1" / "metrics.json").stat().st_mtime_ns
    (place / "wait").unlink()
    code, _, err = ran(place, *ODD, *launcher)
    assert code == 0
    told = dict(re.findall(r"^\[[1-4]/4\] (.+): (\w+)", err, re.M))
    assert told == {"seed=0": "kept", "seed=1": "kept", "seed=2": "TTST", "seed=3": "TTST"}
    assert (folder / "seed=1" / "metrics.json").stat().st_mtime_ns == made_ns
    assert_same_results(folder, only_sweep(place / "whole"))


@pytest.mark.parametrize("launcher", [SUBMITIT])
def test_a_job_that_is_lost_is_named_with_its_log_and_the_others_are_kept(
    place: Path, launcher: tuple[str, ...]
) -> None:
    (place / "lost").touch()
    code, _, err = ran(place, *ODD, *launcher)
    assert code == 1
    match = re.fullmatch(
        r"smartgen: seed=2: job \d+ ended without a result; its log is (\S+); "
        r"3 of 4 points are finished and kept",
        err.splitlines()[-1],
    )
    assert match, err
    assert (place / match[1]).is_file()
    (place / "lost").unlink()
    code, _, err = ran(place, *ODD, *launcher)
    assert code == 0
    assert not (only_sweep(place) / ".submitit").exists()


@pytest.mark.parametrize("launcher", [pytest.param(JOBLIB, id="joblib"), SUBMITIT, RAY])
def test_a_point_that_is_wrong_is_named(place: Path, launcher: tuple[str, ...]) -> None:
    asked = ("-m", "policy=full,smartgen", "workload.requests=4,6", *TINY)
    code, _, err = ran(place, *asked, *launcher)
    assert code == 1
    line = err.splitlines()[-1]
    assert line.startswith(
        "smartgen: policy=full,workload.requests=6: workload.prompt_tokens lists 4 lengths;"
    )
    assert line.endswith("; 2 of 4 points are finished and kept")


def test_a_sweep_in_a_folder_of_an_odd_name_works(place: Path) -> None:
    folder = place / "it's $odd, {1=2}"
    folder.mkdir()
    code, _, err = ran(folder, "-m", "seed=1,2", "hydra/launcher=basic", *TINY)
    assert code == 0, err
    assert {path.name for path in only_sweep(folder).iterdir() if path.is_dir()} == {
        "seed=1",
        "seed=2",
    }
