"""The drawn block model: repeatable, sized right, and ordered as published."""

import numpy as np
import pytest

from smartgen.selection import BlockDraw


@pytest.fixture
def draw(build):
    experiment = build("model=tiny", "blocks_per_layer=200", "workload.prompt_tokens=3001")
    return lambda request_id=0: BlockDraw(
        experiment.selection,
        experiment.geometry,
        experiment.selector,
        3001,
        request_id,
        experiment.seed,
    )


def test_a_step_drawn_again_is_the_same_whatever_was_drawn_between(draw):
    first, second = draw(), draw()
    wanted = [first.counts(step).copy() for step in (1, 2, 3)]
    second.counts(3)
    for step in (2, 1, 3):
        assert np.array_equal(second.counts(step), wanted[step - 1])


def test_every_layer_selects_its_share_and_no_block_more_than_it_holds(draw):
    one = draw()
    sizes = np.diff(np.arange(201) * 3001 // 200)
    for step in (1, 5):
        counts = one.counts(step)
        assert (counts.sum(axis=1) == one.selected).all()
        assert (counts <= sizes).all() and (counts >= 0).all()
    assert (one.selected[:2] == 3001).all()  # dense layers


def test_the_mean_share_is_that_of_the_card_whatever_the_seed(build):
    for seed in (0, 1, 2):
        selector = build(f"seed={seed}").selector
        ratios = selector.layer_ratios(40, np.random.default_rng(seed))
        assert ratios[2:].mean() == pytest.approx(selector.mean_ratio, rel=0.01)
        assert selector.mean_ratio == pytest.approx(0.117, rel=0.005)


def test_steps_overlap_and_requests_differ(draw):
    def overlap(a, b):
        return np.minimum(a, b)[2:].sum() / a[2:].sum()

    one, other = draw(0), draw(1)
    now, later = one.counts(1).copy(), one.counts(2).copy()
    assert overlap(now, later) > overlap(now, other.counts(1)) > 0.1
    assert overlap(now, later) < 0.95


def test_optimal_misses_least_then_profile_then_orders_that_know_nothing(build):
    missing = {}
    for order in ("optimal", "profile", "sequential", "random"):
        experiment = build(
            "workload.requests=3",
            "workload.prompt_tokens=4000",
            "blocks_per_layer=250",
            "workload.output_tokens=10",
            "network.gbps=8",
            "policy=partial_parallel",
            "selection=blocks_sharp",
            f"policy.order={order}",
        )
        requests = experiment.requests
        plans = experiment.planner().plans_of(requests)
        lost = selected = 0
        for request, plan in zip(requests, plans, strict=True):
            local = np.zeros(experiment.geometry.num_blocks, dtype=bool)
            local[plan.order[: plan.num_planned]] = True
            local = local.reshape(40, 250)
            drawn = experiment.draw(request.request_id, request.prompt_tokens)
            for step in range(1, 10):
                counts = drawn.counts(step)[2:]
                lost += (counts * ~local[2:]).sum()
                selected += counts.sum()
        missing[order] = lost / selected
    ranked = sorted(missing, key=missing.__getitem__)
    assert ranked[:2] == ["optimal", "profile"]
    assert missing["profile"] < 0.9 * min(missing["sequential"], missing["random"])
