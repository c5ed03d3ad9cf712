"""Contracts (1) to (3): the emulator, under a clock that jumps, equals the simulator."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smartgen.emu.nodes import EmuDecodeNode
from smartgen.emu.virtual import VirtualBackend
from smartgen.sim import SimBackend

SCHEMES = (
    "full",
    "partial",
    "partial_profile",
    "partial_parallel",
    "smartgen",
    "smartgen_budgeted",
    "smartgen_codes",
    "smartgen_idle",
    "smartgen_rate",
    "smartgen_adaptive",
    "proactive_only",
    "on_demand_only",
    "order_random",
    "order_optimal",
    "order_sequential",
    "order_streaming_llm",
    "hack",
)


def both(experiment):
    return SimBackend(fold=False).run(experiment), VirtualBackend(memory_gib=1.0).run(experiment)


def times(outcome):
    ends = [row.end_s for recorder in outcome.recorders for row in recorder.iterations]
    requests = [
        (row.request_id, row.first_token_s, row.plan_delivered_s, row.all_delivered_s, row.finish_s)
        for recorder in outcome.recorders
        for row in recorder.requests.values()
    ]
    flat = [value or 0.0 for row in sorted(requests, key=str) for value in row]
    return [outcome.makespan_s, *ends, *flat]


def sizes(recorder):
    """Bytes of every request by purpose, and its outcome."""
    return {
        request_id: (
            row.status,
            row.proactive_bytes,
            row.metadata_bytes,
            row.speculative_bytes,
            row.on_demand_bytes,
        )
        for request_id, row in recorder.requests.items()
    }


def assert_same(experiment):
    sim, emu = both(experiment)
    assert times(emu) == pytest.approx(times(sim), rel=1e-9)
    assert [r.decisions for r in emu.recorders] == [r.decisions for r in sim.recorders]
    for a, b in zip(sim.recorders, emu.recorders, strict=True):
        assert sizes(a) == sizes(b)
        assert [row[3:] for row in b.tokens] == [row[3:] for row in a.tokens]
        moved = [(i.local_bytes, i.on_demand_bytes, i.speculative_bytes) for i in a.iterations]
        assert [
            (i.local_bytes, i.on_demand_bytes, i.speculative_bytes) for i in b.iterations
        ] == moved
    return sim, emu


@pytest.mark.parametrize("policy", SCHEMES)
@pytest.mark.parametrize("gbps", [0.002, 0.01, 0.05])
@pytest.mark.parametrize(
    "mode",
    [("fifo", "live", 0), ("queue_pair", "iteration", 300), ("priority", "live", 20_000)],
    ids=str,
)
def test_times_and_decisions_are_equal_for_every_scheme_and_bandwidth(tiny, policy, gbps, mode):
    discipline, mask_update, rtt_us = mode
    sim, _ = assert_same(
        tiny(
            f"policy={policy}",
            f"network.gbps={gbps}",
            f"network.discipline={discipline}",
            f"mask_update={mask_update}",
            f"network.rtt_us={rtt_us}",
            "record.decisions=true",
        )
    )
    assert any(recorder.decisions for recorder in sim.recorders)


@pytest.mark.parametrize("discipline", ["fifo", "queue_pair", "priority"])
@pytest.mark.parametrize("mask_update", ["live", "iteration"])
@pytest.mark.parametrize("selector", ["infinigen", "hata", "all"])
def test_they_are_equal_in_every_mode(tiny, discipline, mask_update, selector):
    assert_same(
        tiny(
            f"network.discipline={discipline}",
            f"mask_update={mask_update}",
            f"selector={selector}",
            "network.rtt_us=200",
            "network.gbps=0.01",
            "record.decisions=true",
        )
    )


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    policy=st.sampled_from(SCHEMES),
    lengths=st.lists(st.integers(2, 200), min_size=1, max_size=4),
    blocks=st.integers(1, 60),
    nodes=st.integers(1, 3),
    gbps=st.floats(0.001, 0.2),
    rtt_us=st.sampled_from([0, 100, 50_000]),
    seed=st.integers(0, 99),
)
def test_they_are_equal_for_any_lengths_blocks_and_nodes(
    tiny, policy, lengths, blocks, nodes, gbps, rtt_us, seed
):
    """Also for prompts that M does not divide, or that are shorter than M."""
    assert_same(
        tiny(
            f"policy={policy}",
            f"workload.requests={len(lengths)}",
            f"workload.prompt_tokens={lengths}",
            "workload.output_tokens=6",
            f"blocks_per_layer={blocks}",
            f"cluster.prefill_nodes={nodes}",
            f"network.gbps={gbps}",
            f"network.rtt_us={rtt_us}",
            f"seed={seed}",
            "record.decisions=true",
        )
    )


@pytest.mark.parametrize(
    "policy", ["full", "partial", "smartgen", "on_demand_only", "order_random", "hack"]
)
def test_every_attended_row_is_compared_with_what_the_prefill_node_computed(
    tiny, policy, monkeypatch
):
    checked = []
    finish = EmuDecodeNode.finish

    def count(node, request_id, status):
        checked.append(node.num_checked_rows)
        finish(node, request_id, status)

    monkeypatch.setattr(EmuDecodeNode, "finish", count)
    experiment = tiny(f"policy={policy}")
    outcome = VirtualBackend(memory_gib=1.0).run(experiment)
    iterations = [row for recorder in outcome.recorders for row in recorder.iterations]
    layers, heads = experiment.geometry.num_layers, experiment.geometry.num_kv_heads
    attended = sum(row.selected_entries for row in iterations) * heads
    if policy == "hack":  # attends everything in every layer
        attended = sum(row.cached_tokens for row in iterations) * heads * layers
    # a layer loaded ahead for the next step does not hold that step's newest entry
    newest = sum(row.batch_size for row in iterations) * heads
    assert attended - newest <= checked[-1] <= attended + newest


def test_the_decoding_pool_ends_up_as_the_prefill_nodes_pools_were(tiny, monkeypatch):
    """After the speculative phase every byte of every prompt is there, whatever was fetched."""
    import numpy as np

    from smartgen.emu.pool import pattern

    seen = []

    def compare(node, slot):
        held, geometry = node.slots[slot], node.experiment.geometry
        tokens = np.arange(held.request.prompt_tokens)
        for layer in range(geometry.num_layers):
            right = pattern(geometry, held.request.request_id, layer, tokens)
            seen.append(np.array_equal(node.pool.entries[layer, held.pages[tokens]], right))
        release(node, slot)

    release = EmuDecodeNode.release
    monkeypatch.setattr(EmuDecodeNode, "release", compare)
    VirtualBackend(memory_gib=1.0).run(tiny("policy=smartgen", "workload.output_tokens=30"))
    assert len(seen) == 4 * 6 and all(seen)


def test_blocks_and_tokens_agree_on_what_is_remote(tiny):
    """The simulator counts blocks; the emulator looks tokens up in a mask: same entries."""
    experiment = tiny("policy=partial_parallel", "network.gbps=0.005", "record.decisions=true")
    sim, emu = both(experiment)
    for a, b in zip(sim.recorders, emu.recorders, strict=True):
        splits = [d for d in a.decisions if d.kind == "split"]
        assert splits == [d for d in b.decisions if d.kind == "split"]
    remote = [i.remote_entries for r in emu.recorders for i in r.iterations]
    assert remote and min(remote) > 0
