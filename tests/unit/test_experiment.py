import pytest

from smartgen.errors import SmartGenError
from smartgen.sim import SimBackend


def test_a_pool_that_can_never_hold_a_request_is_refused(tiny):
    with pytest.raises(SmartGenError, match="must be at least 313, what request 2 needs"):
        tiny("cluster.decode_pool_tokens=300")


@pytest.mark.parametrize(
    "override",
    [
        "mask_update=live",
        "network.discipline=priority",
        "workload.abort_s=[[0,1]]",
        "cluster.lost_s=[[0,1]]",
        "cluster.decode_pool_tokens=60000",
        "network.sender_gbps=20",
        "selection=blocks",
    ],
)
def test_what_the_recursion_does_not_model_it_refuses(closed, override):
    with pytest.raises(SmartGenError):
        closed(override).closed()


def test_a_decoding_pool_for_three_serves_four_requests_one_after_another(tiny):
    experiment = tiny("cluster.decode_pool_tokens=770")
    outcome = SimBackend().run(experiment)
    rows = [row for recorder in outcome.recorders for row in recorder.requests.values()]
    assert {row.status for row in rows if row.status} == {"finished"}


def test_two_planners_of_an_experiment_come_to_the_same_plans(tiny):
    for policy in ("smartgen", "order_random", "order_optimal"):
        experiment = tiny(f"policy={policy}")
        requests = experiment.requests
        ours, theirs = (experiment.planner().plans_of(requests) for _ in range(2))
        for a, b in zip(ours, theirs, strict=True):
            assert a.order.tolist() == b.order.tolist() and a.num_planned == b.num_planned


def test_a_frozen_budget_is_that_of_its_batch_whatever_the_batch_at_hand(build):
    frozen = ("policy.budget_source=frozen", "workload.requests=1")
    assert build().budget.planned_blocks(build().requests) == (
        build(*frozen).budget.planned_blocks(build(*frozen).requests)
    )
    assert (
        build("workload.requests=1").budget.planned_blocks(build("workload.requests=1").requests)
        == 40_000
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("selector.dense_layers=3",), "selector.dense_layers=3 needs selection=blocks"),
        (("policy=on_demand_only",), "policy.proactive='none' needs selection=blocks"),
    ],
)
def test_what_the_closed_law_says_nothing_about_is_refused(closed, overrides, message):
    with pytest.raises(SmartGenError, match=message):
        closed(*overrides)


def test_a_profile_is_used_only_for_lengths_it_was_made_for(tiny, tmp_path):
    experiment = tiny()
    profile = experiment.selection.profile(experiment.geometry, experiment.selector, 0)
    profile = type(profile)(profile.importance, "made here", 100, 400)
    profile.save(tmp_path / "p.npz")
    with pytest.raises(
        SmartGenError, match="prompts of 100 to 400 tokens; this workload has one of 97"
    ):
        tiny(f"profile={tmp_path / 'p.npz'}")
    tiny(f"profile={tmp_path / 'p.npz'}", "workload.prompt_tokens=[180,250,301,100]")


def test_more_bandwidth_never_makes_a_full_transfer_later(build):
    """Also where the senders are slower than the receiver.

    Other schemes may gain from less: what is fetched does not take the slow local gather.
    """
    ttst_s = []
    for gbps in (10, 25, 32, 50, 100, 200):
        outcome = SimBackend().run(
            build("policy=full", f"network.gbps={gbps}", "workload.output_tokens=2")
        )
        rows = [row for recorder in outcome.recorders for row in recorder.requests.values()]
        first_s = max(row.first_token_s for row in rows if row.first_token_s)
        ttst_s.append(outcome.recorders[0].tokens[-1].time_s - first_s)
    assert ttst_s == sorted(ttst_s, reverse=True)


def test_a_request_of_one_token_is_finished_with_it(build):
    outcome = SimBackend().run(build("policy=full", "workload.output_tokens=1"))
    rows = [row for recorder in outcome.recorders for row in recorder.requests.values()]
    finished_s = {row.finish_s for row in rows if row.finish_s is not None}
    assert finished_s == {row.first_token_s for row in rows if row.first_token_s is not None}
