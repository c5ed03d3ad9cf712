"""The parts of smartgen reproduce: runs that are kept, marks, rows, tables, switches."""

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from smartgen.claims.claims import all_claims
from smartgen.claims.facts import Point, facts_of_run
from smartgen.claims.measures import MEASURES, at, batch
from smartgen.claims.switches import SWITCHES
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment
from smartgen.metrics.store import read_run
from smartgen.plot import KINDS
from smartgen.progress import Screen
from smartgen.reproduce.analysis import facts_of
from smartgen.reproduce.command import run
from smartgen.reproduce.figures import COMPARED, FIGURES
from smartgen.reproduce.marks import marks_of
from smartgen.reproduce.report import read_reasons
from smartgen.reproduce.results import Row, rows_of, score, write_claims
from smartgen.reproduce.runs import banded, drawn, folder_of, points_of, run_all
from smartgen.workers import over_cores

Build = Callable[..., Experiment]
SHORT = ("workload.output_tokens=3", "workload.requests=2")


def short(experiment: str, *overrides: str) -> Point:
    return Point(experiment, (*overrides, *SHORT))


def test_points_of_an_experiment_are_those_that_claims_ask_for() -> None:
    asked = {point for measure in MEASURES.values() for point in measure.points}
    names = {name for figure in FIGURES for name in figure.experiments}
    found = {point for name in names for point in points_of(name)}
    assert asked <= found


def test_every_figure_has_a_kind_that_exists() -> None:
    assert {figure.kind for figure in FIGURES} <= set(KINDS)
    assert not {name for figure in FIGURES for name in figure.experiments} & set(COMPARED)


def test_a_band_adds_three_draws_to_each_point() -> None:
    points = [batch("full", 1), batch("full", 2)]
    assert banded(points)[:2] == points and len(banded(points)) == 8
    assert {point.overrides[-1] for point in drawn(points)} == {"seed=1", "seed=2", "seed=3"}


def test_a_run_is_made_once_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = [short("figure_13_l20", "policy=full"), short("figure_13_l20", "policy=partial")]
    first = run_all(points, tmp_path, Screen(sys.stderr))
    stamps = [(first[point] / "metrics.json").stat().st_mtime_ns for point in points]
    again = run_all(points, tmp_path, Screen(sys.stderr))
    assert again == first == {point: folder_of(tmp_path, point) for point in points}
    assert stamps == [(again[point] / "metrics.json").stat().st_mtime_ns for point in points]
    assert "2 runs: 0 made, 2 kept" in capsys.readouterr().err
    assert facts_of_run(read_run(first[points[0]])).iterations_to_whole == 0


def _halved(number: int) -> float:
    if number == 3:
        raise SmartGenError("3 is odd")
    return number / 2


def test_work_over_cores_comes_back_numbered_and_a_mistake_ends_it() -> None:
    assert sorted(over_cores(_halved, [8, 4, 6])) == [(0, 4.0), (1, 2.0), (2, 3.0)]
    with pytest.raises(SmartGenError, match="3 is odd"):
        list(over_cores(_halved, [8, 3]))
    assert list(over_cores(_halved, [2])) == [(0, 1.0)]  # after which there are workers again


def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    wrong = short("figure_13_l20", "network.gbps=-1")
    with pytest.raises(SmartGenError, match=r"experiment=figure_13_l20 network.gbps=-1.*positive"):
        run_all([wrong], tmp_path, Screen(sys.stderr))


def test_reproduce_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(SmartGenError, match="reproduce knows -o FOLDER, not quickly"):
        run(["quickly"], None)


def test_marks_stand_where_claims_put_them(cards: Experiment) -> None:
    points = [batch("full", 6), batch("smartgen", 6)]
    asked = {point for measure in MEASURES.values() for point in measure.points}
    blank = facts_of(cards)
    found = {point: replace(blank, ttst_s=3.7, tbt_s=1.0) for point in asked}
    marks = {mark.claim: mark for mark in marks_of(points, found)}
    assert set(marks) == {"C032"}  # the others are relative to runs that are not drawn
    assert (marks["C032"].run, marks["C032"].metric) == (1, "ttst_s")
    assert marks["C032"].value == pytest.approx(1.0)


def test_rows_score_and_table(tmp_path: Path, cards: Experiment) -> None:
    asked = {point for measure in MEASURES.values() for point in measure.points}
    blank = replace(facts_of(cards), on_demand_ratio=0.5)
    found = dict.fromkeys(asked, blank)
    checked = {"C013": 31.0, "C014": 10.0, "C022": 2.5}
    spread = [{"C032": 1.0, "C097": 1.0}, {"C032": 2.0, "C097": 0.0}]
    rows = {row.claim.id: row for row in rows_of(found, checked, spread)}
    assert rows["C032"].simulated == 1.0 and rows["C032"].error == pytest.approx(1 / 3.7 - 1)
    low, high = rows["C032"].sets or (0, 0)
    assert 1.0 < low < 1.1 and 1.9 < high < 2.0
    assert rows["C097"].holding == 0.5 and rows["C013"].verdict == "holds"
    of = score(rows.values(), ("contradiction",))
    assert len(of.errors) == 6
    write_claims(rows.values(), tmp_path / "claims.csv")
    with (tmp_path / "claims.csv").open(newline="") as file:
        told = {row["id"]: row for row in csv.DictReader(file)}
    assert told["C032"]["simulated"] == "1" and told["C032"]["verdict"] == "miss"
    assert [path.name for path in tmp_path.iterdir()] == ["claims.csv"]


def test_only_results_are_missed() -> None:
    claim = next(c for c in all_claims() if c.id == "C032")
    assert not Row(claim, 3.7).is_missed and Row(claim, 3.7 * 1.16).is_missed
    assert set(read_reasons()) <= {c.id for c in all_claims() if c.is_result}


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda s: f"{s.name}: {s.meaning}")
def test_every_switch_changes_something_and_leaves_the_rest(cards: Experiment, switch) -> None:
    changed = False
    for policy in ("full", "partial", "smartgen"):
        start = "handover" if policy == "smartgen" else "plan"
        base = replace(
            cards,
            policy=replace(cards.policy, name=policy, decode_start=start),
            workload=replace(cards.workload, requests=3),
        )
        other = switch(base)
        changed = changed or other != base
        if switch.policies and policy not in switch.policies:
            assert other == base
    assert changed or switch.adjust is not None


def test_points_are_written_as_in_the_experiments() -> None:
    assert at("figure_12_batch", "full", "workload.requests=6") == batch("full", 6)
