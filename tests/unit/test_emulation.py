"""Emulated runs beside simulated ones: how real they were, which belong together, how far apart."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from smartgen import plot, sweep
from smartgen.errors import SmartGenError
from smartgen.metrics.emulation import emulation_lines, pairs
from smartgen.metrics.labels import differences, labels
from smartgen.metrics.store import Run
from smartgen.plot.agreement import repeated

RunOf = Callable[..., Run]
Emulated = Callable[..., Run]
Told = dict[str, Any]


def test_a_table_is_told_how_real_its_emulated_run_was(told: Told) -> None:
    assert emulation_lines([{"backend": "sim"}, {"emulation": told}]) == [
        "emulated: tcp, scatter, 1 s takes 10 s, 1 byte stands for 64; timers late by 0.01 ms "
        "(p99 0.70 ms), 62 transfers landed late, by 2.50 ms at most; 3 whole pools equal at both "
        "ends"
    ]


def test_of_runs_emulated_alike_the_worst_is_told_in_one_line(told: Told) -> None:
    worse = told | {"timer_late_s": {"p50": 0.0, "p99": 0.3, "max": 1.0}, "equal_pools": 0}
    quiet = told | {"shaping": "none", "late_landings": 0, "equal_pools": 0}
    first, second = emulation_lines([{"emulation": each} for each in (told, worse, quiet)])
    assert "(p99 300.00 ms), 124 transfers" in first and "3 whole pools" in first
    assert "shaping=none" in second and "transfers" not in second and "pools" not in second


def test_who_was_lost_and_what_failed_is_said(told: Told) -> None:
    failed = told | {"byte_scale": 1, "failures": {"prefill1": "its connection is gone"}}
    (line,) = emulation_lines([{"emulation": failed}])
    assert "every byte moved" in line
    assert line.endswith("; prefill1 failed: its connection is gone")


def test_nothing_is_said_of_runs_that_were_not_emulated() -> None:
    assert emulation_lines([{"backend": "sim"}, {"backend": "virtual"}]) == []


def test_an_emulated_run_is_compared_with_the_simulated_one_of_its_configuration(
    runs: list[Run], emulated: Emulated, tmp_path: Path, run_of: RunOf
) -> None:
    other = run_of(tmp_path / "other", "policy=smartgen", "network.gbps=0.1")
    slow = emulated(runs[1], tmp_path / "slow", 1.25)
    (pair,) = pairs([other, *runs, slow])
    assert (pair.simulated.folder, pair.emulated.folder) == (runs[1].folder, slow.folder)
    for name in ("ttst_s", "tbt_s", "last_ctl_s", "ttft_s"):
        assert pair.ratio(name) == pytest.approx(1.25)


def test_what_a_run_lacks_is_no_ratio(run_of: RunOf, emulated: Emulated, tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", "workload.output_tokens=1")
    runs = [one, emulated(one, tmp_path / "emulated", 1.0)]
    assert math.isnan(pairs(runs)[0].ratio("ttst_s"))
    plot.draw("agreement", runs, tmp_path / "figure.png")


def test_runs_of_which_none_was_emulated_and_simulated_cannot_be_compared(
    runs: list[Run], emulated: Emulated, tmp_path: Path
) -> None:
    slow = emulated(runs[1], tmp_path / "slow", 1.25)
    with pytest.raises(SmartGenError, match=r"no emulated run \(of 1\) .* simulated one \(of 1\)"):
        plot.draw("agreement", [runs[0], slow], tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()


def test_repeats_belong_together_and_other_dilations_and_transports_apart(
    runs: list[Run], emulated: Emulated, tmp_path: Path
) -> None:
    hows = [{}, {}, {"dilation": 1.0}, {"transport": "shm"}]
    alike = [emulated(runs[0], tmp_path / str(i), 1.0, **how) for i, how in enumerate(hows)]
    assert [len(each) for each in repeated(pairs([*runs, *alike]))] == [2, 1, 1]


def test_labels_of_simulated_and_emulated_runs_say_which_is_which(
    runs: list[Run], emulated: Emulated, tmp_path: Path
) -> None:
    both = [runs[0], emulated(runs[0], tmp_path / "a", 1.0)]
    assert labels(both) == ["full, backend=sim", "full, backend=emu"]
    both.append(emulated(runs[0], tmp_path / "b", 1.0, dilation=3.0))
    assert labels(both) == [
        "full, backend=sim",
        "full, backend=emu, dilation=10.0",
        "full, backend=emu, dilation=3.0",
    ]
    assert set(differences(both)) == {"backend", "emu.dilation"}


@pytest.mark.parametrize(
    ("asked", "jobs"), [(("backend=emu",), 1), (("backend=sim,emu",), 1), (("backend=sim",), 2)]
)
def test_points_of_the_emulator_run_one_at_a_time(asked: tuple[str, ...], jobs: int) -> None:
    values = {"backend": [f"backend={name}" for name in asked[0].partition("=")[2].split(",")]}
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        config = compose("config", ["hydra.launcher.n_jobs=2"], return_hydra_config=True)
        sweep._keep_apart(config, values)
    assert config.hydra.launcher.n_jobs == jobs


def test_other_launchers_than_joblib_are_left_alone() -> None:
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        asked = ["hydra/launcher=basic", "backend=emu"]
        config = compose("config", asked, return_hydra_config=True)
        sweep._keep_apart(config, {})
    assert "n_jobs" not in config.hydra.launcher
