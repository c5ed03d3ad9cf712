"""What loaded runs say of themselves, on runs of which it is known."""

import pytest

from smartgen.errors import SmartGenError
from smartgen.metrics.records import merge
from smartgen.metrics.summary import summarize
from smartgen.metrics.tables import make_tables
from smartgen.policy import proactive_budget
from smartgen.sim import SimBackend

FAST = ("selection=exponent", "network.sender_gbps=64", "blocks_per_layer=100")


@pytest.fixture
def metrics(build):
    def run(*overrides):
        experiment = build(*FAST, *overrides)
        outcome = SimBackend().run(experiment)
        tables = make_tables(experiment, outcome)
        return summarize(tables, experiment, "sim", outcome.makespan_s, outcome.link_busy_s)

    return run


@pytest.mark.parametrize("tokens", [8000, 14_000])
def test_a_pool_for_one_that_never_empties_is_told_however_coarse_it_is(metrics, tokens):
    """One request of 7,564 tokens at a time, and one too many comes in ten."""
    found = metrics(
        "cluster=pd42",
        f"cluster.decode_pool_tokens={tokens}",
        "workload=poisson",
        "workload.requests=80",
        "workload.arrival_cv=0",
        "workload.rate_per_s=0.26",
    )
    assert found["saturated"] and "growth" in found["saturated_by"]


def test_bursts_of_a_short_run_are_no_saturation(metrics):
    flagged = [
        metrics(
            "cluster=dp1",
            "workload=bursts",
            "workload.requests=30",
            f"workload.rate_per_s={rate}",
            f"seed={seed}",
        )["saturated"]
        for rate in (0.07, 0.1)
        for seed in range(6)
    ]
    assert sum(flagged) <= 1


def test_goodput_is_no_more_than_what_was_completed(metrics):
    found = metrics(
        "cluster=dp1",
        "workload=poisson",
        "workload.requests=20",
        "workload.rate_per_s=5",
        "targets.tbt_s=9",
    )
    assert found["attained_ratio"] == 1
    assert found["goodput_per_s"] == pytest.approx(20 / found["makespan_s"], rel=0.05)


def planned(experiment):
    rows = merge(list(SimBackend().run(experiment).recorders)).requests.values()
    return {row.planned_blocks for row in rows}


def test_k_r_of_a_closed_batch_counts_all_links_it_is_sent_over(build):
    """Twelve requests, two a prefill node, over two links."""
    told = (*FAST, "policy=partial", "workload.requests=12", "cluster.decode_nodes=2")
    experiment = build(*told)
    budget, one = experiment.budget, experiment.cost.prefill_s(7500, 5625)
    whole = 12 * 7500 * experiment.geometry.entry_bytes * 40
    pairs = 12 * 40 * 100 * experiment.network.pair_bytes
    transfer_s = (whole + pairs) / (2 * experiment.network.receiver_bytes_per_s)
    by_hand = proactive_budget(budget.policy, experiment.geometry, 2 * one, transfer_s, 0.0)
    assert planned(experiment) == {by_hand}
    alone = planned(build(*told[:-1])).pop()
    assert by_hand == pytest.approx(2 * alone, abs=2)


def test_a_closed_batch_that_would_wait_for_itself_is_refused(build):
    told = (*FAST, "policy=partial", "workload.requests=12", "network.gbps=2.5")
    room = "cluster.prefill_pool_tokens=8000"
    with pytest.raises(SmartGenError, match="must be at least 15000 for this closed batch"):
        build(*told, room)
    for nodes in (1, 2):
        experiment = build(
            *told[:-1],
            "network.gbps=200",
            "network.sender_gbps=900",
            room,
            f"cluster.decode_nodes={nodes}",
        )  # all of it is sent while it is prefilled
        rows = merge(list(SimBackend().run(experiment).recorders)).requests.values()
        assert {row.status for row in rows} == {"finished"}
