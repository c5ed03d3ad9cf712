"""Contracts (1), (2) and (4) at once, over whatever a configuration allows."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from smartgen.emu.virtual import VirtualBackend
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend

POLICIES = (
    "full",
    "partial",
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
    "hack",
)
MOMENTS = st.sampled_from([0, 0.01, 0.05, 0.15, 0.3, 1.0])


@st.composite
def configurations(draw):
    lengths = draw(st.lists(st.sampled_from([1, 2, 17, 100, 181, 400]), min_size=1, max_size=5))
    nodes = draw(st.integers(1, 4))
    aborts = draw(st.dictionaries(st.integers(0, len(lengths) - 1), MOMENTS, max_size=3))
    losses = draw(st.dictionaries(st.integers(0, nodes - 1), MOMENTS, max_size=2))
    pool = draw(st.sampled_from(["null", max(lengths) + 12, max(lengths) + 212]))
    chosen = {
        "policy": st.sampled_from(POLICIES),
        "selector": st.sampled_from(["infinigen", "hata", "quest", "all"]),
        "model.num_hidden_layers": st.sampled_from([1, 2, 3, 6]),
        "workload.output_tokens": st.sampled_from([1, 2, 5, 12]),
        "workload.cached_ratio": st.sampled_from([0, 0.5, 1]),
        "blocks_per_layer": st.sampled_from([1, 3, 32, 60]),
        "cluster.gpus_per_host": st.sampled_from([1, 2]),
        "network.gbps": st.sampled_from([0.0005, 0.005, 0.02, 0.3, 30]),
        "network.sender_gbps": st.sampled_from([0.01, 32]),
        "network.rtt_us": st.sampled_from([0, 50, 20_000]),
        "network.discipline": st.sampled_from(["fifo", "queue_pair", "priority"]),
        "mask_update": st.sampled_from(["live", "iteration"]),
        "policy.first_speculative_step": st.sampled_from([1, 2, 9]),
        "policy.speculative_ratio": st.sampled_from([0, 0.03, 0.3, 1.0]),
        "seed": st.integers(0, 9),
    }
    return (
        *(f"{key}={draw(values)}" for key, values in chosen.items()),
        f"workload.requests={len(lengths)}",
        f"workload.prompt_tokens={lengths}",
        f"workload.abort_s={[list(pair) for pair in aborts.items()]}",
        f"cluster.prefill_nodes={nodes}",
        f"cluster.lost_s={[list(pair) for pair in losses.items()]}",
        f"cluster.decode_pool_tokens={pool}",
    )


AT_THE_SAME_INSTANT = (
    "model.num_hidden_layers=2",
    "workload.requests=4",
    "workload.output_tokens=5",
    "workload.cached_ratio=1",
    "cluster.prefill_nodes=2",
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(configurations())
@example(  # a client leaves and its node dies
    (
        *AT_THE_SAME_INSTANT,
        "workload.prompt_tokens=[17,181,181,181]",
        "network.gbps=30",
        "network.sender_gbps=0.01",
        "network.discipline=queue_pair",
        "workload.abort_s=[[0,0.15],[2,0],[3,0.15]]",
        "cluster.lost_s=[[1,0.15]]",
    )
)
@example(  # an abort is heard when a layer is done
    (
        *AT_THE_SAME_INSTANT,
        "policy=proactive_only",
        "selector=quest",
        "workload.prompt_tokens=[100,1,2,1]",
        "blocks_per_layer=1",
        "network.rtt_us=50",
        "workload.abort_s=[[0,0.05],[3,0.05]]",
    )
)
def test_any_run_takes_the_same_course_in_both_worlds(tiny, overrides):
    experiment = tiny(*overrides, "record.decisions=true")
    sim, emu = SimBackend().run(experiment), VirtualBackend(memory_gib=1.0).run(experiment)
    assert emu.makespan_s == pytest.approx(sim.makespan_s, rel=1e-9)
    assert [r.decisions for r in emu.recorders] == [r.decisions for r in sim.recorders]
    seen = []
    for outcome in (sim, emu):
        merged = merge(list(outcome.recorders))
        rows = merged.requests.values()
        assert len(rows) == len(experiment.workload.lengths)
        seen.append(
            [
                (r.request_id, r.status, r.proactive_bytes, r.on_demand_bytes, r.speculative_bytes)
                for r in sorted(rows, key=lambda row: row.request_id)
            ]
        )
    assert seen[0] == seen[1]
    assert all(status in ("finished", "aborted", "failed") for _, status, *_ in seen[0])
