"""Sweeps: names of folders, fingerprints, and which points are finished."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from smartgen import provenance, sweep
from smartgen.provenance import fingerprint, source_digest
from smartgen.sweep import choices, finished_points, is_done, kept_points, point_name

CONFIG: dict[str, Any] = {
    "network": {"gbps": 15},
    "seed": 0,
    "profile": None,
    "figures": ["ctl"],
    "results_dir": "results",
}


def asked(
    *task: str, experiment: str | None = None, config_dir: str | None = None, **params: str
) -> DictConfig:
    """What Hydra says of a command."""
    sources = [{"path": "smartgen.conf", "schema": "pkg", "provider": "main"}]
    if config_dir:
        sources.append({"path": config_dir, "schema": "file", "provider": "command-line"})
    return OmegaConf.create(
        {
            "policy": {"name": "smartgen"},
            "hydra": {
                "sweeper": {"params": params or None},
                "overrides": {"task": list(task)},
                "runtime": {"choices": {"experiment": experiment}, "config_sources": sources},
                "job": {"config_name": "config"},
            },
        }
    )


def sweep_name(*task: str, **kwargs: Any) -> str:
    return sweep._command_name(asked(*task, **kwargs), is_sweep=True)


@pytest.fixture
def _hydra() -> Iterator[None]:
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        yield


# -- what was asked for


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize(
    ("task", "number"),
    [
        ((), 1),
        (("seed=1",), 1),
        (("seed=1,2",), 2),
        (("seed=range(0,5)", "network.gbps=15,25,32", "policy=full"), 15),
        (("policy=glob(order_*)",), 4),
        (("+policy.reuse=true,false", "~selector"), 2),
        (("network.name='a,b',c",), 2),
        (("workload.prompt_tokens=[5,6],[7,8]",), 2),
    ],
)
def test_a_sweep_has_the_product_of_its_values_as_points(
    task: tuple[str, ...], number: int
) -> None:
    found = 1
    for options in choices(asked(*task)).values():
        found *= len(options)
    assert found == number


@pytest.mark.usefixtures("_hydra")
def test_an_override_replaces_what_an_experiment_sweeps_over() -> None:
    config = asked("experiment=x", "seed=7", seed="1,2,3", policy="full,partial")
    assert choices(config) == {
        "seed": ["seed=7"],
        "policy": ["policy=full", "policy=partial"],
        "experiment": ["experiment=x"],
    }


# -- names


def test_an_experiment_alone_names_its_folder() -> None:
    assert sweep_name("experiment=compare", experiment="compare") == "compare"


def test_what_does_not_change_results_does_not_change_the_name() -> None:
    plain = sweep_name("seed=1,2")
    assert sweep_name("seed=1,2", "figures=[]") == plain
    assert sweep_name("seed=1,2", "results_dir=elsewhere", "++figures=[ctl]") == plain


def test_two_commands_have_two_names() -> None:
    names = [
        sweep_name(),
        sweep_name("seed=1,2"),
        sweep_name("seed=2,1"),
        sweep_name("seed=1,2", "policy=full"),
        sweep_name("experiment=a,b"),
        sweep_name("experiment=a", experiment="a"),
        sweep_name("experiment=a", "seed=1", experiment="a"),
        sweep_name("experiment=a", experiment="a", config_dir="/mine"),
        sweep_name("experiment=a", experiment="a", config_dir="/yours"),
        sweep_name("experiment=papers/a", experiment="papers/a"),
        sweep_name("experiment=papers_a", experiment="papers_a"),
    ]
    assert len(set(names)) == len(names)
    assert not any("/" in name for name in names)


def test_a_run_is_named_after_its_scheme() -> None:
    assert sweep._command_name(asked(), is_sweep=False) == "smartgen"
    named = sweep._command_name(asked("policy=full"), is_sweep=False)
    assert named.startswith("smartgen-")


def test_a_point_is_named_after_what_differs() -> None:
    overrides = ["policy=full", "seed=3", "network.gbps=15", "model=tiny"]
    assert point_name(overrides, ["policy", "network.gbps"]) == "network.gbps=15,policy=full"


def test_a_point_that_differs_from_no_other_is_called_point() -> None:
    assert point_name(["seed=3"], []) == "point"


@given(st.text())
def test_a_command_reaches_workers_whatever_its_folder_is_called(folder: str) -> None:
    told = sweep.Command(folder=folder, swept=["policy"])
    override = f"++it='{told.text()}'"
    (parsed,) = OverridesParser.create().parse_overrides([override])
    env_set = OmegaConf.create({sweep.COMMAND: parsed.value()})
    hydra = OmegaConf.create({"job": {"env_set": env_set}})
    assert sweep.command_of(hydra) == told


@given(st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True))
def test_names_are_safe_and_as_different_as_what_they_stand_for(values: list[str]) -> None:
    names = [sweep._safe(value) for value in values]
    assert len(set(names)) == len(values)
    for name in names:
        assert name.isascii()
        assert 0 < len(name) <= 170
        assert not name.startswith(".")
        assert "/" not in name


# -- fingerprints


def test_a_fingerprint_depends_on_the_configuration_only_where_results_do() -> None:
    plain = fingerprint(CONFIG)
    assert fingerprint({**CONFIG, "figures": [], "results_dir": "elsewhere"}) == plain
    assert fingerprint({**CONFIG, "seed": 1}) != plain
    assert fingerprint({**CONFIG, "network": {"gbps": 15.5}}) != plain


def test_a_fingerprint_depends_on_what_the_profile_says(tmp_path: Path) -> None:
    config = {**CONFIG, "profile": str(tmp_path / "profile.npz")}
    absent = fingerprint(config)
    (tmp_path / "profile.npz").write_bytes(b"one")
    first = fingerprint(config)
    (tmp_path / "profile.npz").write_bytes(b"two")
    assert len({absent, first, fingerprint(config)}) == 3


def test_a_fingerprint_depends_on_the_source_that_makes_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        source_digest.cache_clear()
        return source_digest()

    package = tmp_path / "smartgen"
    for name in ("engine", "plot", "emu"):
        (package / name).mkdir(parents=True)
        (package / name / "it.py").write_text("x = 1\n")
    (tmp_path / "sim").mkdir()
    (package / "sim").symlink_to("../sim")
    (package / "sim" / "nodes.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    before = digest()
    (package / "plot" / "it.py").write_text("x = 2\n")
    (package / "cli.py").write_text("x = 2\n")
    (package / "emu" / "measure.py").write_text("x = 2\n")
    (package / "engine" / "notes.txt").write_text("x = 2\n")
    assert digest() == before
    (tmp_path / "sim" / "nodes.py").write_text("x = 2\n")
    after = digest()
    assert after != before
    (package / "engine" / "it.py").rename(package / "engine" / "that.py")
    assert digest() not in (before, after)
    source_digest.cache_clear()


def test_a_commit_is_told_of_a_checkout_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "smartgen")
    provenance._commit.cache_clear()
    assert provenance._commit() is None
    provenance._commit.cache_clear()


# -- what is kept


def finish(folder: Path, number: int, mark: str = "a", source: str | None = None) -> None:
    folder.mkdir(parents=True)
    told = {"fingerprint": mark, "point": number, "source_digest": source or source_digest()}
    (folder / "provenance.json").write_text(json.dumps(told))
    (folder / "metrics.json").write_text("{}")


def test_finished_points_come_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    for number, name in enumerate(("seed=9", "seed=10", "seed=2")):
        finish(tmp_path / name, number)
    assert [path.name for path in finished_points(tmp_path)] == ["seed=9", "seed=10", "seed=2"]


def test_what_is_half_written_is_not_finished(tmp_path: Path) -> None:
    finish(tmp_path / "seed=1", 0)
    finish(tmp_path / ".seed=2.partial", 1)
    (tmp_path / "seed=2").mkdir()
    assert [path.name for path in finished_points(tmp_path)] == ["seed=1"]
    assert not is_done(tmp_path / "seed=2", "a")


def test_only_the_very_same_result_is_done(tmp_path: Path) -> None:
    finish(tmp_path / "point", 0)
    assert is_done(tmp_path / "point", "a")
    assert not is_done(tmp_path / "point", "b")
    (tmp_path / "point" / "provenance.json").write_text("{")
    assert not is_done(tmp_path / "point", "a")


def test_points_that_are_not_asked_for_or_of_another_source_are_not_kept(tmp_path: Path) -> None:
    finish(tmp_path / "seed=1", 0)
    finish(tmp_path / "seed=2", 1, source="older")
    finish(tmp_path / "seed=3", 2)
    begun = sweep.Started(asked(), tmp_path, [], ["seed=1", "seed=2", "seed=4"])
    assert kept_points(begun) == 1


def test_a_sweep_that_was_cut_short_is_tidied_but_not_robbed(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "sweeps" / "x"
    made = [folder, folder.parent, folder.parent.parent]
    folder.mkdir(parents=True)
    (folder / "multirun.yaml").touch()
    (folder / "seed=2").mkdir()
    (folder / ".seed=2.partial").mkdir()
    (folder / ".seed=2.partial" / "metrics.json").touch()
    (folder / ".notes-0123abcd").mkdir()
    (folder / ".notes-0123abcd" / "1.running").touch()
    begun = sweep.Started(asked(), folder, made, ["seed=1", "seed=2"])
    finish(folder / "seed=1", 0)
    sweep.tidy(begun)
    assert sorted(path.name for path in folder.iterdir()) == ["multirun.yaml", "seed=1"]
    for path in (folder / "seed=1").iterdir():
        path.unlink()
    sweep.tidy(begun)
    assert list(tmp_path.iterdir()) == []
