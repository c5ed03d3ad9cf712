"""Commands that are right: what they print and keep, and what they need not do again."""

import csv
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from smartgen import provenance, sweep
from smartgen.metrics.store import read_run
from smartgen.sim import SimBackend

Command = Callable[..., Any]
Tree = Callable[[], list[str]]

SWEEP = ("-m", "hydra/launcher=basic")
"""A sweep within this process."""


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def told_of(err: str) -> dict[str, str]:
    """What the progress lines say of each point."""
    return dict(re.findall(r"^\[\d+/\d+\] (.+): (\w+)", err, re.MULTILINE))


def test_a_run_prints_its_table_and_keeps_its_folder(command: Command, tmp_path: Path) -> None:
    told = command("model=tiny", "workload=tiny", "blocks_per_layer=32", "figures=[ctl]")
    folder = only(tmp_path / "results" / "runs")
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines()[1].startswith("smartgen ")
    assert f"results: results/runs/{folder.name}\n" in told.out
    assert f"figure:  results/runs/{folder.name}/ctl.png\n" in told.out
    assert (folder / "ctl.png").is_file()
    assert read_run(folder).config["seed"] == 0


def test_two_commands_within_a_second_do_not_share_a_folder(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    command(*tiny_run, "seed=1")
    command(*tiny_run, "seed=2")
    folders = list((tmp_path / "results" / "runs").iterdir())
    assert sorted(read_run(folder).config["seed"] for folder in folders) == [1, 2]


def test_a_sweep_labels_its_points_by_what_differs(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    told = command(*SWEEP, "policy=full,smartgen", "network.gbps=0.02,0.05", *tiny_run)
    assert told.code == 0
    rows = [line.split("  ")[0] for line in told.out.splitlines()[1:5]]
    assert rows == [
        "full, gbps=0.02",
        "full, gbps=0.05",
        "smartgen, gbps=0.02",
        "smartgen, gbps=0.05",
    ]
    folder = only(tmp_path / "results" / "sweeps")
    with (folder / "summary.csv").open(encoding="utf-8") as file:
        kept = [(row["policy"], row["network.gbps"]) for row in csv.DictReader(file)]
    assert kept == [(p, g) for p in ("full", "smartgen") for g in ("0.02", "0.05")]
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        f"network.gbps={g},policy={p}" for p, g in kept
    }


def test_a_sweep_of_one_point_works(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    told = command(*SWEEP, *tiny_run)
    assert told.code == 0
    assert told.err.startswith("[1/1] point: TTST ")
    assert read_run(only(tmp_path / "results" / "sweeps") / "point").label == "smartgen"


def test_a_named_experiment_is_a_sweep_under_its_name(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "seeds.yaml").write_text(
        "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '3,4'}}}\n",
        encoding="utf-8",
    )
    told = command("--config-dir", "mine", "experiment=seeds", "hydra/launcher=basic", *tiny_run)
    assert told.code == 0, told.err
    assert set(told_of(told.err)) == {"seed=3", "seed=4"}
    assert only(tmp_path / "results" / "sweeps").name.startswith("seeds-")


def test_experiments_that_are_swept_over_do_not_share_a_folder(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        text = f"# @package _global_\nseed: {len(name)}{name == 'two':d}\n"
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    told = command("--config-dir", "mine", *SWEEP, "experiment=one,two", *tiny_run)
    assert set(told_of(told.err)) == {"experiment=one", "experiment=two"}


def test_the_same_sweep_runs_only_what_is_missing(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    asked = (*SWEEP, "seed=1,2,3", *tiny_run)
    first = command(*asked)
    folder = only(tmp_path / "results" / "sweeps")
    for path in sorted((folder / "seed=2").iterdir()):
        path.unlink()
    second = command(*asked)
    assert told_of(second.err) == {"seed=1": "kept", "seed=2": "TTST", "seed=3": "kept"}
    assert second.out == first.out
    assert only(tmp_path / "results" / "sweeps") == folder


def test_a_change_of_source_or_of_a_card_runs_again(
    command: Command,
    tiny_run: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = tmp_path / "mine" / "network" / "slow.yaml"
    card.parent.mkdir(parents=True)
    text = "defaults: [elastic_15g, _self_]\nname: slow\ngbps: 0.02\n"
    card.write_text(text, encoding="utf-8")
    asked = ("--config-dir", "mine", *SWEEP, "network=slow", *tiny_run)
    assert set(told_of(command(*asked).err).values()) == {"TTST"}
    assert set(told_of(command(*asked).err).values()) == {"kept"}
    card.write_text(text.replace("0.02", "0.03"), encoding="utf-8")
    assert set(told_of(command(*asked).err).values()) == {"TTST"}
    assert set(told_of(command(*asked).err).values()) == {"kept"}
    monkeypatch.setattr(provenance, "source_digest", lambda: "another")
    assert set(told_of(command(*asked).err).values()) == {"TTST"}


def test_points_that_a_sweep_no_longer_has_are_not_in_its_table(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    text = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '3,4'}}}\n"
    (folder / "seeds.yaml").write_text(text, encoding="utf-8")
    asked = ("--config-dir", "mine", "experiment=seeds", "hydra/launcher=basic", *tiny_run)
    assert "seed=4" in command(*asked).out
    (folder / "seeds.yaml").write_text(text.replace("3,4", "3,5"), encoding="utf-8")
    told = command(*asked)
    assert told_of(told.err) == {"seed=3": "kept", "seed=5": "TTST"}
    assert "seed=4" not in told.out
    assert "[2/2]" in told.err


def test_plot_draws_the_runs_of_a_sweep_over_each_other(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    command(*SWEEP, "policy=full,smartgen", *tiny_run)
    told = command("plot", "ctl", str(only(tmp_path / "results" / "sweeps")), "-o", "mine.pdf")
    assert (told.code, told.out) == (0, "figure:  mine.pdf\n")
    assert {path.name for path in tmp_path.iterdir()} == {"results", "mine.pdf", "mine.png"}


def test_a_run_that_is_interrupted_leaves_nothing(
    command: Command, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimBackend, "run", interrupt)
    told = command()
    assert (told.code, told.err) == (130, "smartgen: interrupted; nothing was written\n")
    assert tree() == []


def test_the_configuration_can_be_shown(command: Command, tree: Tree) -> None:
    told = command("--cfg", "job", "network.gbps=7")
    assert told.code == 0
    assert "gbps: 7\n" in told.out
    assert tree() == []


def test_no_one_has_to_read_all_that_is_printed(tmp_path: Path) -> None:
    piped = subprocess.Popen(
        [sys.executable, "-m", "smartgen", "--cfg", "job"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert piped.stdout is not None
    piped.stdout.close()
    assert piped.stderr is not None
    assert piped.stderr.read() == b""
    piped.stderr.close()
    assert piped.wait(60) == 1


# -- sweeps in processes of their own, cut short

ASKED = ("-m", "seed=range(0,6)", "policy=partial", "figures=[]", "hydra.launcher.n_jobs=2")


@contextmanager
def begun_sweep(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A sweep of which a point or two are finished; its workers are in the same process group."""
    command = [sys.executable, "-m", "smartgen", *ASKED]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        # two workers may both be done before either says so
        assert re.match(r"\[[12]/6\] ", process.stderr.readline())
        yield process


def test_an_interrupted_sweep_says_what_is_kept_and_continues(tmp_path: Path) -> None:
    with begun_sweep(tmp_path) as process:
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    *progress, line = err.splitlines()
    assert all(text.startswith("[") for text in progress), err
    match = re.fullmatch(
        r"smartgen: interrupted; ([1-5]) of 6 points (is|are) finished and kept, "
        "the same command runs the others",
        line,
    )
    assert match, line
    (folder,) = (tmp_path / "results" / "sweeps").iterdir()
    kept = int(match[1])
    assert len([path for path in folder.iterdir() if path.is_dir()]) == kept
    again = subprocess.run(
        [sys.executable, "-m", "smartgen", *ASKED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert sorted(told_of(again.stderr).values()) == ["TTST"] * (6 - kept) + ["kept"] * kept


def workers_of(session: int) -> list[int]:
    """Worker processes of a session; there is no other way to kill them without their tracker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            started_in = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            is_worker = b"LokyProcess" in (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if started_in == session and is_worker:
            found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_killed_sweep_leaves_nothing_half_written_that_counts(tmp_path: Path) -> None:
    with begun_sweep(tmp_path) as process:
        process.kill()
        workers = workers_of(process.pid)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        process.communicate(timeout=60)
    assert len(workers) == 2
    (folder,) = (tmp_path / "results" / "sweeps").iterdir()
    finished = sweep.finished_points(folder)
    assert 1 <= len(finished) < 6
    for point in finished:
        assert len(read_run(point).requests) == 6


def test_timeline_writes_beside_the_run_or_where_it_is_told(
    command: Callable[..., Any], tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    command(*tiny_run, "record.transfers=true")
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    told = command("timeline", str(folder))
    assert told.code == 0 and told.out.endswith("timeline.json.gz (open it at ui.perfetto.dev)\n")
    assert command("timeline", str(folder), "-o", "mine.json.gz").code == 0
    assert (folder / "timeline.json.gz").read_bytes() == (tmp_path / "mine.json.gz").read_bytes()


# -- emulated runs


def test_an_emulated_run_says_how_real_it_was(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    told = command("backend=emu", *tiny_run, "emu.transport=shm", "workload.output_tokens=2")
    assert told.code == 0, told.err
    assert "\nemulated: shm, scatter, 1 s takes 1 s, every byte moved; timers late" in told.out
