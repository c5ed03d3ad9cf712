"""Open runs on several nodes: who goes where, shared links, shared prefixes, expected shares."""

import pytest

from smartgen.cost.budget import expected_share
from smartgen.emu.virtual import VirtualBackend
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend
from smartgen.sim.backend import why_not_folded
from smartgen.workload import MooncakeTrace, Request, write_trace

WORLDS = {
    "layered": SimBackend(fold=False),
    "folded": SimBackend(),
    "emulated": VirtualBackend(memory_gib=1.0),
}
ENTRY, LAYERS, BLOCKS = 128, 6, 32
"""Bytes of an entry, layers, and blocks a layer, of the model below."""
METADATA = 0.107
RATE = 2.5e6
"""Bytes a second of the links below."""


@pytest.fixture(params=WORLDS)
def world(request):
    return WORLDS[request.param]


@pytest.fixture
def tiny_nodes(build):
    """An experiment on the tiny model without requests of its own."""
    return lambda *overrides: build(
        "model=tiny",
        "workload=tiny",
        "workload.requests=1",
        "workload.prompt_tokens=1",
        "workload.output_tokens=1",
        f"blocks_per_layer={BLOCKS}",
        "cluster=dp1",
        "network.gbps=0.02",
        "network.pair_us=0",
        "record.transfers=true",
        *overrides,
    )


@pytest.fixture
def serving(tiny_nodes, ask):
    """Requests of (arrival, prompt, output)."""

    def make(given, *overrides):
        requests = [Request(i, at, n, 0, out) for i, (at, n, out) in enumerate(given)]
        return ask(tiny_nodes(*overrides), requests)

    return make


def run(world, experiment):
    return merge(list(world.run(experiment).recorders))


def exactly(value):
    """To rounding."""
    return pytest.approx(value, rel=1e-12)


# -- two decoding nodes

PUSH_S = 200 * ENTRY * (1 + METADATA) / RATE
"""A layer of a prompt of 200 tokens on a link."""
TWO = (
    "policy=full",
    "cluster.prefill_nodes=2",
    "cluster.gpus_per_host=2",
    "cluster.decode_nodes=2",
)


def test_every_request_lands_at_its_own_node_and_fast_senders_keep_links_apart(serving, world):
    experiment = serving([(0.0, 200, 4), (0.0, 200, 4)], *TWO, "network.sender_gbps=0.04")
    merged = run(world, experiment)
    for i in (0, 1):
        moved = [t for t in merged.transfers if t.request_id == i]
        assert {(t.source, t.destination) for t in moved} == {(f"prefill{i}", f"decode{i}")}
        assert sum(t.entries for t in moved) == 200 * LAYERS
        row = merged.requests[i]
        assert (row.prefill_node, row.decode_node) == (f"prefill{i}", f"decode{i}")
        assert row.proactive_bytes == 200 * LAYERS * ENTRY
        layer_s = experiment.cost.prefill_s(200, 0) / LAYERS
        assert layer_s < PUSH_S
        assert row.plan_delivered_s == exactly(layer_s + LAYERS * PUSH_S)
    assert [node.iterations[0].batch_size for node in merged.nodes[:2]] == [1, 1]


def test_a_slow_sender_is_shared_and_never_idle(serving, world):
    """Both receivers could take twice as much; what leaves their one host takes its time."""
    experiment = serving([(0.0, 200, 4), (0.0, 200, 4)], *TWO, "network.sender_gbps=0.02")
    assert why_not_folded(experiment) == (
        "prefill hosts may be slower than all decoding nodes together"
    )
    rows = run(world, experiment).requests
    layer_s = experiment.cost.prefill_s(200, 0) / LAYERS
    # in order of posting: layer by layer, of each the first prefill node's before the second's
    assert rows[0].plan_delivered_s == exactly(layer_s + (2 * LAYERS - 1) * PUSH_S)
    assert rows[1].plan_delivered_s == exactly(layer_s + 2 * LAYERS * PUSH_S)


# -- routing


def nodes_of(rows, column):
    return [getattr(rows[i], column)[-1] for i in sorted(rows)]


@pytest.mark.parametrize(
    ("rule", "expected"), [("round_robin", "010101"), ("least_loaded", "011101")]
)
def test_least_loaded_sends_prefills_to_the_node_that_has_least_to_do(
    serving, world, rule, expected
):
    """A long prompt keeps node 0 until 1.6 s; each short one is through before the next."""
    given = [(0.0, 3000, 2), (0.1, 100, 2), (0.3, 90, 2), (0.5, 80, 2), (2.5, 70, 2), (2.5, 60, 2)]
    overrides = ("cluster.prefill_nodes=2", "gpu.matmul_tflops=0.01", "network.gbps=1")
    experiment = serving(given, *overrides, f"cluster.routing={rule}")
    rows = run(world, experiment).requests
    assert experiment.cost.prefill_s(3000, 0) == pytest.approx(1.6, abs=0.1)
    assert "".join(nodes_of(rows, "prefill_node")) == expected
    if rule == "least_loaded":
        for i in (1, 2, 3):
            assert rows[i].prefill_start_s == given[i][0]
    else:
        assert rows[2].prefill_start_s == rows[0].first_token_s


def test_least_loaded_counts_prompts_and_outputs_at_decoding_nodes(serving, world):
    """400 tokens to come at node 0 against 110 at node 1, then 110 + 320 at node 1."""
    given = [(0.0, 380, 20), (0.01, 100, 10), (0.02, 300, 20), (0.03, 50, 4)]
    overrides = ("cluster.decode_nodes=2", "cluster.routing=least_loaded", "policy=full")
    rows = run(world, serving(given, *overrides)).requests
    assert "".join(nodes_of(rows, "decode_node")) == "0110"


@pytest.mark.parametrize("rule", ["round_robin", "least_loaded"])
def test_a_lost_prefill_node_gets_no_more_requests(serving, world, rule):
    given = [(0.0, 200, 30), (0.0, 100, 3), (0.5, 90, 3), (1.0, 80, 3), (1.5, 70, 3)]
    overrides = ("cluster.prefill_nodes=2", "cluster.lost_s=[[0,0.2]]", "network.gbps=0.004")
    rows = run(world, serving(given, *overrides, f"cluster.routing={rule}")).requests
    assert "".join(nodes_of(rows, "prefill_node")) == "01111"
    assert [rows[i].status for i in range(5)] == ["failed", *["finished"] * 4]


# -- prefixes

SHARED = (0, 1, 2, 3)


def prefixed(given):
    """Requests of (arrival, prompt, names of its blocks of 16 tokens, output, which is 3)."""
    return [
        Request(i, at, prompt, 0, *(output or (3,)), prefix=names, prefix_tokens=16)
        for i, (at, prompt, names, *output) in enumerate(given)
    ]


def test_what_a_prefill_node_holds_is_not_computed_again(tiny_nodes, ask, world):
    """After the first one's handover, not before; four full blocks, not the fifth of six tokens."""
    given = [(0.0, 70, (*SHARED, 8)), (0.01, 96, (*SHARED, 8, 9)), (0.9, 96, (*SHARED, 8, 10))]
    experiment = ask(
        tiny_nodes("gpu.matmul_tflops=0.01", "cluster.decode_cache_tokens=0"), prefixed(given)
    )
    rows, cost = run(world, experiment).requests, experiment.cost
    assert [rows[i].cached_tokens for i in range(3)] == [0, 0, 80]
    assert rows[1].prefill_start_s == rows[0].first_token_s > 0.01
    for i, (prompt, cached) in enumerate([(70, 0), (96, 0), (96, 80)]):
        took_s = rows[i].first_token_s - rows[i].prefill_start_s
        assert took_s == pytest.approx(cost.prefill_s(prompt, cached), rel=1e-9)
    assert cost.prefill_s(96, 80) < 0.6 * cost.prefill_s(96, 0)
    assert [rows[i].held_tokens for i in range(3)] == [0, 0, 0]


def test_a_prefix_is_held_only_by_the_node_that_has_computed_it(tiny_nodes, ask, world):
    given = [(at, 70, (*SHARED, 8)) for at in (0.0, 0.3, 0.6, 0.9)]
    experiment = ask(tiny_nodes("cluster.prefill_nodes=2"), prefixed(given))
    rows = run(world, experiment).requests
    assert "".join(nodes_of(rows, "prefill_node")) == "0101"
    assert [rows[i].cached_tokens for i in range(4)] == [0, 0, 64, 64]


def test_one_token_at_least_is_computed(tiny_nodes, ask, world):
    given = [(0.0, 64, SHARED), (0.5, 64, SHARED)]
    rows = run(world, ask(tiny_nodes(), prefixed(given))).requests
    assert rows[1].cached_tokens == 63
    assert rows[1].held_tokens == 64


@pytest.mark.parametrize("rtt_us", [0, 50])
def test_what_a_decoding_node_holds_is_not_sent_again(tiny_nodes, ask, world, rtt_us):
    """Of 96 tokens 64 are held: 21 blocks of 3 tokens lie within them, 33 tokens do not."""
    given = [(0.0, 64, SHARED), (0.4, 96, (*SHARED, 8, 9)), (0.8, 64, SHARED)]
    experiment = ask(tiny_nodes("policy=full", f"network.rtt_us={rtt_us}"), prefixed(given))
    rows = run(world, experiment).requests
    assert rows[0].finish_s < 0.4 and rows[1].finish_s < 0.8
    assert [rows[i].held_tokens for i in range(3)] == [0, 64, 64]
    assert [rows[i].total_blocks for i in range(3)] == [192, 192 - 21 * LAYERS, 0]
    sent = [rows[i].proactive_bytes for i in range(3)]
    assert sent == [64 * LAYERS * ENTRY, 33 * LAYERS * ENTRY, 0]
    metadata = [rows[i].metadata_bytes for i in range(3)]
    # rounded layer by layer
    assert metadata == [LAYERS * round(METADATA * tokens * ENTRY) for tokens in (64, 32, 0)]
    assert rows[2].plan_delivered_s is not None


@pytest.mark.parametrize("rtt_us", [0, 2000])
def test_who_is_held_whole_needs_its_prefill_node_until_it_joins(tiny_nodes, ask, world, rtt_us):
    """All its pushes are of nothing, and land at one instant behind another's bytes."""
    given = [(0.0, 64, SHARED, 16), (1.5, 300, (), 1), (1.51, 64, SHARED)]
    experiment = ask(tiny_nodes("network.gbps=0.002", f"network.rtt_us={rtt_us}"), prefixed(given))
    rows = run(world, experiment).requests
    assert rows[0].all_delivered_s < rows[0].finish_s < 1.5
    assert (rows[2].held_tokens, rows[2].total_blocks) == (64, 0)
    assert rows[2].plan_delivered_s == rows[1].plan_delivered_s > rows[2].first_token_s + 0.105
    assert rows[2].joined_s == rows[2].plan_delivered_s
    assert rows[2].prefill_released_s == exactly(rows[2].joined_s + rtt_us * 0.5e-6)


def test_what_is_held_is_neither_fetched_nor_pushed_later(tiny_nodes, ask, world):
    given = [(0.0, 64, SHARED, 16), (1.5, 96, (*SHARED, 8, 9))]
    experiment = ask(tiny_nodes("policy=smartgen", "network.gbps=0.002"), prefixed(given))
    merged = run(world, experiment)
    row = merged.requests[1]
    assert row.held_tokens == 64
    assert row.planned_blocks == min(2 * BLOCKS, 192 - 21 * LAYERS)
    assert row.proactive_bytes + (row.speculative_bytes or 0) == 33 * LAYERS * ENTRY
    assert not row.on_demand_bytes


@pytest.mark.parametrize(("output", "held"), [(3, 0), (16, 64)])
def test_only_what_came_whole_leaves_its_prefix_behind(tiny_nodes, ask, world, output, held):
    given = [(0.0, 64, SHARED, output), (1.5, 96, (*SHARED, 8, 9))]
    experiment = ask(tiny_nodes("policy=smartgen", "network.gbps=0.002"), prefixed(given))
    rows = run(world, experiment).requests
    assert (rows[0].all_delivered_s is not None and rows[0].all_delivered_s < 1.5) == (held > 0)
    assert (rows[1].cached_tokens, rows[1].held_tokens) == (64, held)


def test_without_room_for_prefixes_everything_is_computed_and_sent(tiny_nodes, ask, world):
    given = [(0.0, 64, SHARED), (0.4, 96, (*SHARED, 8, 9))]
    none = ("cluster.prefill_cache_tokens=0", "cluster.decode_cache_tokens=0", "policy=full")
    rows = run(world, ask(tiny_nodes(*none), prefixed(given))).requests
    assert (rows[1].cached_tokens, rows[1].held_tokens) == (0, 0)
    assert rows[1].proactive_bytes == 96 * LAYERS * ENTRY


def test_a_small_cache_forgets_the_prefix_that_was_used_least_recently(tiny_nodes, ask, world):
    """Room for two prompts of 64; the first is used again before a third comes."""
    names = [tuple(range(100 * kind, 100 * kind + 4)) for kind in range(3)]
    order = [0, 1, 0, 2, 0, 1]
    given = [(0.3 * i, 64, names[kind]) for i, kind in enumerate(order)]
    experiment = ask(tiny_nodes("cluster.prefill_cache_tokens=128"), prefixed(given))
    rows = run(world, experiment).requests
    assert [rows[i].cached_tokens for i in range(6)] == [0, 0, 63, 0, 63, 0]


def test_a_trace_in_mooncakes_format_shares_blocks_of_512(tiny_nodes, ask, world, tmp_path):
    asked = [
        Request(0, 0.0, 1100, 0, 2, prefix=(5, 6, 7)),
        Request(1, 1.0, 1200, 0, 2, prefix=(5, 6, 8)),
    ]
    write_trace(tmp_path / "t.jsonl", asked)
    trace = MooncakeTrace(name="t", path=str(tmp_path / "t.jsonl"))
    experiment = ask(tiny_nodes("policy=full", "network.gbps=1"), trace.asked)
    rows = run(world, experiment).requests
    assert (rows[1].cached_tokens, rows[1].held_tokens) == (1024, 1024)
    # 1,200 tokens in 32 blocks of 37 or 38: 27 blocks end by 1,024 (27 * 37.5 = 1,012)
    assert rows[1].proactive_bytes == (1200 - 1012) * LAYERS * ENTRY


def test_what_is_cached_is_no_load(tiny_nodes, ask, world):
    """One token to compute at node 0 against ten at node 1; and nothing is left of either later."""
    given = [(0.0, 64, SHARED), (0.5, 9, ()), (1.0, 64, SHARED), (1.001, 10, ()), (1.002, 9, ())]
    given += [(2.0, 9, ()), (2.0, 9, ())]
    overrides = ("cluster.prefill_nodes=2", "cluster.routing=least_loaded")
    rows = run(world, ask(tiny_nodes(*overrides), prefixed(given))).requests
    assert "".join(nodes_of(rows, "prefill_node")) == "0101010"
    assert rows[2].cached_tokens == 63


# -- the share of a link that a prefill may expect


@pytest.mark.parametrize(
    ("prefills", "prefill_nodes", "decode_nodes", "share"),
    [
        (0.0, 4, 1, 1.0),  # nobody else
        (3.0, 1, 1, 1.0),  # the only one
        (1.0, 2, 1, 1 / 1.5),  # the other is busy half of the time
        (2.0, 4, 2, 1 / 1.75),  # three others, half of the time, half of them to this node
        (4.0, 4, 1, 1 / 4),
        (99.0, 4, 1, 1 / 4),  # overloaded: all are busy, not more
        (99.0, 4, 8, 8 / 11),
    ],
)
def test_the_expected_share_by_hand(prefills, prefill_nodes, decode_nodes, share):
    assert expected_share(prefills, prefill_nodes, decode_nodes) == exactly(share)


def test_an_experiment_expects_what_its_own_requests_make_of_the_link(serving):
    given = [(0.0, 200, 2), (0.1, 300, 2), (0.2, 400, 2)]
    experiment = serving(given, "cluster.prefill_nodes=3")
    busy_s = sum(experiment.cost.prefill_s(prompt, 0) for prompt in (200, 300, 400))
    assert experiment.link_share == exactly(1 / (1 + busy_s / 0.2 / 3 * 2))
    # and each request's T_t is stretched by it: Equation 2
    for request, plan in zip(
        experiment.requests, experiment.planner().plans_of(experiment.requests), strict=True
    ):
        window_s = experiment.cost.prefill_s(request.prompt_tokens, 0) * (LAYERS - 1) / LAYERS
        transfer_s = request.prompt_tokens * ENTRY * LAYERS / RATE / experiment.link_share
        hidden = int(192 * window_s / transfer_s)
        assert plan.num_planned == max(2 * BLOCKS, hidden)
