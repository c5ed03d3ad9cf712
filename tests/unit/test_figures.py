"""Figures: seeds as one point, what is stated beside what came out, and each kind's own reading."""

from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from smartgen import plot
from smartgen.errors import SmartGenError
from smartgen.metrics.store import Run
from smartgen.plot import map as speculation
from smartgen.plot.marks import Mark
from smartgen.plot.panels import panels
from smartgen.plot.phases import prefill_s, ratio, transfer_s
from smartgen.plot.seeds import points
from smartgen.plot.style import SCHEMES, looks
from smartgen.plot.swept import swept

RunOf = Callable[..., Run]


def ttst_s(run: Run) -> float | None:
    mean: float | None = run.metrics["ttst_s"]["mean"]
    return mean


@pytest.mark.parametrize("kind", [k for k in plot.KINDS if k not in ("map", "needs", "agreement")])
def test_a_sweep_over_seeds_can_be_drawn(kind: str, seeded: list[Run], tmp_path: Path) -> None:
    plot.draw(kind, seeded, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_runs_that_differ_in_seeds_are_a_point_of_the_nominal_run_and_a_spread(
    seeded: list[Run],
) -> None:
    found = points(seeded)
    assert [(point.run.label, len(point.runs)) for point in found] == 2 * [
        ("full", 4),
        ("smartgen", 4),
    ]
    first = found[0]
    drawn = [run.metrics["ttst_s"]["mean"] for run in seeded[4::4]]
    assert first.numbers == [0, 4, 8, 12] and first.run is seeded[0]
    assert first.value(ttst_s) == seeded[0].metrics["ttst_s"]["mean"]
    assert first.ends(ttst_s) == (min(drawn), max(drawn)) and len(set(drawn)) == 3


def test_without_a_nominal_run_a_point_is_the_mean_over_seeds(seeded: list[Run]) -> None:
    (point,) = points(seeded[4::4])
    drawn = [run.metrics["ttst_s"]["mean"] for run in seeded[4::4]]
    assert point.value(ttst_s) == pytest.approx(sum(drawn) / 3)
    assert point.ends(ttst_s) == (min(drawn), max(drawn))


def test_a_curve_over_seeds_has_the_nominal_runs_numbers_and_its_ends(seeded: list[Run]) -> None:
    point = points(seeded)[0]
    center, low, high = point.curves(lambda run: np.array(run.metrics["ctl_s"]))
    assert center.tolist() == seeded[0].metrics["ctl_s"]
    drawn = np.array([run.metrics["ctl_s"] for run in seeded[4::4]])
    assert (low == drawn.min(axis=0)).all() and (high == drawn.max(axis=0)).all()


def test_spreads_that_were_swept_and_runs_of_two_versions_are_no_seeds(
    runs: list[Run], tmp_path: Path, run_of: RunOf
) -> None:
    spread = [
        run_of(tmp_path / str(cv), f"workload.length_cv={cv}", "seed=1") for cv in (0, 0.2, 0.4)
    ]
    assert [len(point.runs) for point in points(spread)] == [1, 1, 1]
    assert [len(point.runs) for point in points(spread[:2])] == [1, 1]
    assert [len(point.runs) for point in points([runs[0], runs[0]])] == [1, 1]


def test_seeds_are_no_part_of_what_was_swept(seeded: list[Run]) -> None:
    for kind in ("rate", "needs", "latencies"):
        found = swept(kind, seeded)
        assert found.key == "network.gbps"
        assert {line.label: line.x.tolist() for line in found.lines} == {
            "full": [0.05, 0.1],
            "smartgen": [0.05, 0.1],
        }


def test_networks_are_swept_by_their_rates_and_the_unlimited_one_is_the_ideal(
    tmp_path: Path, run_of: RunOf
) -> None:
    runs = [
        run_of(tmp_path / f"{name},{policy}", f"network={name}", f"policy={policy}", gbps)
        for name, gbps in (
            ("elastic_25g", "network.gbps=0.1"),
            ("elastic_15g", "network.gbps=0.05"),
            ("unlimited", "network.gbps=1000"),
        )
        for policy in ("smartgen", "full")
    ]
    found = swept("latencies", runs)
    assert {line.label: line.x.tolist() for line in found.lines} == {
        "smartgen": [0.05, 0.1],
        "full": [0.05, 0.1],
    }
    assert found.ideal is not None and found.ideal.run is runs[-1]
    plot.draw("latencies", runs, tmp_path / "figure.png")


def test_lengths_of_a_batch_are_swept_by_the_tokens_of_all(tmp_path: Path, run_of: RunOf) -> None:
    runs = [
        run_of(tmp_path / f"{tokens}", f"workload.prompt_tokens={tokens}") for tokens in (100, 250)
    ]
    found = swept("latencies", runs)
    assert (found.axis, found.lines[0].x.tolist()) == ("batched input tokens (K)", [0.4, 1.0])


MARKED = {
    "latencies": ["ttst_s", "tbt_s"],
    "bars": ["ttst_s", "tbt_s"],
    "gaps": ["tbt_s", "worst_gap_s", "delivered_token"],
    "phases": ["prefill_s", "transfer_s", "transfer_over_prefill"],
}


@pytest.mark.parametrize(
    ("kind", "metric"), [(kind, metric) for kind, metrics in MARKED.items() for metric in metrics]
)
def test_what_is_stated_is_drawn_where_it_says(
    kind: str, metric: str, sweep: list[Run], tmp_path: Path
) -> None:
    assert list(plot.KINDS[kind].METRICS) == MARKED[kind]
    for name, marks in (
        ("plain", []),
        ("low", [Mark(0, metric, 4.0)]),
        ("high", [Mark(0, metric, 6.0, "C032")]),
    ):
        plot.draw(kind, sweep, tmp_path / f"{name}.png", marks)
    drawn = {(tmp_path / f"{name}.png").read_bytes() for name in ("plain", "low", "high")}
    assert len(drawn) == 3


def test_kinds_without_a_place_for_a_mark_leave_it_out(runs: list[Run], tmp_path: Path) -> None:
    for kind in ("ctl", "bars"):
        for name, marks in (("plain", []), ("marked", [Mark(0, "worst_gap_s", 0.1)])):
            plot.draw(kind, runs, tmp_path / f"{name}.png", marks)
        plain, marked = (tmp_path / f"{name}.png" for name in ("plain", "marked"))
        assert plain.read_bytes() == marked.read_bytes()


def test_a_mark_of_no_run_is_refused(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(SmartGenError, match=r"mark.run=2 \(ttst_s\) must be below .* runs, 2"):
        plot.draw("bars", runs, tmp_path / "figure.png", [Mark(2, "ttst_s", 1.0)])
    with pytest.raises(SmartGenError, match=r"mark.run=-1 must be an integer of 0 or more"):
        Mark(-1, "ttst_s", 1.0)


def test_models_and_workloads_have_panels_of_their_own(tmp_path: Path, run_of: RunOf) -> None:
    named = [
        run_of(tmp_path / f"{name},{policy}", f"workload.name={name}", f"policy={policy}")
        for name in ("lcc", "samsum")
        for policy in ("full", "smartgen")
    ]
    grouped = panels(named)
    assert {title: [p.run.label for p in inside] for title, inside in grouped.items()} == {
        "LCC": ["full", "smartgen"],
        "SAMSum": ["full", "smartgen"],
    }
    for kind in ("ctl", "gaps"):
        plot.draw(kind, named, tmp_path / f"{kind}.png")
        image = matplotlib.image.imread(tmp_path / f"{kind}.png")
        assert image.shape[1] > 1400  # a page wide, not a column


def test_many_groups_of_bars_have_panels(tmp_path: Path, run_of: RunOf) -> None:
    many = [
        run_of(tmp_path / f"{name},{m}", f"workload.name={name}", f"blocks_per_layer={m}")
        for name in ("a", "b", "c")
        for m in (8, 16, 32)
    ]
    for name, runs in (("many", many), ("few", many[:8])):
        plot.draw("bars", runs, tmp_path / f"{name}.png")
    heights = [matplotlib.image.imread(tmp_path / f"{n}.png").shape[0] for n in ("many", "few")]
    assert heights[0] > heights[1] + 100  # two rows, not one


def test_phases_are_prefill_and_what_the_links_rate_makes_of_the_bytes(
    tmp_path: Path, run_of: RunOf
) -> None:
    run = run_of(tmp_path / "run", "policy=full", "network.efficiency=0.5")
    sent = sum(run.requests.column("proactive_bytes").to_pylist())
    assert transfer_s(run) == pytest.approx(sent * 8 / (0.05e9 * 0.5))
    assert prefill_s(run) == run.metrics["ttft_s"]["mean"]
    assert ratio(run) == pytest.approx(sent * 8 / (0.05e9 * 0.5) / run.metrics["ttft_s"]["mean"])


def test_phases_over_two_numbers_are_refused(tmp_path: Path, run_of: RunOf) -> None:
    other = ("network.gbps=0.1", "blocks_per_layer=16")
    two = [run_of(tmp_path / "a"), run_of(tmp_path / "b", *other)]
    with pytest.raises(SmartGenError, match=r"one number; these differ in network.gbps, blocks_p"):
        plot.draw("phases", two, tmp_path / "figure.png")


def test_a_map_is_relative_to_no_speculation_and_to_full(mapped: list[Run]) -> None:
    cells, full = speculation._cells(mapped)
    base = {gbps: point for (gbps, share), point in cells.items() if share == 0}
    rates, shares, values = speculation._relative(cells, base, speculation.tbt_s)
    assert (rates, shares) == ([0.05, 0.1], [0.0, 0.1, 1.0])
    assert values[0].tolist() == [1.0, 1.0]
    tbt_s = [run.metrics["tbt_s"]["mean"] for run in mapped[2:]]
    assert values[1, 0] == pytest.approx(tbt_s[1] / tbt_s[0])
    assert values[2, 1] == pytest.approx(tbt_s[5] / tbt_s[3])
    run = mapped[2]
    took = run.metrics["ttst_s"]["mean"] + 10 * run.metrics["tbt_s"]["mean"]  # of 12 tokens
    assert speculation.decoding_s(run) == pytest.approx(took)
    assert set(full) == {0.05, 0.1}


def test_a_map_says_which_runs_it_lacks(mapped: list[Run], tmp_path: Path) -> None:
    for runs, words in (
        (mapped[:4], "needs runs over network.gbps and policy.speculative_ratio, 0 among them"),
        (mapped[:-1], r"lacks a run at 0.1 Gbps with policy.speculative_ratio=1"),
        (mapped[1:], "lacks a run of full at 0.05 Gbps"),
        ([*mapped, mapped[2]], r"0.05 Gbps with policy.speculative_ratio=0 has more"),
    ):
        with pytest.raises(SmartGenError, match=words):
            plot.draw("map", runs, tmp_path / "figure.png")
    plot.draw("map", mapped[2:], tmp_path / "figure.png")  # against no speculation in both


def test_ratios_of_one_scheme_are_shades_with_words_of_their_own(mapped: list[Run]) -> None:
    found = looks([mapped[0], *mapped[2:5]])
    assert [look.label for look in found] == [
        "full",
        "smartgen, speculative 0 %",
        "smartgen, speculative 10 %",
        "smartgen, speculative 100 %",
    ]
    assert len({look.color for look in found}) == 4
    assert found[1].color == SCHEMES["smartgen"][0]
