"""Shared by tests of figures: runs of the tiny model, written and read back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from smartgen.compose import experiment_of
from smartgen.metrics.store import Run, read_run, write_run
from smartgen.sim import SimBackend

TINY = ("model=tiny", "workload=tiny", "blocks_per_layer=32", "network.gbps=0.05")


def _run_of(folder: Path, *overrides: str) -> Run:
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        config = compose("config", [*TINY, *overrides])
    experiment = experiment_of(config)
    write_run(folder, config, {}, "sim", experiment, SimBackend().run(experiment))
    return read_run(folder)


def _saturated(run: Run) -> Run:
    """The same run, said to have been saturated."""
    metrics = run.metrics | {"saturated": True}
    (run.folder / "metrics.json").write_text(json.dumps(metrics))
    return read_run(run.folder)


@pytest.fixture(scope="session")
def run_of() -> Callable[..., Run]:
    """A run in a folder, from Hydra overrides."""
    return _run_of


@pytest.fixture(scope="session")
def saturated() -> Callable[[Run], Run]:
    """The same run, said to have been saturated."""
    return _saturated


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [_run_of(folder / name, f"policy={name}") for name in ("full", "smartgen")]


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("sweep")
    points = [(name, gbps) for gbps in (0.05, 0.1, 0.2) for name in ("partial", "smartgen")]
    targets = ("targets.ttft_s=1", "targets.ttst_s=0.2", "targets.tbt_s=0.05")
    runs = [
        _run_of(folder / f"{name},{gbps}", f"policy={name}", f"network.gbps={gbps}", *targets)
        for name, gbps in points
    ]
    return [_saturated(runs[0]), *runs[1:]]


@pytest.fixture(scope="session")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("mapped")
    full = [_run_of(folder / f"{g}", "policy=full", f"network.gbps={g}") for g in (0.05, 0.1)]
    return full + [
        _run_of(folder / f"{g},{s}", f"network.gbps={g}", f"policy.speculative_ratio={s}")
        for g in (0.05, 0.1)
        for s in (0, 0.1, 1.0)
    ]


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two schemes at two bandwidths: of the nominal batch, and of three draws around it."""
    folder = tmp_path_factory.mktemp("seeded")
    return [
        _run_of(
            folder / f"{name},{gbps},{seed}",
            f"policy={name}",
            f"network.gbps={gbps}",
            f"workload.length_cv={0.3 if seed else 0}",
            f"seed={seed}",
        )
        for seed in (0, 1, 2, 3)
        for gbps in (0.05, 0.1)
        for name in ("full", "smartgen")
    ]


@pytest.fixture(scope="session")
def told() -> dict[str, Any]:
    """What metrics.json says of how a run was emulated."""
    return {
        "transport": "tcp",
        "shaping": "wire",
        "remote_lane": "scatter",
        "dilation": 10.0,
        "byte_scale": 64,
        "timer_late_s": {"p50": 1e-5, "p99": 7e-4, "max": 0.02},
        "late_landings": 62,
        "latest_landing_s": 0.0025,
        "equal_pools": 3,
    }


@pytest.fixture(scope="session")
def emulated(told: dict[str, Any]) -> Callable[..., Run]:
    """A simulated run in another folder, said to have been emulated, and so many times slower."""

    def made(run: Run, folder: Path, slower: float, **how: object) -> Run:
        ours = told | how
        settings = {key: ours[key] for key in ("transport", "dilation", "byte_scale")}
        metrics = json.loads(json.dumps(run.metrics))
        for name in ("ttft_s", "ttst_s", "tbt_s"):
            mean = metrics[name]["mean"]
            metrics[name]["mean"] = None if mean is None else mean * slower
        metrics["ctl_s"] = [value * slower for value in metrics["ctl_s"]]
        shutil.copytree(run.folder, folder)
        text = json.dumps(metrics | {"backend": "emu", "emulation": ours})
        (folder / "metrics.json").write_text(text)
        config = run.config | {"backend": {"settings": settings}, "emu": settings}
        (folder / "config.yaml").write_text(json.dumps(config))
        return read_run(folder)

    return made


@pytest.fixture(scope="session")
def compared(
    runs: list[Run], emulated: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> list[Run]:
    """Two schemes, simulated and emulated at two dilations, with repeats."""
    folder = tmp_path_factory.mktemp("compared")
    return [*runs] + [
        emulated(run, folder / f"{i},{dilation},{slower}", slower, dilation=dilation)
        for i, run in enumerate(runs)
        for dilation, slower in ((1.0, 1.2), (1.0, 1.3), (10.0, 1.02))
    ]
