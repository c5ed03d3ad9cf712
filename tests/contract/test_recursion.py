"""Contract (5): the event-driven simulator equals the recursion on closed batches."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smartgen.cost.recursion import closed_batch_times
from smartgen.sim import SimBackend

SCHEMES = (
    "full",
    "partial",
    "partial_profile",
    "partial_parallel",
    "partial_reuse",
    "smartgen",
    "smartgen_budgeted",
    "smartgen_codes",
    "smartgen_rate",
    "proactive_only",
    "hack",
)


def iteration_ends(experiment):
    outcome = SimBackend().run(experiment)
    return [row.end_s for recorder in outcome.recorders for row in recorder.iterations]


def assert_equal(experiment):
    expected = closed_batch_times(experiment.closed()).iteration_end_s
    assert iteration_ends(experiment) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("policy", SCHEMES)
@pytest.mark.parametrize("requests", [1, 6])
def test_the_simulator_equals_the_recursion_for_every_scheme(closed, policy, requests):
    assert_equal(closed(f"policy={policy}", f"workload.requests={requests}"))


@pytest.mark.parametrize("selector", ["infinigen", "hata", "all"])
@pytest.mark.parametrize("gbps", [2, 15, 32])
def test_it_does_so_for_every_kind_of_selector_and_bandwidth(closed, selector, gbps):
    assert_equal(closed(f"selector={selector}", f"network.gbps={gbps}"))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    policy=st.sampled_from(SCHEMES),
    selector=st.sampled_from(["infinigen", "hata"]),
    lengths=st.lists(st.integers(3, 4000), min_size=1, max_size=5),
    nodes=st.integers(1, 4),
    gbps=st.floats(0.05, 40),
    rtt_us=st.sampled_from([0, 50, 1000]),
    ratio=st.sampled_from([0.03, 0.1, 0.5]),
    first=st.sampled_from([1, 2, 4]),
)
def test_it_does_so_for_uneven_prompts_shared_nodes_and_any_rate(
    closed, policy, selector, lengths, nodes, gbps, rtt_us, ratio, first
):
    speculates = policy.startswith("smartgen")
    experiment = closed(
        "model=tiny",
        f"policy={policy}",
        f"selector={selector}",
        f"workload.requests={len(lengths)}",
        f"workload.prompt_tokens={lengths}",
        "workload.output_tokens=9",
        f"cluster.prefill_nodes={nodes}",
        f"network.gbps={gbps / 100}",
        f"network.rtt_us={rtt_us}",
        f"policy.speculative_ratio={ratio if speculates else 0.0}",
        f"policy.first_speculative_step={first}",
        "blocks_per_layer=50",
    )
    assert_equal(experiment)


@pytest.mark.parametrize(
    "change", ["mask_update=live", "network.discipline=queue_pair", "network.discipline=priority"]
)
def test_outside_of_that_mode_times_differ(closed, change):
    """Otherwise the comparison above would say nothing about the mode it is made in."""
    ratio = "policy.speculative_ratio=0.2"
    expected = closed_batch_times(closed(ratio).closed()).iteration_end_s
    assert iteration_ends(closed(ratio, change)) != pytest.approx(expected, rel=1e-3)
