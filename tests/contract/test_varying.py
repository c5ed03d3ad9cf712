"""A link whose rate varies: both worlds agree, bytes are conserved, nothing else pretends to know.

The tiny model's runs last from a tenth of a second to some seconds, so rates change every few
milliseconds here.
"""

from dataclasses import replace

import pytest

from smartgen.cluster import links, varying_links
from smartgen.cost.variation import Random, Steps
from smartgen.emu.virtual import VirtualBackend
from smartgen.errors import SmartGenError
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend
from smartgen.sim.backend import why_not_folded

STEPS = Steps(steps=[[0, 1.0], [0.05, 0.3], [0.2, 0.7], [0.35, 0.2], [1.0, 1.0]])
DRAWN = Random(period_s=0.007, cv=0.5, correlation=0.5, mean=0.5, seed=4)


def with_variation(experiment, variation):
    return replace(experiment, network=replace(experiment.network, variation=variation))


def times(outcome):
    merged = merge(list(outcome.recorders))
    rows = [
        (row.first_token_s, row.plan_delivered_s, row.all_delivered_s, row.finish_s)
        for _, row in sorted(merged.requests.items())
    ]
    ends = [row.end_s for row in merged.iterations]
    return [outcome.makespan_s, *ends, *(value or 0.0 for row in rows for value in row)]


def moved(outcome):
    return sorted((t.source, t.purpose, t.bytes) for t in merge(list(outcome.recorders)).transfers)


@pytest.mark.parametrize("discipline", ["fifo", "queue_pair", "priority"])
@pytest.mark.parametrize("policy", ["smartgen", "partial", "full"])
@pytest.mark.parametrize("variation", [STEPS, DRAWN], ids=["steps", "drawn"])
@pytest.mark.parametrize("rtt_us", [0, 3000])
def test_simulator_and_emulator_agree(tiny, discipline, policy, variation, rtt_us):
    constant = tiny(
        f"policy={policy}",
        f"network.discipline={discipline}",
        f"network.rtt_us={rtt_us}",
        "record.transfers=true",
        "record.decisions=true",
    )
    experiment = with_variation(constant, variation)
    sim, emu = SimBackend().run(experiment), VirtualBackend(memory_gib=1.0).run(experiment)
    assert times(emu) == pytest.approx(times(sim), rel=1e-9)
    assert emu.link_busy_s == pytest.approx(sim.link_busy_s, rel=1e-9)
    assert moved(emu) == moved(sim)
    assert [r.decisions for r in emu.recorders] == [r.decisions for r in sim.recorders]
    assert times(sim) != pytest.approx(times(SimBackend().run(constant)), rel=1e-3)


@pytest.mark.parametrize("policy", ["smartgen", "partial", "full"])
def test_factors_of_one_change_nothing(tiny, policy):
    constant = tiny(f"policy={policy}", "record.transfers=true")
    ones = Steps(steps=[[0.01 * i, 1.0] for i in range(500)])
    assert times(SimBackend().run(with_variation(constant, ones))) == pytest.approx(
        times(SimBackend().run(constant)), rel=1e-12
    )


@pytest.mark.parametrize("policy", ["smartgen", "partial", "full"])
def test_half_the_rate_throughout_is_half_the_rate(tiny, policy):
    """But for K_r, which is planned with the nominal rate: all is planned here."""
    budget = ("policy.proactive=all",) if policy == "smartgen" else ()
    whole = tiny(f"policy={policy}", *budget, "network.gbps=0.02", "network.pair_us=0")
    half = tiny(f"policy={policy}", *budget, "network.gbps=0.01", "network.pair_us=0")
    varying = with_variation(whole, Steps(steps=[[0, 0.5]]))
    a, b = SimBackend(fold=False).run(varying), SimBackend(fold=False).run(half)
    assert times(a) == pytest.approx(times(b), rel=1e-9)
    assert a.link_busy_s["decode0"] == pytest.approx(b.link_busy_s["decode0"], rel=1e-9)


@pytest.mark.parametrize("discipline", ["fifo", "queue_pair", "priority"])
@pytest.mark.parametrize("policy", ["smartgen", "partial", "full"])
def test_no_more_crosses_a_link_than_its_rate_at_the_time_allows(tiny, policy, discipline):
    constant = tiny(f"policy={policy}", f"network.discipline={discipline}", "record.transfers=true")
    experiment = with_variation(constant, DRAWN)
    outcome = SimBackend().run(experiment)
    rate = links(experiment.network, experiment.cluster)["decode0"]
    course = varying_links(experiment.network, experiment.cluster)["decode0"]
    transfers = merge(list(outcome.recorders)).transfers
    ends = sorted({t.start_s for t in transfers} | {t.end_s for t in transfers})
    marks = ends[:: max(1, len(ends) // 40)]
    for i, first_s in enumerate(marks):
        for last_s in marks[i + 1 :]:
            inside = sum(t.bytes for t in transfers if first_s <= t.start_s and t.end_s <= last_s)
            could = rate * course.mean(first_s, last_s) * (last_s - first_s)
            assert inside <= could * (1 + 1e-9) + len(transfers)
    assert outcome.link_busy_s["decode0"] <= outcome.makespan_s * (1 + 1e-9)


def test_a_link_that_is_always_in_use_is_busy_all_the_time(tiny):
    """Seconds in which it was used, not bytes over the nominal rate."""
    experiment = with_variation(
        tiny("policy=full", "network.gbps=0.001", "record.transfers=true"), DRAWN
    )
    outcome = SimBackend().run(experiment)
    transfers = merge(list(outcome.recorders)).transfers
    span_s = max(t.end_s for t in transfers) - min(t.start_s for t in transfers)
    assert outcome.link_busy_s["decode0"] == pytest.approx(span_s, rel=0.02)


def test_what_varies_is_neither_folded_nor_in_the_recursion(closed):
    experiment = closed("network=elastic_25g_varying")
    assert isinstance(experiment.network.variation, Random)
    assert why_not_folded(experiment) == "network.variation"
    assert why_not_folded(with_variation(experiment, None)) is None
    with pytest.raises(SmartGenError, match=r"the recursion knows no network\.variation"):
        experiment.closed()
    assert experiment.batch_blocks == with_variation(experiment, None).batch_blocks


def test_the_seed_of_a_run_draws_its_rates(build):
    drawn = [build("network=elastic_15g_varying", f"seed={seed}").network for seed in (0, 0, 5)]
    assert [network.variation.seed for network in drawn] == [0, 0, 5]
    own = build("network=elastic_15g_varying", "seed=5", "network.variation.seed=1")
    assert own.network.variation.seed == 1
