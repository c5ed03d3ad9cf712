"""The recursion against the fitted model's anchor table (docs/fitted_model.md)."""

import pytest

from smartgen.cost.recursion import closed_batch_times

ANCHORS = {  # scheme: TTST b = 1, TBT b = 1, TTST b = 6, TBT b = 6, in seconds
    "full": (0.244, 0.127, 2.652, 0.335),
    "partial": (0.244, 0.127, 0.878, 0.521),
    "partial_profile": (0.244, 0.127, 0.864, 0.507),
    "partial_parallel": (0.244, 0.127, 0.824, 0.466),
    "smartgen": (0.232, 0.127, 0.675, 0.345),
    "hack": (0.403, 0.284, 0.679, 0.485),
}

STEPS = {  # speculative ratio: the steps from the second on, then where they settle
    0.1: ([0.570, 0.521, 0.486, 0.453, 0.423, 0.395, 0.369, 0.347, 0.330], 0.335),
    0.2: ([0.57, 0.759, 0.691, 0.632, 0.565], 0.335),
    0.05: (
        [0.57, 0.466, 0.441, 0.417, 0.393, 0.371, 0.348, 0.327, 0.307, 0.287, 0.296, 0.304],
        0.335,
    ),
}


@pytest.mark.parametrize("policy", ANCHORS)
@pytest.mark.parametrize("requests", [1, 6])
def test_the_recursion_gives_the_anchor_table_within_1_percent(closed, policy, requests):
    experiment = closed(f"policy={policy}", f"workload.requests={requests}", "workload.grows=false")
    result = closed_batch_times(experiment.closed())
    expected = ANCHORS[policy][:2] if requests == 1 else ANCHORS[policy][2:]
    assert (result.ttst_s, result.tbt_s) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("ratio", STEPS)
def test_the_steps_of_smartgen_fall_as_in_the_anchor_series(closed, ratio):
    experiment = closed(f"policy.speculative_ratio={ratio}", "workload.grows=false")
    result = closed_batch_times(experiment.closed())
    first, settled = STEPS[ratio]
    handover_s = experiment.cost.handover_s
    steps = [result.ttst_s - handover_s, *result.steps_s]
    assert steps[: len(first)] == pytest.approx(first, rel=0.01)
    assert steps[-1] == pytest.approx(settled, rel=0.01)


def test_the_plan_and_the_tail_are_those_of_the_fitted_model(closed):
    for policy, share, tail_s in (("full", 1.0, 2.21), ("partial", 0.217, 0.252)):
        batch = closed(f"policy={policy}").closed()
        planned = batch.plans[0].num_planned / batch.geometry.num_blocks
        assert planned == pytest.approx(share, rel=0.005)
        assert closed_batch_times(batch).tail_s == pytest.approx(tail_s, rel=0.01)


def test_prefill_of_7500_tokens_takes_0_558_s(closed):
    assert closed().cost.prefill_s(7500, 5625) == pytest.approx(0.558, rel=0.001)
