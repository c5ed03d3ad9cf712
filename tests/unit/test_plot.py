"""Figures: every kind is drawn from run folders, the same each time, with saturation marked."""

from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np
import pyarrow as pa
import pytest

from smartgen import plot
from smartgen.errors import SmartGenError
from smartgen.metrics.store import Run
from smartgen.plot.bars import draw as draw_bars
from smartgen.plot.cdf import distribution
from smartgen.plot.ctl import stalls, well_known
from smartgen.plot.importance import shares_by_position
from smartgen.plot.needs import needed
from smartgen.plot.orders import _sorted as sorted_runs
from smartgen.plot.stalls import BEFORE, second_and_later
from smartgen.plot.style import SCHEMES, looks, scheme
from smartgen.plot.swept import swept

RunOf = Callable[..., Run]

SWEPT = ("rate", "needs", "latencies")
"""Kinds that need runs that differ in a number."""

SPECIAL = ("map", "agreement")
"""Kinds that need runs of their own."""


@pytest.fixture
def fit(
    kind: str, runs: list[Run], sweep: list[Run], mapped: list[Run], compared: list[Run]
) -> list[Run]:
    """Runs that a kind can draw: some need a swept number and targets, or more."""
    return {"map": mapped, "agreement": compared}.get(kind, sweep if kind in SWEPT else runs)


@pytest.mark.parametrize("kind", plot.KINDS)
def test_every_kind_draws_a_png_that_is_not_empty_and_a_pdf(
    kind: str, fit: list[Run], tmp_path: Path
) -> None:
    plot.draw(kind, fit, tmp_path / "figures" / f"{kind}.png")
    image = matplotlib.image.imread(tmp_path / "figures" / f"{kind}.png")
    assert image.shape[1] >= 600 and image.std() > 0.01  # wide enough to read, and not blank
    assert (tmp_path / "figures" / f"{kind}.pdf").read_bytes().startswith(b"%PDF")
    assert len(list((tmp_path / "figures").iterdir())) == 2


@pytest.mark.parametrize("kind", plot.KINDS)
def test_a_figure_of_the_same_runs_is_the_same_file(
    kind: str, fit: list[Run], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        plot.draw(kind, fit, tmp_path / f"{name}.png")
    for suffix in (".png", ".pdf"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("kind", [kind for kind in plot.KINDS if kind not in SPECIAL])
@pytest.mark.parametrize("output_tokens", [1, 2])
def test_runs_of_one_or_two_tokens_can_be_drawn(
    kind: str, output_tokens: int, tmp_path: Path, run_of: RunOf
) -> None:
    runs = [
        run_of(
            tmp_path / str(gbps),
            f"workload.output_tokens={output_tokens}",
            f"network.gbps={gbps}",
            "targets.ttft_s=1",
        )
        for gbps in (0.05, 0.1)
    ]
    plot.draw(kind, runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0


@pytest.mark.parametrize("kind", [kind for kind in plot.KINDS if kind not in SPECIAL])
def test_a_sweep_over_schemes_and_another_key_can_be_drawn(
    kind: str, sweep: list[Run], tmp_path: Path
) -> None:
    plot.draw(kind, sweep, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_an_unknown_kind_is_refused_with_the_known_ones(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(SmartGenError, match=r"plot='pie' must be one of ctl, bars, gaps, stalls"):
        plot.draw("pie", runs, tmp_path / "figure.png")
    with pytest.raises(SmartGenError, match="at least one run"):
        plot.draw("ctl", [], tmp_path / "figure.png")


def test_lines_over_a_number_need_runs_that_differ_in_one_number(
    runs: list[Run], sweep: list[Run], tmp_path: Path, run_of: RunOf
) -> None:
    with pytest.raises(SmartGenError, match="differ in one number; these differ in none"):
        plot.draw("rate", runs, tmp_path / "figure.png")
    other = run_of(tmp_path / "other", "policy=partial", "network.gbps=0.1", "blocks_per_layer=16")
    with pytest.raises(SmartGenError, match=r"differ in network\.gbps, blocks_per_layer$"):
        plot.draw("rate", [*sweep[:2], other], tmp_path / "figure.png")


def test_needs_without_targets_says_which_to_set(tmp_path: Path, run_of: RunOf) -> None:
    two = [run_of(tmp_path / str(g), f"network.gbps={g}") for g in (0.05, 0.1)]
    with pytest.raises(SmartGenError, match=r"needs runs with targets; set targets\.ttft_s"):
        plot.draw("needs", two, tmp_path / "figure.png")


def test_lines_are_sorted_by_the_swept_number(sweep: list[Run]) -> None:
    found = swept("rate", sweep[::-1])
    assert found.key == "network.gbps"
    assert {line.label: line.x.tolist() for line in found.lines} == {
        "partial": [0.05, 0.1, 0.2],
        "smartgen": [0.05, 0.1, 0.2],
    }


@pytest.mark.parametrize(
    ("share", "told", "at"),
    [
        ([0.5, 0.8, 1.0], "15", 15.0),
        ([0.95, 0.5, 1.0], "18", 18.0),  # it must stay there
        ([0.5, 0.9, 0.9], "10", 10.0),
        ([0.2, 0.5, 0.8], "more than 20", None),
        ([0.9, 1.0, 1.0], "at most 5", None),
    ],
)
def test_what_is_needed_is_interpolated_or_bounded(
    share: list[float], told: str, at: float | None
) -> None:
    words, number = needed(np.array([5.0, 10.0, 20.0]), np.array(share))
    assert words == told and number == (None if at is None else pytest.approx(at))


def test_requests_that_never_finished_hold_a_distribution_down(
    tmp_path: Path, run_of: RunOf
) -> None:
    run = run_of(tmp_path / "run", "workload.abort_s=[[2,0.0]]")
    values, share = distribution(run, "ttft_s")
    assert values.tolist() == sorted(values) and share.tolist() == [0.25, 0.5, 0.75]


def test_a_line_ends_where_few_requests_are_left(tmp_path: Path, run_of: RunOf) -> None:
    run = run_of(tmp_path / "run", "policy=full")
    tokens = [row | {"request_id": number} for number in range(11) for row in (
        {"token": 1, "time_s": 0.0, "gap_s": None},
        {"token": 2, "time_s": 1.0, "gap_s": 1.0},
    )]  # fmt: skip
    tokens.append({"request_id": 0, "token": 3, "time_s": 9.0, "gap_s": 8.0})
    run.__dict__["tokens"] = pa.Table.from_pylist(tokens)
    assert well_known(run) == 1  # token 3 is one request's of eleven


def test_a_figure_that_cannot_be_written_is_one_line(runs: list[Run], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SmartGenError, match="cannot be written") as caught:
        plot.draw("ctl", runs, tmp_path / "file" / "figure.png")
    assert "\n" not in str(caught.value)


def test_a_scheme_looks_the_same_in_every_figure(runs: list[Run]) -> None:
    both, alone = looks(runs), looks(runs[1:])
    assert (both[1].color, both[1].marker) == (alone[0].color, alone[0].marker)
    assert scheme("of_my_own") == scheme("of_my_own")
    assert len({color for color, _ in SCHEMES.values()}) == len(SCHEMES)
    assert len({marker for _, marker in SCHEMES.values()}) == len(SCHEMES)


def test_every_scheme_of_the_configuration_has_its_own_look() -> None:
    import smartgen.conf

    folder = Path(smartgen.conf.__path__[0]) / "policy"
    names = {path.stem for path in folder.glob("*.yaml")} - {"base"}
    assert names == set(SCHEMES)


def test_saturated_runs_are_hatched_and_marked(
    runs: list[Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_of: RunOf,
    saturated: Callable[[Run], Run],
) -> None:
    run = saturated(run_of(tmp_path / "run", "policy=full"))
    look, plain = looks([run])[0], looks(runs)[0]
    assert look.hatch and look.label == "full (saturated)"
    assert plain.hatch is None and plain.label == "full"
    draw_bars([run], tmp_path / "hatched.png")
    draw_bars(runs[:1], tmp_path / "plain.png")
    assert (tmp_path / "hatched.png").read_bytes() != (tmp_path / "plain.png").read_bytes()


def test_a_stall_is_a_gap_of_more_than_twice_the_median() -> None:
    assert stalls([5.0, 1.0, 2.0, 1.0, 2.5]) == [(0.0, 5.0)]
    assert stalls([1.0, 1.0, 2.5, 1.0]) == [(2.0, 4.5)]
    assert stalls([]) == []


def test_stall_bars_are_as_tall_as_ttst_and_tbt(runs: list[Run]) -> None:
    for run in runs:
        second, later = second_and_later(run)
        assert sum(second.values()) == pytest.approx(run.metrics["ttst_s"]["mean"], abs=1e-9)
        assert sum(later.values()) == pytest.approx(run.metrics["tbt_s"]["mean"], abs=1e-9)
        assert second[BEFORE] > 0


def test_positions_need_a_law_that_knows_them(run_of: RunOf, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "selection=exponent", "mask_update=iteration")
    with pytest.raises(SmartGenError, match=r"plot='importance' needs selection=blocks; run knows"):
        plot.draw("importance", [run], tmp_path / "figure.png")


def test_orders_are_compared_seed_by_seed_within_what_else_differs(
    run_of: RunOf, tmp_path: Path
) -> None:
    names = ("order_random", "partial_parallel")
    runs = [
        run_of(tmp_path / f"{name}{gbps}{seed}", f"policy={name}", f"network.gbps={gbps}", seed)
        for name in names
        for gbps in (0.05, 0.1)
        for seed in ("seed=0", "seed=1")
    ]
    chart = sorted_runs(runs)
    assert chart.schemes == list(names) and chart.groups == ["0.05", "0.1"]
    by_seed = [
        runs[number].metrics["tbt_s"]["mean"] / runs[number + 4].metrics["tbt_s"]["mean"]
        for number in (2, 3)
    ]
    assert chart.slower("0.1", "order_random") == pytest.approx(by_seed)
    assert chart.slower("0.1", "partial_parallel") == pytest.approx([1, 1])
    wanted = [100 * runs[number].metrics["on_demand_ratio"] for number in (0, 1)]
    assert chart.fetched("0.05", "order_random") == pytest.approx(wanted)


def test_shares_by_position_are_those_of_the_runs_law(run_of: RunOf, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "blocks_per_layer=100", "model.num_hidden_layers=12")
    for pair in shares_by_position(run):
        assert pair is not None
        layer, share = pair
        assert 2 <= layer < 12 and share.shape == (100,)
        assert (share >= 0).all() and (share <= 1).all()
        assert share[0] > 2 * share[1:].mean()  # sinks
