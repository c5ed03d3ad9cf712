"""Bytes are conserved at both ends, blocks are delivered once, times add up."""

import itertools

import pytest

from smartgen.cluster import links
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend

SLOW = ("network.gbps=2.5", "network.pair_us=0", "record.transfers=true")
"""A tenth of the default rate."""


def assert_conserved(transfers, rate, slack):
    """In no window does more cross a link than its rate allows."""
    marks = sorted({t.start_s for t in transfers} | {t.end_s for t in transfers})
    marks = marks[:: max(1, len(marks) // 60)]
    for first, last in itertools.combinations(marks, 2):
        inside = sum(t.bytes for t in transfers if t.start_s >= first and t.end_s <= last)
        assert inside <= rate * (last - first) * (1 + 1e-9) + slack


@pytest.mark.parametrize("discipline", ["fifo", "queue_pair", "priority"])
@pytest.mark.parametrize("policy", ["full", "partial", "smartgen"])
def test_no_link_carries_more_than_its_rate_at_a_tenth_of_the_bandwidth(build, policy, discipline):
    experiment = build(
        *SLOW,
        f"policy={policy}",
        f"network.discipline={discipline}",
        "network.sender_gbps=1.5",
        "workload.output_tokens=6",
        "selection=exponent",
    )
    outcome = SimBackend().run(experiment)
    transfers = merge(list(outcome.recorders)).transfers
    rates = links(experiment.network, experiment.cluster)
    assert_conserved(transfers, rates["decode0"], slack=len(transfers))
    for host in range(3):
        nodes = {f"prefill{2 * host}", f"prefill{2 * host + 1}"}
        leaving = [t for t in transfers if t.source in nodes]
        assert leaving
        assert_conserved(leaving, rates[f"host{host}"], slack=len(leaving))
    moved = sum(t.bytes for t in transfers)
    assert outcome.makespan_s >= (moved - len(transfers)) / rates["decode0"]


def test_full_transfer_over_a_tenth_of_the_bandwidth_takes_at_least_its_bytes_over_the_rate(build):
    experiment = build(*SLOW, "policy=full", "workload.output_tokens=2")
    merged = merge(list(SimBackend().run(experiment).recorders))
    moved = sum(t.bytes for t in merged.transfers)
    delivered_s = max(row.plan_delivered_s for row in merged.requests.values())
    assert moved >= 6 * 7500 * 163_840
    assert delivered_s >= moved / experiment.network.receiver_bytes_per_s * (1 - 1e-6)


@pytest.mark.parametrize("policy", ["full", "smartgen", "smartgen_budgeted", "smartgen_adaptive"])
def test_every_block_is_pushed_and_delivered_exactly_once(build, policy):
    experiment = build(
        "model=tiny",
        "workload.prompt_tokens=1500",
        "workload.output_tokens=30",
        "blocks_per_layer=100",
        "network.gbps=0.2",
        f"policy={policy}",
        "record.decisions=true",
    )
    merged = merge(list(SimBackend().run(experiment).recorders))
    for request_id, row in merged.requests.items():
        pushed = [
            block
            for d in merged.decisions
            if d.request_id == request_id and d.kind in ("push", "speculate")
            for block in d.values
        ]
        assert sorted(pushed) == list(range(experiment.geometry.num_blocks))
        assert row.all_delivered_s is not None
        sent = (row.proactive_bytes or 0) + (row.speculative_bytes or 0)
        assert sent == 1500 * 6 * experiment.geometry.entry_bytes


@pytest.mark.parametrize("policy", ["full", "partial", "smartgen", "hack"])
def test_the_shares_of_every_iteration_add_up_to_it(build, policy):
    merged = merge(list(SimBackend().run(build(f"policy={policy}")).recorders))
    for row in merged.iterations:
        assert sum(row.shares) == pytest.approx(row.end_s - row.start_s, rel=1e-9)
        assert min(row.shares) >= 0


def test_interference_appears_where_pushes_delay_fetches_and_nowhere_else(build):
    def interference_s(*overrides):
        merged = merge(list(SimBackend().run(build(*overrides)).recorders))
        return sum(row.shares.interference_s for row in merged.iterations)

    assert interference_s("policy.speculative_ratio=0.2") > 0.5
    assert interference_s("policy=partial_parallel") < 1e-6  # nothing but fetches
    priority = interference_s("policy.speculative_ratio=0.2", "network.discipline=priority")
    assert priority < 0.05  # only the tail of the plan, which shares their class at the start


def test_a_plain_local_step_takes_the_time_of_its_layers_one_by_one(build):
    """The closed form against the acts, with everything local."""
    experiment = build("policy=full", "selection=exponent", "mask_update=iteration")
    batch = experiment.closed()
    cost = batch.cost
    whole = 6 * 7500 * 4096.0
    sparse = batch.selected_ratio * whole
    step_s = cost.head_s
    for layer in range(40):
        size = whole if layer < 2 else sparse
        following = (layer + 1) % 40
        step_s += cost.launch_s + cost.project_s
        step_s += max(cost.attend_s(size), cost.select_s(45_000))
        local_s = cost.load_s(whole if following < 2 else sparse, following)
        step_s += max(cost.feed_forward_s(6)[layer], local_s)
    merged = merge(list(SimBackend().run(experiment).recorders))
    row = merged.iterations[0]
    assert row.end_s - row.start_s == pytest.approx(step_s, rel=1e-9)


@pytest.mark.parametrize("policy", ["full", "partial", "smartgen", "on_demand_only"])
def test_bytes_by_purpose_agree_between_requests_transfers_and_iterations(build, policy):
    experiment = build(f"policy={policy}", "record.transfers=true", "workload.output_tokens=12")
    merged = merge(list(SimBackend().run(experiment).recorders))
    rows = merged.requests.values()
    for purpose in ("proactive", "speculative", "on_demand"):
        told = sum(getattr(row, f"{purpose}_bytes") or 0 for row in rows)
        metadata = sum(row.metadata_bytes or 0 for row in rows) if purpose == "proactive" else 0
        moved = sum(t.bytes for t in merged.transfers if t.purpose == purpose)
        assert told + metadata == pytest.approx(moved, abs=len(merged.transfers))
        if purpose != "proactive":
            seen = sum(getattr(row, f"{purpose}_bytes") for row in merged.iterations)
            assert told == pytest.approx(seen, abs=len(merged.transfers))
    whole = 6 * 7500 * 163_840
    metadata = sum(row.metadata_bytes or 0 for row in rows)
    assert metadata == pytest.approx(experiment.selector.metadata_ratio * whole, rel=1e-6)
    fetched = sum(i.remote_entries for i in merged.iterations) * experiment.geometry.entry_bytes
    assert fetched == pytest.approx(sum(row.on_demand_bytes or 0 for row in rows), rel=1e-6)
    assert (merged.iterations[0].remote_blocks_left > 0) == (policy != "full")


def test_shares_are_charged_to_what_took_the_time(build):
    """Not to whatever is left over: each share against the cost of its acts."""
    experiment = build("policy=partial_parallel", "network.rtt_us=100", "workload.output_tokens=5")
    cost, layers = experiment.cost, experiment.geometry.num_layers
    merged = merge(list(SimBackend().run(experiment).recorders))
    draws = [experiment.draw(i, 7500) for i in range(6)]
    for step, row in enumerate(merged.iterations, start=1):
        selected = sum(draw.selected_at(step - 1) for draw in draws)
        attend_s = [cost.attend_s(entries * 4096.0) for entries in selected.tolist()]
        select_s = cost.select_s(row.cached_tokens)
        expected = layers * cost.project_s + sum(attend_s)
        assert row.shares.overhead_s == pytest.approx(layers * cost.launch_s, rel=1e-6)
        assert row.shares.attend_s == pytest.approx(expected, rel=1e-6)
        excess_s = sum(max(0.0, select_s - seconds) for seconds in attend_s)
        assert row.shares.select_s == pytest.approx(excess_s, rel=1e-6)
        feed_forward_s = sum(cost.feed_forward_s(6)) + cost.head_s
        assert row.shares.feed_forward_s == pytest.approx(feed_forward_s, rel=1e-6)
        assert row.shares.remote_wait_s > 0 and row.shares.interference_s < 1e-6


@pytest.mark.parametrize("rtt_us", [0, 1000, 100_000])
@pytest.mark.parametrize("sender_gbps", [2, 32])
def test_a_round_trip_or_a_slow_sender_alone_is_no_interference(build, rtt_us, sender_gbps):
    experiment = build(
        "policy=partial_parallel",
        "workload.output_tokens=4",
        f"network.rtt_us={rtt_us}",
        f"network.sender_gbps={sender_gbps}",
    )
    merged = merge(list(SimBackend().run(experiment).recorders))
    assert sum(row.shares.interference_s for row in merged.iterations) < 1e-6
