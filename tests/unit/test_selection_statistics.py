"""The block model head by head: what was published of real selections, and what is only fitted."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from smartgen.errors import SmartGenError
from smartgen.metrics.summary import summarize
from smartgen.metrics.tables import make_tables
from smartgen.policy import Policy, order_blocks
from smartgen.selection import BlockDraw
from smartgen.selection.statistics import (
    Orders,
    Sample,
    fitted_exponent,
    missing_curve,
    missing_ratio,
    persistence,
)
from smartgen.sim import SimBackend

ORDERS = [
    Policy(name="random", order="random", protect_layers=0),
    *(Policy(name=order, order=order) for order in ("sequential", "streaming_llm", "profile")),
]
WINDOWED = ("model=gemma3_12b", "blocks_per_layer=250")


def capped(selector):
    """The selector, with 20 % selected in every sparse layer."""
    return replace(selector, natural_ratio=None, scale=1.0)


@pytest.fixture
def sample(build):
    def make(*overrides, sharpness=None, **parts):
        experiment = build(*overrides)
        law = experiment.selection
        given = {
            "law": law if sharpness is None else replace(law, sharpness=sharpness),
            "geometry": experiment.geometry,
            "selector": experiment.selector,
            "num_tokens": 7500,
            "seed": 0,
            "requests": 8,
            "heads": 2,
        }
        return Sample(**(given | parts))

    return make


# -- one head for all


@pytest.mark.parametrize("selection", ["blocks", "blocks_sharp"])
def test_one_head_a_request_misses_what_all_heads_miss_within_two_percent(sample, selection):
    overrides = (f"selection={selection}", "blocks_per_layer=250")
    for seed in (0, 1):
        one = sample(*overrides, seed=seed, requests=24, heads=1)
        every = sample(*overrides, seed=seed, requests=24, heads=8)
        for policy in (ORDERS[1], ORDERS[3]):
            profile = one.law.profile(one.geometry, one.selector, seed)
            order = order_blocks(policy, one.geometry, profile.importance, np.random.default_rng(0))
            planned = round(0.217 * one.geometry.num_blocks)
            of_one, of_all = (missing_ratio(order, planned, s.demand()) for s in (one, every))
            assert of_one == pytest.approx(of_all, rel=0.02)


def test_heads_of_a_request_differ_and_head_0_is_what_a_run_draws(sample, build):
    one = sample(requests=1, heads=2)
    first, second = (draw.counts(1) for draw in one.draws())
    assert np.array_equal(first, build().draw(0, 7500).counts(1))
    assert 0.1 < np.minimum(first, second)[2:].sum() / first[2:].sum() < 0.9


def test_the_oracle_knows_the_mean_of_all_heads(sample):
    one = sample("blocks_per_layer=100", requests=1, heads=8)
    sizes = one.sizes
    wanted = sum(draw.counts(1) + draw.counts(2) for draw in one.draws()) / 8 / sizes
    draw = next(one.draws())
    assert draw.frequency(2) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "overrides", [("blocks_per_layer=300",), WINDOWED, (*WINDOWED, "model.window_only=true")]
)
def test_what_is_drawn_is_the_best_of_all_blocks(build, overrides):
    experiment = build(*overrides)
    geometry = experiment.geometry
    for tokens in (100, 1030, 5001):
        draw = BlockDraw(experiment.selection, geometry, experiment.selector, tokens, 3, 0)
        counts = draw.counts(2)
        sizes = geometry.reached_sizes(tokens).reshape(counts.shape)
        assert (counts.sum(axis=1) == draw.selected).all()
        assert (counts <= sizes).all() and (counts >= 0).all()
        scores = draw._scores + np.float32(draw._law.noise) * draw._noise
        for row, layer in enumerate(draw._rows):
            taken, whole = counts[layer], sizes[layer]
            kept = scores[row][(taken == whole) & (whole > 0)]
            left = scores[row][(taken == 0) & (whole > 0)]
            assert not len(kept) or not len(left) or kept.min() > left.max()
            assert ((taken > 0) & (taken < whole)).sum() <= 1


# -- the profile


@pytest.mark.parametrize(
    "overrides", [("blocks_per_layer=250",), WINDOWED, (*WINDOWED, "model.window_only=true")]
)
def test_the_profile_is_how_often_blocks_are_selected(sample, overrides):
    for sharpness in (0.1, 0.55):
        drawn = sample(*overrides, sharpness=sharpness, num_tokens=4000, requests=160, heads=1)
        profile = drawn.law.profile(drawn.geometry, drawn.selector, 0, 4000).importance
        sizes = drawn.geometry.sizes(4000).reshape(drawn.shape)
        found = np.divide(drawn.demand(), sizes, out=np.zeros(drawn.shape), where=sizes > 0)
        assert profile.sum(axis=1) == pytest.approx(found.sum(axis=1), rel=0.01, abs=0.5)
        sampled = np.sqrt(np.maximum(profile * (1 - profile), 0.01) / 160)
        away = (found - profile)[2:] / sampled[2:]
        assert np.sqrt((away**2).mean()) < 1.5  # little beyond sampling: thresholds do vary


def test_the_profile_is_better_than_one_of_few_requests(sample):
    served = sample("selection=blocks_sharp", "blocks_per_layer=250", requests=16)
    policy, miss = ORDERS[3], []
    for importance in (
        served.law.profile(served.geometry, served.selector, 0).importance,
        replace(served, first_request=1000, requests=24, heads=1).demand() / served.sizes,
    ):
        order = order_blocks(policy, served.geometry, importance, np.random.default_rng(0))
        miss.append(missing_curve(order, served.demand(), 2, np.array([0.176]))[0])
    assert miss[0] < miss[1]


def test_the_profile_of_a_sliding_window_is_made_for_the_length_that_is_served(build):
    for tokens in (4000, 12000):
        experiment = build(*WINDOWED, f"workload.prompt_tokens={tokens}", "policy=partial_parallel")
        geometry = experiment.geometry
        plan = experiment.planner().plans_of(experiment.requests)[0]
        reached = geometry.reached_sizes(tokens)
        planned = plan.order[: plan.num_planned]
        sparse = planned[planned >= 2 * 250]
        assert (reached[sparse] > 0).mean() > 0.99


# -- against what is published


def test_the_orders_compare_as_published_at_the_sharpness_for_them(sample):
    found = []
    for seed in range(3):
        drawn = sample("selection=blocks_sharp", seed=seed, requests=12)
        missing = Orders(sample=drawn).missing(ORDERS, 0.217, 0)
        found.append(1 - missing[3] / missing[:3])
    claimed = [0.51, 0.38, 0.18]  # C062, C063, C065
    assert np.mean(found, axis=0) == pytest.approx(claimed, rel=0.1)


def test_the_default_misses_what_the_decode_chain_asks_for(sample):
    ratios = np.arange(0.05, 1, 0.05)
    curve = Orders(sample=sample(requests=12)).curves(ORDERS[3:], ratios)[0]
    assert fitted_exponent(ratios, curve) == pytest.approx(1.8, abs=0.03)


def test_no_sharpness_at_all_misses_as_much_as_the_closed_law_where_shares_differ(sample):
    ratios = np.arange(0.05, 1, 0.05)
    unequal = sample(sharpness=0.0, requests=12)
    equal = replace(unequal, selector=capped(unequal.selector))
    found = [
        fitted_exponent(ratios, Orders(sample=one).curves(ORDERS[3:], ratios)[0])
        for one in (unequal, equal)
    ]
    assert found[0] > 1.6 and found[1] == pytest.approx(1.05, abs=0.05)


def test_the_decode_chain_is_within_five_percent(build):
    tbt_s = {}
    for scheme in ("partial", "partial_profile", "partial_parallel", "smartgen"):
        experiment = build(f"policy={scheme}")
        outcome = SimBackend().run(experiment)
        metrics = summarize(make_tables(experiment, outcome), experiment, "sim", outcome.makespan_s)
        tbt_s[scheme] = metrics["tbt_s"]["mean"]
    times = list(tbt_s.values())
    gains = [a / b for a, b in pairwise(times)]
    assert gains == pytest.approx([1.03, 1.1, 1.3], rel=0.05)  # C058, C066, C068


def test_positions_are_selected_as_published(sample):
    for seed in range(2):
        drawn = sample("selection=blocks_sharp", seed=seed, requests=12, heads=8)
        share = replace(drawn, selector=capped(drawn.selector)).selected_share()
        high = drawn.law.is_high(len(share), seed)
        sparse = np.arange(len(share)) >= 2
        assert share[high & sparse][:, 750:].mean(axis=0).min() > 0.30  # C012, C013
        assert (share[~high & sparse] > 0.5).mean() < 0.03  # C014


def test_selections_persist_from_step_to_step(sample):
    drawn = sample(sharpness=1.0, requests=2)
    found = persistence(replace(drawn, selector=capped(drawn.selector)), 40)
    assert 0.73 < found.overlap < 0.78
    shown = found.unseen[np.array([1, 2, 3, 5, 9, 17, 25, 40]) - 1]
    wanted = [1, 0.23, 0.18, 0.13, 0.09, 0.05, 0.04, 0.02]
    assert shown == pytest.approx(wanted, abs=0.01)


# -- the tools


def test_an_exponent_is_found_again():
    ratios = np.arange(0.05, 1, 0.05)
    for exponent in (0.95, 1.4, 3.3):
        assert fitted_exponent(ratios, (1 - ratios) ** exponent) == pytest.approx(
            exponent, abs=0.006
        )


def test_a_curve_is_what_is_missing_block_by_block():
    demand = np.array([[9.0, 9.0], [1.0, 3.0], [0.0, 4.0]])
    order = np.array([0, 1, 5, 3, 2, 4])
    curve = missing_curve(order, demand, 1, np.array([0, 0.25, 0.5, 1]))
    assert curve == pytest.approx([1, 0.5, 0.125, 0])
    assert missing_ratio(order, 3, demand) == pytest.approx(4 / 26)
    assert missing_ratio(order, 3, demand, 1) == pytest.approx(0.5)


def test_where_nothing_is_selected_there_is_no_persistence(sample):
    drawn = sample("blocks_per_layer=50", requests=1, heads=1)
    nothing = replace(drawn, selector=replace(drawn.selector, selection_ratio=0.0))
    with pytest.raises(SmartGenError, match="nothing is selected"):
        persistence(nothing, 2)
    with pytest.raises(SmartGenError, match=r"sample\.heads=0 must be an integer of 1 or more"):
        replace(drawn, heads=0)
