"""Claims, their sets and measures; constants; the fit."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from smartgen.claims.claims import SETS, Claim, Score, all_claims
from smartgen.claims.command import read_costs, read_refits, read_sets
from smartgen.claims.constants import all_constants, fitted_constants, value_of, with_constants
from smartgen.claims.facts import Facts, Point, facts_of_outcome, facts_of_recursion
from smartgen.claims.fit import Problem, as_good, descend, problem, residual, start
from smartgen.claims.measures import MEASURES, Growth, Peak, Ratio, batch
from smartgen.claims.switches import SWITCHES
from smartgen.experiment import Experiment
from smartgen.sim import SimBackend

Build = Callable[..., Experiment]


def claim(**changes: str) -> Claim:
    told = {"id": "C1", "figure": "1", "claim": "a", "kind": "ratio", "claimed": "2.0"}
    return Claim(**{**told, "unit": "x", "set": "fit", "reason": "", **changes})


def facts(**changes: object) -> Facts:
    told = {"ttft_s": 1.0, "ttst_s": 2.0, "tbt_s": 0.5, "gaps_s": (2.0, 0.5), "transfer_s": 3.0}
    return Facts(**{**told, "iterations_to_whole": 3, **changes})  # type: ignore[arg-type]


def test_the_sets_are_those_that_were_fixed_before_the_fit() -> None:
    """Whoever moves a claim to another set has to change this test, too."""
    fitted = "C005 C010 C032 C036 C040 C044 C066 C068 C077 C079 C082 C084 C090 C091"
    hack, law = "C033 C043 C046 C081", "C013 C014 C062 C063 C065"
    contradictions = "C037 C039 C045 C047 C076 C088"
    of = {name: {c.id for c in all_claims() if c.set == name} for name in SETS}
    assert of["fit"] == {*fitted.split(), *hack.split(), *law.split()}
    assert of["contradiction"] == set(contradictions.split())
    assert len(of["held_out"]) == 39
    assert len({c.id for c in all_claims()}) == len(all_claims())


def test_the_fit_sees_no_claim_but_those_of_its_set(fit_problem: Problem) -> None:
    assert {c.set for c in fit_problem.claims} == {"fit"}
    asked = {point for c in fit_problem.claims for point in MEASURES[c.id].points}
    assert set(fit_problem.experiments) == asked
    assert len(fit_problem.claims) == 18


def test_every_result_has_a_measure_or_a_check() -> None:
    checked = {"C013", "C014", "C022"}
    results = {c.id for c in all_claims() if c.is_result}
    assert results == set(MEASURES) | checked


@pytest.mark.parametrize(
    ("simulated", "verdict"),
    [
        (2.0, "within 10 %"),
        (2.2, "within 10 %"),
        (1.7, "within 15 %"),
        (2.31, "within 20 %"),
        (2.41, "miss"),
        (math.nan, "miss"),
    ],
)
def test_a_number_is_judged_by_its_relative_error(simulated: float, verdict: str) -> None:
    assert claim().verdict(simulated) == verdict


@pytest.mark.parametrize(
    ("kind", "holds", "fails"),
    [
        ("below", 1.99, 2.0),
        ("at_most", 2.0, 2.01),
        ("above", 2.01, 2.0),
    ],
)
def test_a_bound_holds_or_not(kind: str, holds: float, fails: float) -> None:
    bound = claim(kind=kind)
    assert bound.verdict(holds) == "holds" and bound.verdict(fails) == "miss"
    assert bound.error(fails) is None


def test_an_order_holds_or_not() -> None:
    order = claim(kind="ordinal", claimed="true")
    assert order.verdict(1.0) == "holds" and order.verdict(0.0) == "miss"


@pytest.mark.parametrize(
    ("claimed", "rounding"), [("2.0", 0.025), ("10.4", 0.05 / 10.4), ("3", 1 / 6)]
)
def test_rounding_is_half_of_the_last_digit_stated(claimed: str, rounding: float) -> None:
    assert claim(claimed=claimed).rounding == pytest.approx(rounding)


def test_a_score_counts_errors_of_either_sign() -> None:
    score = Score((0.05, -0.12, 0.3, -0.1))
    assert [score.within(limit) for limit in (0.1, 0.15, 0.2)] == [2, 3, 3]
    assert score.median == pytest.approx(0.11)


def test_measures_and_their_marks_by_hand() -> None:
    one, two = batch("full", 1), batch("full", 6)
    found = {one: facts(), two: facts(ttst_s=5.0, transfer_s=9.0)}
    growth = Growth("ttst_s", two, one)
    assert growth.value(found) == 3.0 and growth.mark(found, 4.0) == (two, 6.0)
    ratio = Ratio("ttst_s", two, one)
    assert ratio.value(found) == 2.5 and ratio.mark(found, 5.0) == (one, 1.0)
    marked_over = replace(ratio, marked="over")
    assert marked_over.mark(found, 5.0) == (two, 10.0)
    peak = Peak([one, two])
    assert peak.value(found) == 9.0 and peak.mark(found, 7.0) == (two, 7.0)


@pytest.mark.parametrize("policy", ["full", "partial_reuse", "hack", "smartgen"])
def test_facts_are_the_same_from_the_simulator_and_from_the_recursion(
    closed: Build, policy: str
) -> None:
    experiment = closed(f"policy={policy}", "workload.requests=3", "workload.output_tokens=24")
    found = facts_of_outcome(experiment, SimBackend().run(experiment))
    told = facts_of_recursion(experiment)
    for name in ("ttft_s", "ttst_s", "tbt_s", "gaps_s", "transfer_s"):
        assert getattr(found, name) == pytest.approx(getattr(told, name), rel=1e-9), name
    assert found.iterations_to_whole == told.iterations_to_whole


def test_constants_go_where_their_keys_say_and_nowhere_else(closed: Build) -> None:
    experiment = closed()
    for constant in all_constants():
        changed = with_constants(experiment, {constant.name: constant.high})
        assert value_of(changed, constant) == constant.high
        back = with_constants(changed, {constant.name: value_of(experiment, constant)})
        assert back == experiment


def test_other_machines_keep_what_is_their_own(closed: Build) -> None:
    values = {c.name: c.high for c in all_constants()}
    far = ("gpu=v100s", "host=v100s_host", "network=physical_25g", "selector=hata")
    before, after = closed(*far), with_constants(closed(*far), values)
    assert after.network == before.network and after.selector == before.selector
    assert after.host.load_gbytes_per_s == before.host.load_gbytes_per_s
    assert after.gpu.attend_efficiency == before.gpu.attend_efficiency
    assert after.host.rpc_us == values["host.rpc_us"]


def test_the_cards_hold_the_best_set_to_three_digits(cards: Experiment) -> None:
    best = read_sets()[0]
    for constant in fitted_constants():
        assert value_of(cards, constant) == pytest.approx(best[constant.name], rel=5e-3)


def test_fitted_values_lie_within_the_ranges_over_which_they_are_varied() -> None:
    best = read_sets()[0]
    for constant in fitted_constants():
        assert constant.low < best[constant.name] < constant.high


# -- the fit


@pytest.fixture(scope="module")
def fit_problem() -> Problem:
    return problem()


@pytest.fixture(scope="module")
def small(fit_problem: Problem) -> Problem:
    """Three constants, and claims that were made with known values of them."""
    named = {"host.handover_ms": 80.0, "gpu.launch_overhead_us": 1100.0}
    chosen = [c for c in fit_problem.constants if c.name in named]
    kept = [c for c in fit_problem.claims if c.id in ("C036", "C044", "C082")]
    points = {p for c in kept for p in MEASURES[c.id].points}
    experiments = {p: fit_problem.experiments[p] for p in points}
    truth = Problem(kept, chosen, experiments)
    found = truth.facts(np.log([named[c.name] for c in chosen]))
    claims = [replace(c, claimed=f"{MEASURES[c.id].value(found):.6f}") for c in kept]
    wide = [replace(c, spread=30.0) for c in chosen]
    return Problem(claims, wide, experiments)


def test_the_fit_finds_constants_that_claims_were_made_with(small: Problem) -> None:
    found = small.named(descend(small, start(small, 0)).logs)
    assert found["host.handover_ms"] == pytest.approx(80, rel=0.02)
    assert found["gpu.launch_overhead_us"] == pytest.approx(1100, rel=0.02)


def test_draws_surround_the_best_set_stay_in_bounds_and_repeat(small: Problem) -> None:
    best = descend(small, start(small, 0))
    draws = list(as_good(small, best, 60, seed=1))
    again = list(as_good(small, best, 60, seed=1))
    assert all((a[0] == b[0]).all() for a, b in zip(draws, again, strict=True))
    costs = [cost for _, cost, _ in draws]
    assert min(costs) >= best.cost - 0.05 and max(costs) < best.cost + 20
    assert 10 < sum(moved for *_, moved in draws) < 60
    low, high = small.bounds()
    assert all(((low <= logs) & (logs <= high)).all() for logs, *_ in draws)


def test_the_residual_of_a_claim_grows_with_its_error_and_knows_rounding() -> None:
    assert residual(claim(), 2.0) == 0
    assert residual(claim(), 2.1) == pytest.approx(-residual(claim(), 2.0 / 1.05), rel=1e-9)
    assert abs(residual(claim(claimed="2"), 2.2)) < abs(residual(claim(claimed="2.00"), 2.2))


def test_the_best_set_is_no_worse_than_any_that_was_drawn(fit_problem: Problem) -> None:
    best, *others = read_sets()

    def cost(values: dict[str, float]) -> float:
        logs = np.log([values[c.name] for c in fit_problem.constants])
        return 0.5 * float(np.sum(fit_problem.residuals(logs) ** 2))

    assert cost(best) == pytest.approx(read_costs()[0], abs=2e-3)
    assert all(cost(other) > cost(best) for other in others[:6])


def test_every_mechanism_that_the_recursion_knows_was_fitted_without() -> None:
    refits, best = read_refits(), read_costs()[0]
    assert len(refits) == sum(switch.is_recursive for switch in SWITCHES) == len(SWITCHES) - 3
    assert refits["the cap always binds: 20 % are selected"][0] > 10 * best


def test_points_are_what_is_typed() -> None:
    point = Point("figure_14", ("policy.speculative_ratio=0.1",))
    assert point.arguments == ["experiment=figure_14", "policy.speculative_ratio=0.1"]
