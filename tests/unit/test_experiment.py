import pytest

from smartgen.errors import SmartGenError
from smartgen.sim import SimBackend


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.decode_pool_tokens=300", "must be at least 313, what request 2 needs"),
        ("cluster.prefill_pool_tokens=200", "must be at least 277, what the batch keeps at"),
    ],
)
def test_a_pool_that_can_never_hold_what_it_must_is_refused(tiny, override, message):
    with pytest.raises(SmartGenError, match=message):
        tiny(override)


def test_a_decoding_pool_for_three_serves_four_requests_one_after_another(tiny):
    experiment = tiny("cluster.decode_pool_tokens=770")
    outcome = SimBackend().run(experiment)
    rows = [row for recorder in outcome.recorders for row in recorder.requests.values()]
    assert {row.status for row in rows if row.status} == {"finished"}


def test_two_planners_of_an_experiment_come_to_the_same_plans(tiny):
    for policy in ("smartgen", "order_random", "order_optimal"):
        experiment = tiny(f"policy={policy}")
        requests = experiment.workload.make()
        ours, theirs = (experiment.planner().plans_of(requests) for _ in range(2))
        for a, b in zip(ours, theirs, strict=True):
            assert a.order.tolist() == b.order.tolist() and a.num_planned == b.num_planned


def test_a_frozen_budget_is_that_of_its_batch_whatever_the_batch_at_hand(build):
    frozen = ("policy.budget_source=frozen", "workload.requests=1")
    assert build().budget.planned_blocks(build().workload.make()) == (
        build(*frozen).budget.planned_blocks(build(*frozen).workload.make())
    )
    assert (
        build("workload.requests=1").budget.planned_blocks(
            build("workload.requests=1").workload.make()
        )
        == 40_000
    )
