"""smartgen calibrate: what it prints, what it writes, what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import smartgen
from smartgen.metrics.store import read_run

POINTS = Path(smartgen.__file__).parent / "calibrate" / "points"

Command = Callable[..., Any]


def points(name: str) -> list[str]:
    return [str(path) for path in sorted(POINTS.glob(f"{name}_*.csv"))]


def test_it_prints_values_inputs_errors_methods_and_lines_for_a_card(command: Command) -> None:
    told = command("calibrate", *points("a100_sxm"))
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == "hardware: NVIDIA A100-SXM4-80GB (specified: 312 TFLOPS, 2,039 GB/s)"
    assert lines[1].split("  ")[0] == "constant"
    names = ("matmul_tflops", "attention_tflops", "weights_efficiency", "attend_efficiency")
    for name in names:
        assert sum(line.startswith(f"gpu.{name}: time = overhead + ") for line in lines) == 1
        assert sum(line.startswith(f"gpu.{name}  ") for line in lines) == 1
        (measured,) = [line for line in lines if line.startswith(f"{name}: ")]
        assert "# measured: a100_sxm_" in measured and "% median" in measured


@pytest.mark.parametrize(
    ("group", "name", "field"),
    [
        ("gpu", "a100_sxm", "matmul_tflops"),
        ("gpu", "l20", "attention_tflops"),
        ("host", "v100s_host", "offload_gbytes_per_s"),
        ("network", "physical_25g", "pair_us"),
    ],
)
def test_a_card_that_it_writes_can_be_run(
    command: Command,
    tiny_run: tuple[str, ...],
    tmp_path: Path,
    group: str,
    name: str,
    field: str,
) -> None:
    card = tmp_path / "mine" / group / "my card.yaml"
    card.parent.mkdir(parents=True)
    told = command("calibrate", *points(name), "-o", str(card))
    assert (told.code, told.err) == (0, "")
    assert told.out.endswith(f"card: {card}\n")
    assert [path.name for path in card.parent.iterdir()] == ["my card.yaml"]
    text = card.read_text(encoding="utf-8")
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        if value[:1].isdigit():
            assert (
                "# measured: " in line or "# guess: " in line or "# spec" in line or key == "gbps"
            )
    told = command("--config-dir", "mine", f"{group}=my card", *tiny_run)
    assert (told.code, told.err) == (0, "")
    (run,) = (tmp_path / "results" / "runs").iterdir()
    config = read_run(run).config[group]
    assert config["name"] == "my card"
    assert f"{field}: {config[field]}" in text


WRONG = {
    ("calibrate", "nowhere.csv"): "nowhere.csv: No such file",
    ("calibrate", "."): ".: is a folder; calibrate takes files",
    ("calibrate", "-x", "t"): "'-x' is no option; calibrate has -o CARD.yaml",
    ("calibrate", "tflops=3"): "'tflops=3' is neither a file nor a key; calibrate has memory_gb",
    ("calibrate", *points("l20"), "-o"): "-o needs the file to write to",
    (
        "calibrate",
        *points("l20"),
        "-o",
        "no/where.yaml",
    ): "-o no/where.yaml must be a file in a folder that",
    ("calibrate", *points("l20"), "-o", "."): "-o . must be a file in a folder that exists",
    ("calibrate", *points("l20"), *points("a100_host"), "-o", "x"): "-o writes one card, and these",
    ("calibrate", *points("l20"), "name=x"): "name= goes without files; a card from files is named",
    ("calibrate", *points("physical_25g"), "gbps=x"): "calibrate: gbps='x' must be a positive num",
    ("calibrate", *points("a100_host"), "system=none"): "system='none' stands for 0 systems",
}


@pytest.mark.parametrize(("arguments", "told"), WRONG.items(), ids=lambda value: str(value)[-40:])
def test_what_is_wrong_is_told_in_one_line_and_nothing_is_written(
    command: Command, tree: Callable[[], list[str]], arguments: tuple[str, ...], told: str
) -> None:
    done = command(*arguments)
    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert tree() == []
