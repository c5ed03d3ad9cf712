"""Decisions by observation can be derived again from the log, in every world."""

from itertools import takewhile

import pytest

from smartgen.emu.virtual import VirtualBackend
from smartgen.errors import SmartGenError
from smartgen.policy import Observation, fixed_quotas, observed_quotas
from smartgen.sim import SimBackend
from smartgen.sim.backend import why_not_folded
from smartgen.workload import Request

WORLDS = {
    "layered": SimBackend(fold=False),
    "folded": SimBackend(),
    "emu": VirtualBackend(memory_gib=1.0),
}
BUSY = ("record.decisions=true", "network.gbps=0.01", "policy=smartgen_adaptive")
SHARED = (
    "cluster=dp1",
    "cluster.prefill_nodes=2",
    "cluster.gpus_per_host=2",
    "network.sender_gbps=0.1",
    "network.gbps=0.1",
    "policy=smartgen_rate",
    "record.decisions=true",
)
"""Two prefill nodes that push over one link."""


def decided(world, experiment):
    return [recorder.decisions for recorder in WORLDS[world].run(experiment).recorders]


def rows(decisions, kind):
    return [decision for decision in decisions if decision.kind == kind]


def again(experiment, seen, told):
    """The quotas that follow from a logged observation and what is logged of its requests."""
    layers = experiment.geometry.num_layers
    block_s, times = seen.values[0], seen.values[1:]
    left, unasked = zip(*[row.values[:2] for row in told], strict=True)
    if not times:
        return tuple(
            fixed_quotas(experiment.policy, layers, experiment.blocks_per_layer, row.step)
            for row in told
        )
    observation = Observation(
        times[:layers],
        times[layers:],
        block_s,
        tuple(row.request_id for row in told),
        tuple(map(int, left)),
    )
    return observed_quotas(
        experiment.policy, experiment.blocks_per_layer, observation, list(map(int, unasked))
    )


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("first", [1, 2])
def test_every_quota_follows_from_the_logged_observation(tiny, world, first):
    experiment = tiny(*BUSY, f"policy.first_speculative_step={first}")
    assert why_not_folded(experiment) is None
    decoding = decided(world, experiment)[0]
    found = 0
    for at, seen in enumerate(decoding):
        if seen.kind == "observe":
            told = list(takewhile(lambda row: row.kind == "quota", decoding[at + 1 :]))
            assert tuple(row.values[2:] for row in told) == again(experiment, seen, told)
            found += 1
    assert found > 3


@pytest.mark.parametrize("world", WORLDS)
def test_what_is_pushed_is_what_the_quotas_say_and_never_more_than_a_plan_has_left(tiny, world):
    experiment = tiny(*BUSY, "workload.output_tokens=50")
    nodes = decided(world, experiment)
    quotas = {
        (row.request_id, row.step): (row.values[1], row.values[2:])
        for row in rows(nodes[0], "quota")
    }
    pushed = {}
    for row in [row for node in nodes[1:] for row in rows(node, "speculate")]:
        unasked, told = quotas[row.request_id, row.step]
        assert len(row.values) == min(told[row.layer], unasked - sum(told[: row.layer]))
        pushed[row.request_id] = pushed.get(row.request_id, 0) + len(row.values)
    plans = {row.request_id: row.values[0] for row in rows(nodes[0], "plan")}
    assert pushed == {
        request_id: experiment.geometry.num_blocks - planned
        for request_id, planned in plans.items()
    }


def bursts(tiny, ask, *overrides):
    """Three pairs of requests, each pair at once, far apart."""
    given = [Request(i, 2.0 * (i // 2), 300, 0, 6) for i in range(6)]
    return ask(tiny(*SHARED, *overrides), given)


@pytest.mark.parametrize("world", WORLDS)
def test_a_budget_follows_the_rate_at_which_earlier_pushes_were_seen_to_arrive(tiny, ask, world):
    """The nominal rate knows nothing of two nodes behind one link that push at the same time."""
    experiment = bursts(tiny, ask)
    decoding = decided(world, experiment)[0]
    plans = [row.values[0] for row in rows(decoding, "plan")]
    rates = {row.request_id: row.values[0] for row in rows(decoding, "rate")}
    nominal = experiment.network.receiver_bytes_per_s
    assert sorted(rates) == [2, 3, 4, 5]  # nothing was seen before the first two
    assert all(0.4 * nominal < rate < 0.8 * nominal for rate in rates.values())
    budget = experiment.budget
    for request in experiment.requests:
        share = experiment.link_share
        if request.request_id in rates:
            share = budget.share_at(rates[request.request_id])
        assert plans[request.request_id] == budget.planned_blocks([request], share)
    assert plans[0] > plans[2]


def test_such_a_run_is_the_same_in_every_world(tiny, ask):
    for overrides in ((), ("policy=smartgen_adaptive",)):
        experiment = bursts(tiny, ask, *overrides)
        layered = decided("layered", experiment)
        assert decided("emu", experiment) == layered
        folded = decided("folded", experiment)
        for ours, theirs in zip(folded, layered, strict=True):
            assert [row[:4] for row in ours] == [row[:4] for row in theirs]
            for a, b in zip(ours, theirs, strict=True):
                assert a.values == pytest.approx(b.values, rel=1e-9)


@pytest.mark.parametrize("policy", ["smartgen", "smartgen_codes"])
def test_fixed_schemes_observe_nothing(tiny, policy):
    decoding = decided("layered", tiny(*BUSY[:2], f"policy={policy}"))[0]
    assert not [row for row in decoding if row.kind in ("observe", "quota", "rate")]


def test_the_recursion_refuses_what_it_does_not_know(closed):
    with pytest.raises(SmartGenError, match="recursion='observed' must be one of fixed"):
        closed("policy=smartgen_idle").closed()
