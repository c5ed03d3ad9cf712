from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgen.errors import SmartGenError
from smartgen.kv import Geometry
from smartgen.policy import (
    Plan,
    Policy,
    Profile,
    block_importance,
    choose,
    fixed_quotas,
    order_blocks,
    proactive_budget,
    speculate,
)
from smartgen.policy.policy import ORDERS

SHAPE = Geometry(num_layers=5, num_kv_heads=2, row_values=8, blocks_per_layer=8)


@given(st.sampled_from(ORDERS), st.integers(0, 2**32 - 1), st.integers(0, 6))
def test_every_order_holds_every_block_once_and_protected_layers_first(order, seed, protect):
    rng = np.random.default_rng(seed)
    policy = Policy(name="any", order=order, protect_layers=protect)
    blocks = order_blocks(policy, SHAPE, rng.random((5, 8)), rng)
    assert sorted(blocks) == list(range(40))
    protected = min(protect, 5) * 8
    assert set(blocks[:protected]) == set(range(protected))


def test_the_profile_order_follows_importance_and_breaks_ties_by_layer_and_block():
    importance = np.zeros((5, 8))
    importance[4, 3], importance[3, 7] = 9.0, 8.0
    policy = Policy(name="any", order="profile", protect_layers=0)
    order = order_blocks(policy, SHAPE, importance, np.random.default_rng(0))
    assert order[:4].tolist() == [4 * 8 + 3, 3 * 8 + 7, 0, 1]


def test_streaming_llm_takes_sinks_then_the_most_recent_tokens_of_every_layer():
    policy = Policy(name="any", order="streaming_llm", protect_layers=0)
    order = order_blocks(policy, SHAPE, np.zeros((5, 8)), np.random.default_rng(0))
    assert order[:5].tolist() == [0, 8, 16, 24, 32]  # the first block of each layer
    assert order[5:10].tolist() == [7, 15, 23, 31, 39]  # then the last one of each


@pytest.mark.parametrize(
    ("prefill_s", "transfer_s", "expected"),
    [(1.0, 4.0, 200), (1.0, 1e9, 80), (9.0, 1.0, 1000)],
)
def test_the_budget_is_equation_2_clipped_to_two_layers_and_to_all(prefill_s, transfer_s, expected):
    geometry = Geometry(num_layers=25, num_kv_heads=1, row_values=2, blocks_per_layer=40)
    policy = Policy(name="any")
    budget = proactive_budget(policy, geometry, prefill_s, transfer_s, 0.0)
    assert budget == (240 if expected == 200 else expected)  # 1000 * 1/4 * 24/25 = 240


def test_metadata_is_subtracted_from_the_window_only_when_the_policy_says_so():
    geometry = Geometry(num_layers=25, num_kv_heads=1, row_values=2, blocks_per_layer=40)
    policy = Policy(name="any")
    budgeted = replace(policy, metadata_in_budget=True)
    assert proactive_budget(policy, geometry, 1.0, 4.0, 0.3) == 240
    assert proactive_budget(budgeted, geometry, 1.0, 4.0, 0.48) == 120


@given(st.integers(0, 40), st.floats(0.001, 1.0), st.integers(1, 9), st.integers(0, 4))
def test_speculation_posts_every_remaining_block_once_in_plan_order(planned, ratio, step, layer):
    order = np.random.default_rng(1).permutation(40)
    plan = Plan(order, planned, 8, 5)
    policy = Policy(name="any", speculative_ratio=ratio)
    posted, calls = [], 0
    while planned + len(posted) < 40:
        quota = fixed_quotas(policy, 5, 8, step)[layer]
        posted += speculate(plan, planned + len(posted), quota).tolist()
        step, layer = (step, layer + 1) if layer < 4 else (step + 1, 0)
        calls += 1
        # a block more or less, whichever layer the count starts at
        assert abs(len(posted) - calls * ratio * 8) <= 1 + 1e-6 or len(posted) == 40 - planned
    assert posted == order[planned:].tolist()


@pytest.mark.parametrize(("ratio", "iterations"), [(0.1, 10), (0.05, 20), (0.2, 5)])
def test_a_ratio_of_10_percent_finishes_in_10_iterations_on_an_idle_network(ratio, iterations):
    geometry = Geometry(num_layers=40, num_kv_heads=8, row_values=256)
    plan = Plan(np.arange(geometry.num_blocks), 0, 1000, 40)
    policy = Policy(name="any", speculative_ratio=ratio)
    posted = layers = 0
    while posted < geometry.num_blocks:
        step, layer = divmod(layers, geometry.num_layers)
        posted += len(speculate(plan, posted, fixed_quotas(policy, 40, 1000, 2 + step)[layer]))
        layers += 1
    assert layers == iterations * geometry.num_layers


@pytest.mark.parametrize(
    ("rule", "turn", "loads", "lost", "node"),
    [
        ("round_robin", 5, [9, 0, 0], (), 2),
        ("round_robin", 1, [0, 0, 0], (1,), 2),
        ("least_loaded", 5, [3, 1, 1], (), 2),
        ("least_loaded", 6, [3, 1, 1], (), 1),
        ("least_loaded", 5, [3, 1, 2], (1,), 2),
        ("least_loaded", 0, [3, 1], (0, 1), 1),
    ],
)
def test_routing(rule, turn, loads, lost, node):
    assert choose(rule, turn, loads, lost) == node


def test_planned_blocks_are_grouped_by_layer_in_pushing_order():
    plan = Plan(np.array([5, 0, 3, 1, 4, 2]), 5, 2, 3)
    assert [blocks.tolist() for blocks in plan.by_layer] == [[0, 1], [3], [5, 4]]
    assert plan.left.tolist() == [2]
    # some blocks of layers 0 and 1 are held by the decoding node already
    assert [b.tolist() for b in Plan(np.array([4, 3, 5]), 2, 2, 3).by_layer] == [[], [3], [4]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": "best"}, r"policy.order='best' must be one of profile, sequential"),
        ({"speculative_ratio": 1.5}, r"policy.speculative_ratio=1.5 must be a number in \[0, 1\]"),
        ({"speculative_ratio": float("nan")}, "policy.speculative_ratio=nan"),
        ({"lanes": "two"}, "policy.lanes='two' must be one of parallel, serial, none"),
        ({"reuse": 1}, "policy.reuse=1 must be true or false"),
        ({"speculation": "guessed"}, "policy.speculation='guessed' must be one of fixed, observed"),
        (
            {"speculation": "observed", "speculative_floor": 0.0},
            "policy.speculative_floor=0 must be above 0 with speculation=observed",
        ),
        ({"metadata_ratio": -0.1}, "policy.metadata_ratio=-0.1"),
        ({"codec": "hack"}, "policy.placement with codec=hack='host' must be one of gpu"),
    ],
)
def test_a_wrong_value_is_refused_by_name(change, message):
    with pytest.raises(SmartGenError, match=message):
        Policy(name="any", **change)


def test_equation_1_is_the_mean_selection_count_of_a_blocks_entries():
    geometry = Geometry(num_layers=1, num_kv_heads=1, row_values=2, blocks_per_layer=2)
    short, long = np.array([[4, 0]]), np.array([[1, 1, 0, 2]])
    importance = block_importance([short, long], geometry)
    assert importance.tolist() == [[6 / 3, 2 / 3]]


def test_a_block_that_is_empty_in_every_prompt_has_no_importance():
    geometry = Geometry(num_layers=1, num_kv_heads=1, row_values=2, blocks_per_layer=4)
    importance = block_importance([np.array([[3, 5]])], geometry)
    assert np.isfinite(importance).all() and importance.sum() == 8


def test_a_profile_survives_its_file_and_leaves_no_other(tmp_path):
    profile = Profile(np.random.default_rng(0).random((5, 8)), "measured: nothing", 4000, 16000)
    profile.save(tmp_path / "profile.npz")
    again = Profile.load(tmp_path / "profile.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["profile.npz"]
    assert np.array_equal(again.importance, profile.importance)
    assert (again.source, again.min_tokens, again.max_tokens) == ("measured: nothing", 4000, 16000)
    assert again.covers(4000) and not again.covers(3999)


def test_a_profile_of_another_number_of_layers_is_refused():
    with pytest.raises(SmartGenError, match="holds 4 layers x 8 blocks"):
        Profile(np.zeros((4, 8)), "x", 1, 2).check(SHAPE)


def test_a_file_that_is_no_profile_is_refused_by_name(tmp_path):
    path = tmp_path / "broken.npz"
    path.write_text("no")
    with pytest.raises(SmartGenError, match=r"broken\.npz' cannot be read"):
        Profile.load(path)
