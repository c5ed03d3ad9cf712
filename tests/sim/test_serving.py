"""Open runs, case by case and by hand: alone, one after another, joining, waiting, leaving."""

import pytest

from smartgen.emu.virtual import VirtualBackend
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend
from smartgen.sim.backend import why_not_folded
from smartgen.workload import Request

WORLDS = {
    "layered": SimBackend(fold=False),
    "folded": SimBackend(),
    "emulated": VirtualBackend(memory_gib=1.0),
}
TIMES = (
    "reserved_s",
    "prefill_start_s",
    "first_token_s",
    "plan_delivered_s",
    "joined_s",
    "all_delivered_s",
    "finish_s",
    "prefill_released_s",
    "released_s",
)
AMOUNTS = (
    "status",
    "cached_tokens",
    "planned_blocks",
    "total_blocks",
    "proactive_bytes",
    "on_demand_bytes",
    "speculative_bytes",
    "metadata_bytes",
)
RATE = 2.5e6
"""Bytes a second of the link below."""
ENTRY, LAYERS = 128, 6
"""Bytes of an entry, and layers, of the model below."""


@pytest.fixture(params=WORLDS)
def world(request):
    return WORLDS[request.param]


@pytest.fixture
def serving(build, ask):
    """Requests of (arrival, prompt, output) for one prefill node and one decoding node."""

    def make(given, *overrides):
        base = build(
            "model=tiny",
            "workload=tiny",
            "workload.requests=1",
            "workload.prompt_tokens=1",
            "workload.output_tokens=1",
            "blocks_per_layer=32",
            "cluster=dp1",
            "network.gbps=0.02",
            "network.pair_us=0",
            "record.transfers=true",
            "record.decisions=true",
            *overrides,
        )
        return ask(base, [Request(i, at, n, 0, out) for i, (at, n, out) in enumerate(given)])

    return make


def run(world, experiment):
    return merge(list(world.run(experiment).recorders))


def exactly(seconds):
    """To rounding."""
    return pytest.approx(seconds, rel=1e-12)


def since_arrival(merged, request):
    """Everything that is known of a request, on the clock of its arrival."""
    row = merged.requests[request.request_id]
    times = [getattr(row, name) for name in TIMES]
    tokens = [t.time_s for t in merged.tokens if t.request_id == request.request_id]
    seconds = [-1 if at is None else at - request.arrival_s for at in [*times, *tokens]]
    return seconds, [getattr(row, name) for name in AMOUNTS]


# -- alone


@pytest.mark.parametrize("policy", ["full", "partial", "smartgen", "hack"])
def test_an_open_request_alone_is_a_closed_batch_of_one(build, serving, world, policy):
    opened = serving([(0.0, 200, 9)], f"policy={policy}")
    closed = build(
        "model=tiny",
        "workload=tiny",
        "blocks_per_layer=32",
        "cluster=dp1",
        "network.gbps=0.02",
        "network.pair_us=0",
        f"policy={policy}",
        "workload.requests=1",
        "workload.prompt_tokens=200",
        "workload.output_tokens=9",
        "workload.cached_ratio=0",
    )
    (request,) = opened.requests
    assert closed.requests == opened.requests
    assert since_arrival(run(world, opened), request) == since_arrival(run(world, closed), request)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("policy", ["full", "partial", "smartgen", "hack"])
def test_requests_that_never_meet_fare_as_if_alone(serving, ask, world, policy, nodes):
    """The limit of no load, K_r included; 1e-9, as 3,000 s lose the last digits of a tenth."""
    overrides = (f"policy={policy}", f"cluster.prefill_nodes={nodes}")
    together = serving([(0.0, 200, 9), (1000.25, 97, 3), (3000.5, 330, 14)], *overrides)
    merged = run(world, together)
    for request in together.requests:
        alone = ask(together, [request])
        times, amounts = since_arrival(merged, request)
        alone_times, alone_amounts = since_arrival(run(world, alone), request)
        assert amounts == alone_amounts
        assert times == pytest.approx(alone_times, rel=1e-9, abs=1e-9)


# -- at the prefill node


def test_a_second_prefill_starts_when_the_first_ends(serving, world):
    experiment = serving([(0.0, 300, 4), (0.01, 120, 4)])
    rows = run(world, experiment).requests
    first_s, second_s = (experiment.cost.prefill_s(prompt, 0) for prompt in (300, 120))
    assert first_s > 0.01
    assert rows[0].prefill_start_s == 0.0
    assert rows[0].first_token_s == exactly(first_s)
    assert rows[1].prefill_start_s == rows[0].first_token_s
    assert rows[1].first_token_s == exactly(first_s + second_s)


def test_prefills_on_nodes_of_their_own_start_at_once(serving, world):
    rows = run(world, serving([(0.0, 300, 4), (0.01, 120, 4)], "cluster.prefill_nodes=2")).requests
    assert (rows[0].prefill_node, rows[1].prefill_node) == ("prefill0", "prefill1")
    assert rows[1].prefill_start_s == 0.01


def test_a_prefill_waits_for_pages_until_the_decoding_node_holds_everything(serving, world):
    """Of a full transfer that is when the last byte has landed, long before decoding starts."""
    experiment = serving(
        [(0.0, 200, 30), (0.01, 200, 4)], "policy=full", "cluster.prefill_pool_tokens=399"
    )
    rows = run(world, experiment).requests
    layer_s = experiment.cost.prefill_s(200, 0) / LAYERS
    push_s = 200 * ENTRY * (1 + 0.107) / RATE  # with the selector's metadata
    assert push_s > layer_s  # so that the link is busy from the first push to the last
    assert rows[0].plan_delivered_s == exactly(layer_s + LAYERS * push_s)
    assert rows[0].prefill_released_s == rows[0].plan_delivered_s
    assert rows[1].prefill_start_s == rows[0].prefill_released_s < rows[0].joined_s


@pytest.mark.parametrize("policy", ["smartgen", "full", "hack", "partial"])
def test_a_closed_batch_that_is_sent_whole_needs_pages_for_one_prompt_at_a_time(
    build, world, policy
):
    """It starts when all is prefilled, which takes that pages go back before."""
    experiment = build(
        "model=tiny",
        "workload=tiny",
        "cluster=dp1",
        "network.gbps=10",
        f"policy={policy}",
        "cluster.prefill_pool_tokens=301",
    )
    rows = run(world, experiment).requests
    for before, after in ((0, 1), (1, 2), (2, 3)):
        assert rows[before].prefill_released_s >= rows[before].plan_delivered_s
        assert rows[after].prefill_start_s == rows[before].prefill_released_s
    assert {row.status for row in rows.values()} == {"finished"}
    assert len({row.joined_s for row in rows.values()}) == 1


def test_pages_of_what_is_fetched_and_pushed_later_go_at_the_end_of_an_iteration(serving, world):
    experiment = serving(
        [(0.0, 200, 30), (0.01, 100, 4)], "policy=smartgen", "cluster.prefill_pool_tokens=299"
    )
    merged = run(world, experiment)
    rows, ends_s = merged.requests, [row.end_s for row in merged.iterations]
    delivered_s = rows[0].all_delivered_s
    assert rows[0].prefill_released_s == min(end_s for end_s in ends_s if end_s >= delivered_s)
    assert rows[1].prefill_start_s == rows[0].prefill_released_s < rows[0].finish_s


# -- joining


@pytest.mark.parametrize("policy", ["smartgen", "full"])
def test_who_is_ready_in_mid_iteration_joins_at_its_end_and_takes_the_handover(
    serving, world, policy
):
    experiment = serving([(0.0, 200, 30), (0.17, 90, 5)], f"policy={policy}")
    merged = run(world, experiment)
    rows, iterations = merged.requests, merged.iterations
    ready_s = rows[1].plan_delivered_s if policy == "full" else rows[1].first_token_s
    (at,) = [i for i, row in enumerate(iterations) if row.start_s < ready_s < row.end_s]
    assert rows[1].joined_s == exactly(iterations[at].end_s + experiment.cost.handover_s)
    assert iterations[at + 1].start_s == rows[1].joined_s
    sizes = [row.batch_size for row in iterations]
    assert sizes == [1] * (at + 1) + [2] * 4 + [1] * (29 - 4 - at - 1)
    # each makes its tokens at the ends of the iterations it is in
    ends_s = [row.end_s for row in iterations]
    assert [t.time_s for t in merged.tokens if t.request_id == 1] == ends_s[at + 1 : at + 5]
    assert rows[1].finish_s == ends_s[at + 4] and rows[0].finish_s == ends_s[-1]


@pytest.mark.parametrize("rtt_us", [0, 50])
def test_who_is_ready_at_the_same_instant_joins_together_in_every_world(serving, world, rtt_us):
    """Equal prompts on two nodes are handed over at once, in two messages."""
    experiment = serving(
        [(0.0, 200, 4), (0.0, 200, 4)], "cluster.prefill_nodes=2", f"network.rtt_us={rtt_us}"
    )
    merged = run(world, experiment)
    rows = merged.requests
    assert rows[0].first_token_s == rows[1].first_token_s
    assert rows[0].joined_s == rows[1].joined_s
    assert [row.batch_size for row in merged.iterations] == [2, 2, 2]


@pytest.mark.parametrize("rtt_us", [0, 50])
def test_plans_landing_at_the_same_instant_join_together_in_every_world(serving, world, rtt_us):
    """Two last pushes of nothing, both behind the same bytes."""
    experiment = serving(
        [(0.0, 100, 2), (0.0, 70, 2)],
        "cluster.prefill_nodes=2",
        "model.num_hidden_layers=3",
        "blocks_per_layer=1",
        "network.gbps=0.003",
        "policy=partial_parallel",
        "selector=all",
        f"network.rtt_us={rtt_us}",
    )
    merged = run(world, experiment)
    rows = merged.requests
    assert rows[0].plan_delivered_s == rows[1].plan_delivered_s > rows[0].first_token_s
    assert [row.batch_size for row in merged.iterations] == [2]


def test_every_request_has_its_own_plan_and_takes_its_own_steps(serving, world):
    experiment = serving([(0.0, 300, 30), (0.17, 90, 12)], "policy=smartgen")
    merged = run(world, experiment)
    for request, row in zip(experiment.requests, merged.requests.values(), strict=True):
        prefill_s = experiment.cost.prefill_s(request.prompt_tokens, 0)
        transfer_s = request.prompt_tokens * ENTRY * LAYERS / RATE
        window = prefill_s * (LAYERS - 1) / LAYERS
        hidden = int(LAYERS * 32 * window / transfer_s)  # Equation 2, of this request alone
        assert row.planned_blocks == max(2 * 32, hidden)
    assert merged.requests[0].planned_blocks < merged.requests[1].planned_blocks
    steps = {0: set(), 1: set()}
    for told in merged.decisions:
        if told.kind in ("split", "speculate"):
            steps[told.request_id].add((told.kind, told.step))
    for i in (0, 1):
        # the first step pushes nothing
        spoken = sorted(step for kind, step in steps[i] if kind == "speculate")
        split = sorted(step for kind, step in steps[i] if kind == "split")
        assert spoken[0] == 2 and split[0] == 1
    # both are in the same iterations, but not at the same step
    assert merged.requests[1].joined_s > merged.iterations[2].start_s


def test_a_full_batch_lets_the_others_wait_first_come_first_served(serving, world):
    """The second is ready last, for its prompt is long, and goes first all the same."""
    experiment = serving(
        [(0.0, 100, 30), (0.01, 3000, 3), (0.02, 50, 3)],
        "cluster.prefill_nodes=3",
        "cluster.decode_batch=1",
        "gpu.matmul_tflops=0.1",
    )
    merged = run(world, experiment)
    rows = merged.requests
    assert rows[2].first_token_s < rows[1].first_token_s < rows[0].finish_s
    handover_s = experiment.cost.handover_s
    assert rows[1].joined_s == exactly(rows[0].finish_s + handover_s)
    assert rows[2].joined_s == exactly(rows[1].finish_s + handover_s)
    assert {row.batch_size for row in merged.iterations} == {1}


def test_a_batch_of_two_takes_the_third_in_when_one_leaves(serving, world):
    experiment = serving(
        [(0.0, 100, 30), (0.0, 100, 8), (0.01, 100, 3)],
        "cluster.prefill_nodes=3",
        "cluster.decode_batch=2",
        "network.gbps=1",
    )
    merged = run(world, experiment)
    rows = merged.requests
    assert rows[0].joined_s == rows[1].joined_s
    assert rows[2].joined_s == exactly(rows[1].finish_s + experiment.cost.handover_s)
    assert [row.batch_size for row in merged.iterations] == [2] * 9 + [1] * 20


# -- the decoding node's pool


def test_room_is_taken_before_a_transfer_starts_and_given_back_when_the_last_byte_is_here(
    serving, world
):
    """A push is under way when the first request ends; its pages wait for it."""
    experiment = serving(
        [(0.0, 300, 3), (0.05, 290, 4)],
        "network.gbps=0.004",
        "policy=smartgen",
        "policy.speculative_ratio=0.5",
        "cluster.decode_pool_tokens=596",  # one short of both
    )
    merged = run(world, experiment)
    rows = merged.requests
    landed_s = max(t.end_s for t in merged.transfers if t.request_id == 0)
    assert rows[0].reserved_s == rows[0].prefill_start_s == 0.0
    assert rows[0].finish_s < landed_s == rows[0].released_s
    assert rows[1].reserved_s == rows[0].released_s
    assert rows[1].prefill_start_s == rows[1].reserved_s
    roomy = run(world, serving([(0.0, 300, 3), (0.05, 290, 4)], "cluster.decode_pool_tokens=597"))
    assert roomy.requests[1].reserved_s == 0.05


# -- leases


def unfolded(world, experiment):
    assert why_not_folded(experiment) is not None
    return run(world, experiment)


def test_a_request_of_which_no_word_comes_fails_and_the_others_go_on(build, world):
    """A closed batch waits for its last prompt; the first one's lease is over before."""
    experiment = build(
        "model=tiny",
        "workload=tiny",
        "blocks_per_layer=32",
        "cluster=dp1",
        "workload.requests=3",
        "workload.prompt_tokens=[100,100,100]",
        "workload.cached_ratio=0",
        "cluster.prefill_lease_s=0.04",
        "host.handover_ms=1",
        "network.gbps=0.02",
    )
    rows = unfolded(world, experiment).requests
    prefill_s = experiment.cost.prefill_s(100, 0)
    assert prefill_s < 0.04 < 2 * prefill_s
    assert {i: row.status for i, row in rows.items()} == {0: "failed", 1: "finished", 2: "finished"}
    assert rows[0].finish_s == exactly(rows[0].first_token_s + 0.04)
    assert rows[0].released_s == rows[0].finish_s
    assert rows[1].joined_s == exactly(3 * prefill_s + 0.001)


@pytest.mark.parametrize(
    ("policy", "status"), [("partial_parallel", "finished"), ("proactive_only", "failed")]
)
def test_a_fetch_is_a_word_on_a_request_and_renews_its_lease(serving, world, policy, status):
    """Without fetches, pages are kept in vain: for what is never asked for."""
    experiment = serving([(0.0, 300, 40)], f"policy={policy}", "cluster.prefill_lease_s=0.2")
    merged = unfolded(world, experiment)
    (row,) = merged.requests.values()
    assert row.status == status
    if status == "finished":
        assert row.finish_s > row.first_token_s + 2 * 0.2
    else:
        assert row.finish_s == exactly(row.first_token_s + 0.2)


def test_a_fetch_that_crosses_the_word_of_a_failure_is_answered_and_ignored(serving, world):
    """The lease is over at 0.155 s, the first fetch is sent at 0.159 s and arrives at 0.184 s."""
    overrides = ("policy=partial_parallel", "cluster.prefill_lease_s=0.13", "network.rtt_us=50000")
    merged = unfolded(world, serving([(0.0, 300, 5), (3.0, 100, 1)], *overrides))
    rows = merged.requests
    assert [rows[i].status for i in (0, 1)] == ["failed", "finished"]
    failed_s = rows[0].first_token_s + 0.13
    assert rows[0].finish_s == exactly(failed_s + 0.025)
    (reply,) = [t for t in merged.transfers if t.purpose == "on_demand"][:1]
    assert failed_s < reply.posted_s
    assert rows[0].released_s >= reply.end_s
