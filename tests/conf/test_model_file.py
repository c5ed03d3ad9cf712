"""model.config=PATH: a config.json in the place of a model that ships."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smartgen.metrics.store import read_run

Command = Callable[..., Any]

TEXT: dict[str, Any] = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 64,
}
KEYS = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {**TEXT, "rope": 1e6}}
ENTRY_BYTES = 2 * 2 * 16 * 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A config.json in a folder of the model's name."""
    (tmp_path / "Mine-6L").mkdir()
    path = tmp_path / "Mine-6L" / "config.json"
    path.write_text(json.dumps(KEYS), encoding="utf-8")
    return path


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("group", ["tiny", "config", "deepseek_v3"])
def test_a_file_counts_whatever_model_is_selected_beside_it(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path, group: str
) -> None:
    told = command(*tiny_run, f"model={group}", "model.config=Mine-6L/config.json", "policy=full")
    assert (told.code, told.err) == (0, "")
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    run = read_run(folder)
    ours = {"name": "Mine-6L", "config": "Mine-6L/config.json", "window_only": False}
    assert run.config["model"] == {**ours, **TEXT, "torch_dtype": "bfloat16"}
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["cards"]["model"] == "Mine-6L"
    assert run.metrics["bytes"]["proactive"] == 6 * (180 + 250 + 301 + 97) * ENTRY_BYTES


@pytest.mark.usefixtures("file")
def test_windows_only_can_be_asked_for_beside_it(
    command: Command, tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    told = command(*tiny_run, "model.config=Mine-6L", "model.window_only=true", "policy=full")
    assert (told.code, told.err) == (0, "")
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    sent = read_run(folder).metrics["bytes"]["proactive"]
    assert sent == (5 * 4 * 64 + 180 + 250 + 301 + 97) * ENTRY_BYTES


def test_a_point_is_made_again_when_the_file_has_changed(
    command: Command, tiny_run: tuple[str, ...], file: Path
) -> None:
    sweep = ("-m", "hydra/launcher=basic", *tiny_run[1:], "model.config=Mine-6L", "seed=1,2")
    assert "kept" not in command(*sweep).err
    assert command(*sweep).err.count("kept") == 2
    file.write_text(json.dumps({**TEXT, "num_hidden_layers": 5}), encoding="utf-8")
    assert "kept" not in command(*sweep).err


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("typed", ["model.num_hidden_layers=2", "+model.sliding_window=8"])
@pytest.mark.parametrize("sweep", [(), ("-m", "seed=1,2")])
def test_keys_beside_a_file_are_refused_because_they_would_not_count(
    command: Command, tmp_path: Path, typed: str, sweep: tuple[str, ...]
) -> None:
    told = command(*sweep, "model.config=Mine-6L", typed)
    assert told.code == 1 and told.err.count("\n") == 1
    assert f"{typed} has no effect beside model.config='Mine-6L'" in told.err
    assert not (tmp_path / "results").exists()


def test_what_is_wrong_in_a_file_is_said_with_its_path(
    command: Command, tmp_path: Path, file: Path
) -> None:
    file.write_text(json.dumps({**KEYS, "text_config": {"model_type": "x"}}), encoding="utf-8")
    told = command("model.config=Mine-6L")
    assert told.err.startswith("smartgen: in model.config='Mine-6L', model.model_type='x' must be")
    assert told.code == 1 and not (tmp_path / "results").exists()
