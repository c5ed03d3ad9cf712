"""Whatever is wrong with what was asked for: one line that names it, exit code 1, nothing left."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smartgen.policy import Profile
from smartgen.sim import SimBackend

Command = Callable[..., Any]
Tree = Callable[[], list[str]]

NAMED = "+network.variation={_target_: smartgen.cost.variation."
KEY = "network.variation"
STEPS = {
    "[]": f"{KEY}.steps=[] must be a list of pairs [seconds, factor]",
    "[1,2]": f"{KEY}.steps=[1, 2] must be a list of pairs [seconds, factor]",
    "[[1,1]]": f"{KEY}.steps=[[1, 1]] must be a list of pairs",
    "[[0,1],[0,2]]": "must be a list of pairs [seconds, factor] at rising times",
    "[[0,1],[2,0]]": f"{KEY}.steps, a factor=0 must be a positive number",
    "[[0,1],[soon,1]]": f"{KEY}.steps, a time='soon' must be a number of zero",
}
DRAWN = {
    "cv: 1, seed: 0, period_s: 0": f"{KEY}.period_s=0 must be a number in [0.001, 1000000.0]",
    "cv: 1, seed: 0, period_s: 1, min_factor: 0.64, mean: 0.1": (
        f"{KEY}.mean=0.1 must be a number in [0.64, 1.0]"
    ),
    "cv: 1, seed: 0, period_s: 1, min_factor: 0": f"{KEY}.min_factor=0 must be a positive number",
    "cv: 1, seed: 0, period_s: 1, max_factor: 101": (
        f"{KEY}.max_factor=101 must be a number in [0.1, 100.0]"
    ),
    "cv: 1, seed: 0, period_s: 1, correlation: 1": (
        f"{KEY}.correlation=1 must be a number in [0, 0.999]"
    ),
    "seed: 0, period_s: 1, cv: -1": f"{KEY}.cv=-1 must be a number in [0, 10]",
    "cv: 1, seed: 0, mean: 1": f"{KEY}.period_s is missing; it must be given",
    "cv: 1, seed: 0, period_s: 1, speed: 1": f"{KEY}.speed=1 is no key; {KEY} has period_s",
    "cv: 1, period_s: 1, seed: x": f"{KEY}.seed='x' must be an integer of 0 or more",
}
VARIATIONS = {
    **{f"{NAMED}Steps, steps: {keys}}}": words for keys, words in STEPS.items()},
    **{f"{NAMED}Random, {keys}}}": words for keys, words in DRAWN.items()},
}
"""What may be wrong with how a link's rate varies."""

VALUES = {
    "network.gpbs=15": "did you mean network.gbps?",
    "network.gbps=-1": "network.gbps=-1 must be a positive number",
    "network.gbps=0": "network.gbps=0 must be a positive number",
    "network.gbps=nan": "network.gbps=nan must be a positive number",
    "network.gbps=inf": "network.gbps=inf must be a positive number",
    "network.gbps=fast": "network.gbps='fast' must be a positive number",
    "network.gbps='25 Gbps'": "network.gbps='25 Gbps' must be a positive number",
    "network.gbps=true": "network.gbps=True must be a positive number",
    "network.gbps=null": "network.gbps=None must be a positive number",
    "network.gbps=[1]": "network.gbps=[1] must be a positive number",
    "network.gbps=": "network.gbps='' must be a positive number",
    "network.gbps=${nope}": "network.gbps: Interpolation key 'nope' not found",
    "network.discipline=random": "must be one of fifo, queue_pair, priority",
    "+network.variation=fast": "network.variation='fast' must be a cost.variation.Steps or",
    "+network.variation.steps=[[0,1]]": "network.variation={'steps': [[0, 1]]} must be a cost.",
    **VARIATIONS,
    "policy.speculative_ratio=1.5": "policy.speculative_ratio=1.5 must be a number in [0, 1]",
    "selector.selection_ratio=-1": "selector.selection_ratio=-1 must be a number in [0, 1]",
    "workload.cached_ratio=2": "workload.cached_ratio=2 must be a number in [0, 1]",
    "workload.requests=0": "workload.requests=0 must be an integer of 1 or more",
    "workload.prompt_tokens=[]": "workload.prompt_tokens lists 0 lengths",
    "workload.prompt_tokens=[5,0,5,5,5,5]": "workload.prompt_tokens=0 must be an integer",
    "workload.prompt_tokens=x": "workload.prompt_tokens='x' must be an integer",
    "workload.prompt_tokens=7.5": "workload.prompt_tokens=7.5 must be an integer",
    "workload.output_tokens=0": "workload.output_tokens=0 must be an integer of 1 or more",
    "workload.abort_s=[[6,1]]": "workload.abort_s names 6",
    "workload.abort_s=soon": "workload.abort_s='soon' must be a list of pairs",
    "cluster.lost_s=[[6,1]]": "cluster.lost_s names 6",
    "seed=-1": "seed=-1 must be an integer of 0 or more",
    "blocks_per_layer=0": "blocks_per_layer=0 must be an integer of 1 or more",
    "mask_update=sometimes": "mask_update='sometimes' must be one of live, iteration",
    "record.transfers=maybe": "record.transfers='maybe' must be true or false",
    "record=3": "record=3 must be keys with values",
    "profile=nope.npz": "'nope.npz'",
    "profile=[1]": "profile=[1] must be the path of a file, or null",
    "figures=[nope]": "figures='nope' must be one of ctl, bars, gaps, stalls",
    "figures=ctl": "figures='ctl' must be a list of ctl, bars, gaps, stalls",
    "figures=null": "figures=None must be a list",
    "results_dir=null": "results_dir=None must be the path of a folder",
    "results_dir=": "results_dir='' must be the path of a folder",
    "policy.name=null": "policy.name=None must be a name",
    "gpu.hack=null": "gpu.hack makes a NoneType; it must make a HackCost",
    "policy._target_=smartgen.nope": "policy._target_='smartgen.nope' must name a class",
    "policy._target_=builtins.dict": "policy makes a dict; it must make a Policy",
    "backend._target_=builtins.dict": "must name a backend's class",
    "+policy.foo=1": "policy.foo=1 is no key; policy has name, order,",
    "+foo=1": "foo=1 is no key",
    "~mask_update": "mask_update is missing; it must be given",
    "~seed": "workload.seed: Interpolation key 'seed' not found",
    "~policy": "policy is missing; it must be given",
    "model=config": "model.config is missing; it must be given",
    "model.config=nope.json": "model.config='nope.json' cannot be read (No such file or directory)",
    "model.config=[1]": "model.config=[1] must be the path of a config.json, or null",
    "model.model_type=mamba": "model.model_type='mamba' must be one of llama, mistral",
    "model.num_hidden_layers=two": "model.num_hidden_layers='two' must be an integer of 1 or more",
    "model.head_dims=3": "did you mean model.head_dim?",
    "+model.kv_lora_rank=512": "model.kv_lora_rank=512 is no key; model has name, config,",
    "~model.hidden_size": "model.hidden_size is missing; it must be given",
    "~model.name": "model.name is missing; it must be given",
    "model.window_only=maybe": "model.window_only='maybe' must be true or false",
    "backend=virtual": "backend.memory_gib=8.0 allows less",
    "backend=emu": "emu.memory_gib=8.0 allows less",
}
"""What is wrong with one value, and what must be said about it."""

COMMANDS = {
    "policy=nope": "policy=nope is unknown; there are full, hack,",
    "policy=null": "asked for: policy=null",
    "nope=x": "nope=x is no key; the configuration has backend, policy",
    "experiment=nope": "experiment=nope is unknown; there are ablation",
    "--nope": "unrecognized arguments: --nope",
    "--cfg nope": "invalid choice: 'nope'",
    "--config-dir nope": "not found",
    "--config-dir": "expected one argument",
    "network.gbps": "missing EQUAL",
    "network.gbps=[1,": "'network.gbps=[1,' cannot be read",
    "network.gbps='15": "network.gbps='15",
    "network.gbps=15,32": "Ambiguous value for argument 'network.gbps=15,32'",
    "nonsense": "'nonsense' is neither a subcommand (plot, timeline, calibrate,",
    "-m network.gpbs=1,2": "did you mean network.gbps?",
    "-m network.gbps=-3,15": "network.gbps=-3 must be a positive number",
    "-m seed=1,2 network.gbps=-3": "network.gbps=-3 must be a positive number",
    "-m policy=full,nope": "policy=nope is unknown",
    "-m seed=1,2 figures=[nope]": "figures='nope' must be one of",
    "-m seed=1,2,1": "seed=1 is asked for twice",
    "-m results_dir=a,b": "results_dir cannot be swept",
    "experiment=compare seed=-1": "seed=-1 must be an integer of 0 or more",
    "plot": "plot needs a kind (ctl, bars, gaps, stalls, cdf, load, rate, needs, ",
    "plot ctl": "plot needs a kind (ctl, bars, gaps, stalls, cdf, load, rate, needs, ",
    "plot nope x": "plot='nope' must be one of ctl, bars, gaps, stalls",
    "plot ctl nowhere": "nowhere is not a run",
    "plot ctl x -o": "-o needs the file to write to",
    "timeline": "timeline needs one folder of a run, not 0",
    "timeline nowhere": "nowhere is not a run",
}
"""What is wrong with a command as a whole."""

FILES = {
    "a broken file": ("defaults: [base\nname: mine\n", "mine.yaml"),
    "a file without a name": (
        "defaults: [base, _self_]\nlanes: serial\n",
        "policy.name is missing",
    ),
    "a misspelt key": (
        "defaults: [base, _self_]\nname: mine\nodrer: random\n",
        "policy.odrer='random' is no key",
    ),
    "an unknown base": ("defaults: [bse, _self_]\nname: mine\n", "policy/bse"),
    "a list": ("- a\n- b\n", "policy=['a', 'b'] must be keys with values"),
    "an empty file": ("", "policy={} must have a _target_"),
    "a bad value": (
        "defaults: [base, _self_]\nname: mine\norder: best\n",
        "policy.order='best' must be one of",
    ),
}
"""What may be wrong with policy/mine.yaml of one's own."""


def assert_refused(told: Any, words: str) -> None:
    assert told.err.startswith("smartgen: ")
    assert told.err.count("\n") == 1, told.err
    assert words in told.err
    assert told.code == 1
    assert told.out == ""


@pytest.mark.parametrize(("override", "words"), VALUES.items(), ids=VALUES)
def test_a_wrong_value_is_refused_in_one_line(
    command: Command, tree: Tree, override: str, words: str
) -> None:
    assert_refused(command(override), words)
    assert tree() == []


@pytest.mark.parametrize(("line", "words"), COMMANDS.items(), ids=COMMANDS)
def test_a_wrong_command_is_refused_in_one_line(
    command: Command, tree: Tree, line: str, words: str
) -> None:
    assert_refused(command(*line.split(" ")), words)
    assert tree() == []


@pytest.mark.parametrize(("text", "words"), FILES.values(), ids=FILES)
def test_a_wrong_file_of_ones_own_is_refused_in_one_line(
    command: Command, tree: Tree, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text(text, encoding="utf-8")
    assert_refused(command("--config-dir", str(tmp_path), "policy=mine"), words)
    assert tree() == ["policy", "policy/mine.yaml"]


def test_a_profile_must_be_a_profile_and_fit_the_model(
    command: Command, tree: Tree, tmp_path: Path
) -> None:
    (tmp_path / "text.npz").write_text("no profile", encoding="utf-8")
    Profile(np.zeros((39, 1000)), "layers", 1, 9999).save(tmp_path / "layers.npz")
    Profile(np.zeros((40, 999)), "blocks", 1, 9999).save(tmp_path / "blocks.npz")
    before = tree()
    assert_refused(command("profile=text.npz"), "'text.npz' cannot be read")
    assert_refused(command("profile=layers.npz"), "holds 39 layers x 1000 blocks")
    assert_refused(command("profile=blocks.npz"), "holds 40 layers x 999 blocks")
    assert tree() == before


def test_results_below_a_file_are_refused_before_the_run(
    command: Command, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(SimBackend, "run", None)
    assert_refused(command("results_dir=file/below"), "cannot be written: Not a directory")
    assert_refused(command("-m", "results_dir=file", "seed=1,2"), "cannot be written")
    assert tree() == ["file"]


def test_hardware_that_is_missing_is_named_all_at_once(
    command: Command, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smartgen.hw import preflight

    monkeypatch.setattr(preflight, "PACKAGES", {"no_such_package": "the package nope"})
    monkeypatch.setattr(preflight, "GPU_DEVICES", tmp_path / "nvidia")
    monkeypatch.setattr(preflight, "RDMA_DEVICES", tmp_path / "infiniband")
    told = command("backend=hw")
    words = "backend=hw needs the package nope, an NVIDIA GPU with its driver, an RDMA device"
    assert_refused(told, words)
    assert tree() == []


def test_hardware_that_is_there_is_not_used_yet(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smartgen.hw import preflight

    (tmp_path / "device").touch()
    monkeypatch.setattr(preflight, "PACKAGES", {})
    monkeypatch.setattr(preflight, "GPU_DEVICES", tmp_path)
    monkeypatch.setattr(preflight, "RDMA_DEVICES", tmp_path)
    assert_refused(command("backend=hw"), "is not part of this version")


def test_a_bad_point_of_a_sweep_is_named_and_finished_points_stay(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    told = command("-m", "hydra/launcher=basic", "network.gbps=15,-3", *tiny_run)
    progress, line = told.err.splitlines()
    assert progress.startswith("[1/2] network.gbps=15: ")
    assert line == (
        "smartgen: network.gbps=-3 must be a positive number; 1 of 2 points is finished and kept"
    )
    assert told.code == 1
    (sweep,) = (tmp_path / "results" / "sweeps").iterdir()
    kept = sorted(path.name for path in sweep.iterdir())
    assert kept == ["multirun.yaml", "network.gbps=15"]


def test_a_figure_that_cannot_be_written_is_refused(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    assert command(*tiny_run).code == 0
    (run,) = (tmp_path / "results" / "runs").iterdir()
    (tmp_path / "file").touch()
    told = command("plot", "ctl", str(run), "-o", "file/ctl.png")
    assert_refused(told, "the figure cannot be written to file/ctl")


def test_a_fault_of_ours_keeps_its_traceback(
    command: Command, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(SimBackend, "run", fail)
    with pytest.raises(KeyError, match="a fault of ours"):
        command()
    assert tree() == []


def test_a_machine_without_enough_memory_is_told_so(
    command: Command, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr(SimBackend, "run", fail)
    assert_refused(command(), "out of memory: Unable to allocate 3 TiB")
    assert tree() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["network.gbps=-1"], "network.gbps=-1 must be a positive number"),
        (["--nope"], "unrecognized arguments: --nope"),
        (["plot", "ctl", "nowhere"], "nowhere is not a run"),
        (["-m", "seed=-2,-3"], "seed=-2 must be an integer"),
    ],
    ids=str,
)
def test_a_process_of_its_own_does_the_same(
    tmp_path: Path, tree: Tree, arguments: list[str], words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "smartgen", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"},
    )
    assert done.stderr.startswith("smartgen: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    assert tree() == []
