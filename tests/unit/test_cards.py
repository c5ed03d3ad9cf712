"""The shipped cards are what calibrate makes of the points kept beside it, and of whole tables."""

import re
from pathlib import Path

import pytest

import smartgen
from smartgen.calibrate.command import calibration
from smartgen.calibrate.constants import ATTEND, ATTENTION, MATMUL, WEIGHTS, Constant
from smartgen.calibrate.digest import representative
from smartgen.calibrate.tables import read_table

ROOT = Path(__file__).resolve().parents[2]
CONF = Path(smartgen.__file__).parent / "conf"
POINTS = Path(smartgen.__file__).parent / "calibrate" / "points"
TABLES = ROOT.parent / "shared" / "data"

whole_tables = pytest.mark.skipif(
    not TABLES.is_dir(), reason="the whole tables are not beside this checkout"
)


def fitted(*paths: Path, **told: str) -> dict[str, Constant]:
    """Constants by name."""
    found = calibration([read_table(path) for path in paths], told).found
    return {one.name: one for one in found.constants}


V100S = 130 / 112
"""Peak of V100S over V100 PCIe, by specification."""

CARDS = {
    "gpu/l20": ("l20", 1.0),
    "gpu/a100_sxm": ("a100_sxm", 1.0),
    "gpu/l40s": ("l40s", 1.0),
    "gpu/h100": ("h100", 1.0),
    "gpu/h200": ("h200", 1.0),
    "gpu/v100s": ("v100_pcie", V100S),
    "host/a100_host": ("a100_host", 1.0),
    "host/v100s_host": ("v100s_host", 1.0),
    "network/physical_25g": ("physical_25g", 1.0),
}
"""Cards that rest on points: how these are named, and by what a matrix rate is scaled."""

WHOLE = {
    "gpu/l20": ("l20_measured/*.csv", {}),
    "gpu/a100_sxm": ("aiconfigurator/a100_sxm_*_bf16_*.csv", {}),
    "gpu/l40s": ("aiconfigurator/l40s_*_bf16_*.csv", {}),
    "gpu/h100": ("aiconfigurator/h100_sxm_*_bf16_*.csv", {}),
    "gpu/h200": ("aiconfigurator/h200_sxm_*_bf16_*.csv", {}),
    "gpu/v100s": ("apex_plus/V100-PCIE-16GB_gemm_trimmed.csv", {}),
    "host/a100_host": ("pcie/pinned_copy_bandwidth.csv", {"system": "Della"}),
    "host/v100s_host": ("pcie/pinned_copy_bandwidth.csv", {"system": "Tiger"}),
    "network/physical_25g": ("rdma_perftest/mlx4_*.csv", {"gbps": "25"}),
}
"""From which whole tables each could be made."""


def line_of(card: str, field: str) -> str:
    text = (CONF / f"{card}.yaml").read_text(encoding="utf-8")
    match = re.search(rf"^{field}: .*$", text, re.MULTILINE)
    assert match, f"{card} has no {field}"
    return match[0]


def scaled(card: str, one: Constant) -> float:
    return one.value * (CARDS[card][1] if one.field == "matmul_tflops" else 1.0)


def in_card(found: dict[str, Constant]) -> list[Constant]:
    return [one for one in found.values() if one.name != "host.copy_gbytes_per_s"]


def points_of(card: str) -> list[Path]:
    return sorted(POINTS.glob(f"{CARDS[card][0]}_[a-z]*.csv"))


@pytest.mark.parametrize("card", CARDS)
def test_every_number_of_a_card_is_what_its_points_give(card: str) -> None:
    constants = in_card(fitted(*points_of(card)))
    assert constants
    for one in constants:
        value = line_of(card, one.field).split()[1]
        digits = len(value.partition(".")[2])
        assert f"{scaled(card, one):.{digits}f}" == value, one.name


@pytest.mark.parametrize("card", ["host/a100_host", "host/v100s_host"])
def test_the_load_rate_is_a_gather_and_the_measured_copy_in_series(card: str) -> None:
    copy = fitted(*points_of(card))["host.copy_gbytes_per_s"].value
    line = line_of(card, "load_gbytes_per_s")
    assert f"then copy at {copy:.1f} (measured" in line
    assert line.split()[1] == f"{1 / (1 / 6.3 + 1 / copy):.1f}"


@pytest.mark.parametrize("path", sorted(POINTS.glob("*.csv")), ids=lambda path: path.stem)
def test_points_are_few_and_say_where_they_come_from(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for i, key in enumerate(("source", "licence", "hardware", "rows")):
        assert lines[i].startswith(f"# {key}: ")
    assert 1 <= len(read_table(path).rows) <= 12
    assert any(path in points_of(card) for card in CARDS)


@whole_tables
@pytest.mark.parametrize("card", CARDS)
def test_whole_tables_give_a_card_within_the_error_that_it_states(card: str) -> None:
    pattern, told = WHOLE[card]
    constants = in_card(fitted(*sorted(TABLES.glob(pattern)), **told))
    assert constants
    for one in constants:
        line = line_of(card, one.field)
        stated = re.search(r"error ([\d.]+) % median", line)
        assert stated, line
        assert float(stated[1]) == pytest.approx(one.law.median_error * 100, abs=0.051), one.name
        off = abs(float(line.split()[1]) / scaled(card, one) - 1)
        printed = 10.0 ** -len(line.split()[1].partition(".")[2]) / 2 / float(line.split()[1])
        assert off <= one.law.median_error + printed, one.name


@whole_tables
@pytest.mark.parametrize("card", CARDS)
def test_the_page_says_of_every_constant_what_the_command_does(card: str) -> None:
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    for one in fitted(*sorted(TABLES.glob(WHOLE[card][0])), **WHOLE[card][1]).values():
        name = re.escape(card.partition("/")[2])
        match = re.search(rf"^\| {name}[^|]* \| {one.field} \| (.*)$", page, re.MULTILINE)
        assert match, one.name
        cells = match[1].strip("| ").split(" | ")
        alone = one.value * one.alone.rate / one.law.rate
        assert cells[1:] == [
            f"{one.value:.{one.digits}f} of {one.used:,} rows",
            f"{one.law.overhead_s * 1e6:.0f} us",
            f"{one.law.median_error * 100:.1f} %",
            f"{one.law.worst_error * 100:.0f} %",
            f"{alone:.{one.digits}f}, {one.alone.median_error * 100:.1f} %",
        ]


@whole_tables
@pytest.mark.parametrize("card", CARDS)
def test_points_are_rows_of_the_whole_tables(card: str) -> None:
    whole = {
        line
        for path in TABLES.glob(WHOLE[card][0])
        for line in path.read_text(encoding="utf-8").splitlines()
    }
    for path in points_of(card):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert {line for line in lines if not line.startswith("#")} <= whole


@whole_tables
@pytest.mark.parametrize(
    ("rule", "table", "kept"),
    [
        (MATMUL, "gemm", "gemm_prefill"),
        (WEIGHTS, "gemm", "gemm_weights"),
        (ATTENTION, "context_attention", "prefill_attention"),
        (ATTEND, "generation_attention", "decoding_attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_points_are_chosen_by_a_rule_and_not_by_what_comes_of_them(
    rule: object, table: str, kept: str
) -> None:
    (path,) = TABLES.glob(f"aiconfigurator/a100_sxm_{table}_bf16_*.csv")
    whole = read_table(path)
    chosen = [whole.rows[i] for i in representative(rule, whole)]  # type: ignore[arg-type]
    assert list(read_table(POINTS / f"a100_sxm_{kept}.csv").rows) == chosen


LAYER = ((7168, 5120), (5120, 5120), (16384, 5120), (16384, 5120), (5120, 16384))
"""[n, k] of the GEMMs of a layer like Qwen3-14B's, among the sizes that the tables have."""


@whole_tables
@pytest.mark.parametrize("card", ["gpu/a100_sxm", "gpu/l40s", "gpu/h100", "gpu/h200"])
def test_a_cards_one_matrix_rate_tells_a_layer_within_9_percent(card: str) -> None:
    (path,) = TABLES.glob(WHOLE[card][0].replace("_*_bf16", "_gemm_bf16"))
    rows = read_table(path).rows
    time_s = {(row["m"], row["n"], row["k"]): float(row["time_s"]) for row in rows}
    rate = float(line_of(card, "matmul_tflops").split()[1]) * 1e12
    for m in (1024, 2048, 4096, 8192):
        measured = sum(time_s[m, n, k] for n, k in LAYER)
        told = sum(2 * m * n * k for n, k in LAYER) / rate
        assert told == pytest.approx(measured, rel=0.09), m
