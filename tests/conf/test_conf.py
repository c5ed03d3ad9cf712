"""Every file of the configuration composes into an experiment whose classes accept it."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

import smartgen
from smartgen.compose import backend_of, experiment_of, figures_of
from smartgen.experiment import Experiment
from smartgen.metrics.store import read_run

CONF = Path(smartgen.__file__).parent / "conf"
GROUPS = sorted(path.name for path in CONF.iterdir() if any(path.glob("*.yaml")))
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
NEEDS = {
    "workload=mooncake": "workload.path=examples/mooncake_sample.jsonl",
    "workload=azure": "workload.path=examples/azure_sample.csv",
}
"""What an option cannot do without."""
EXPERIMENTS = [option for group, option in OPTIONS if group == "experiment"]


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=True)


@pytest.mark.parametrize(
    ("group", "option"),
    [o for o in OPTIONS if o[1] != "base" and o not in (("backend", "hw"), ("model", "config"))],
)
def test_every_option_makes_an_experiment(
    group: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    override = f"{group}={option}"
    config = composed(override, *([NEEDS[override]] if override in NEEDS else []))
    assert isinstance(experiment_of(config), Experiment)
    assert figures_of(config)
    assert backend_of(config).name == (option if group == "backend" else "sim")


def test_every_scheme_bears_the_name_of_its_file() -> None:
    schemes = [option for group, option in OPTIONS if group == "policy" and option != "base"]
    files = [OmegaConf.load(CONF / "policy" / f"{option}.yaml") for option in schemes]
    assert [file.name for file in files] == schemes


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_point_of_every_experiment_makes_an_experiment(name: str) -> None:
    config = composed(f"experiment={name}")
    params: dict[str, Any] = dict(config.hydra.sweeper.params or {})
    swept = [[f"{key}={value}" for value in str(params[key]).split(",")] for key in params]
    for point in itertools.product(*swept):
        assert isinstance(experiment_of(composed(f"experiment={name}", *point)), Experiment)


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_file_begins_by_saying_what_it_is(group: str, option: str) -> None:
    text = (CONF / group / f"{option}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_file_says_how_to_run_it(name: str) -> None:
    text = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# @package _global_\n")
    assert f"# smartgen experiment={name}" in text


def test_a_scheme_of_three_lines_works_from_a_folder_of_ones_own(
    command: Callable[..., Any], tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "mine" / "policy").mkdir(parents=True)
    (tmp_path / "mine" / "policy" / "eager.yaml").write_text(
        "defaults: [smartgen, _self_]\nname: eager\nspeculative_ratio: 0.5\n", encoding="utf-8"
    )
    told = command("--config-dir", "mine", "policy=eager", *tiny_run)
    assert (told.code, told.err) == (0, "")
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    policy = read_run(folder).config["policy"]
    assert (policy["name"], policy["speculative_ratio"]) == ("eager", 0.5)
    assert policy["decode_start"] == "handover"
    assert "eager" in told.out
