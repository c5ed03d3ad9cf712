"""Quotas from observations, and what an observer makes of what lands: pure, without a run."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgen.errors import SmartGenError
from smartgen.nodes.observer import WEIGHT, Observer
from smartgen.policy import Observation, Policy, fixed_quotas, observed_quotas
from smartgen.policy.observation import TICK_S, ticks

M = 30
POLICY = Policy(name="any", speculation="observed", speculative_ratio=0.1)
SECONDS = st.floats(0, 1)


@st.composite
def seen(draw):
    """An observation, and how many blocks of each request no quota has covered yet."""
    layers, number = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    left = draw(st.lists(st.integers(0, 200), min_size=number, max_size=number))
    observation = Observation(
        layer_s=tuple(draw(st.lists(SECONDS, min_size=layers, max_size=layers))),
        busy_s=tuple(draw(st.lists(SECONDS, min_size=layers, max_size=layers))),
        block_s=draw(st.sampled_from([0.0, 1e-3, 0.02, 0.5])),
        requests=tuple(range(number)),
        blocks_left=tuple(left),
    )
    return observation, [draw(st.integers(0, blocks)) for blocks in left]


def policies():
    shares = st.sampled_from([0.01, 0.1, 0.5, 1.0])
    return st.builds(
        lambda fill, floor: replace(POLICY, speculative_fill=fill, speculative_floor=floor),
        st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        shares,
    )


@given(policies(), seen())
def test_quotas_are_never_negative_nor_more_than_is_left_nor_than_a_layer_holds(policy, case):
    observation, unasked = case
    quotas = observed_quotas(policy, M, observation, unasked)
    assert len(quotas) == len(unasked)
    for told, blocks in zip(quotas, unasked, strict=True):
        assert len(told) == len(observation.layer_s)
        assert min(told) >= 0 and max(told) <= M and sum(told) <= blocks


@given(policies(), seen())
def test_the_same_observation_gives_the_same_decision(policy, case):
    observation, unasked = case
    again = Observation(
        tuple(observation.layer_s),
        tuple(observation.busy_s),
        observation.block_s,
        tuple(observation.requests),
        tuple(observation.blocks_left),
    )
    first = observed_quotas(policy, M, observation, unasked)
    assert observed_quotas(policy, M, again, list(unasked)) == first


@given(policies(), seen(), st.integers(0, 5), SECONDS)
def test_more_idle_time_never_means_less_is_pushed_by_any_layer(policy, case, layer, more_s):
    observation, unasked = case
    longer = list(observation.layer_s)
    longer[layer % len(longer)] += more_s
    before = observed_quotas(policy, M, observation, unasked)
    after = observed_quotas(policy, M, replace(observation, layer_s=tuple(longer)), unasked)
    for fewer, others in zip(before, after, strict=True):
        for layer in range(len(fewer)):
            assert sum(others[: layer + 1]) >= sum(fewer[: layer + 1])


@given(policies(), seen(), st.integers(0, 100))
def test_what_is_on_its_way_takes_its_share_of_the_idle_time_first(policy, case, behind):
    observation, unasked = case
    left = tuple(blocks + behind for blocks in observation.blocks_left)
    before = observed_quotas(policy, M, observation, unasked)
    after = observed_quotas(policy, M, replace(observation, blocks_left=left), unasked)
    assert all(sum(less) <= sum(more) for less, more in zip(after, before, strict=True))


@given(policies(), seen())
def test_a_floor_is_pushed_whatever_was_seen_so_that_it_ends(policy, case):
    observation, unasked = case
    busy = replace(observation, busy_s=observation.layer_s)
    quotas = observed_quotas(policy, M, busy, unasked)
    floor = int(policy.speculative_floor * M * len(busy.layer_s))
    for told, blocks in zip(quotas, unasked, strict=True):
        assert sum(told) >= min(blocks, floor)


def test_idle_time_is_filled_to_the_share_asked_for_and_dealt_in_turns():
    policy = replace(POLICY, speculative_fill=0.5, speculative_floor=0.01)
    observation = Observation((1.0, 3.0, 1.0), (0.0, 1.0, 1.0), 0.1, (7, 8), (90, 90))
    quotas = observed_quotas(policy, M, observation, [90, 90])
    assert [sum(layer) for layer in zip(*quotas, strict=True)] == [5, 10, 0]
    assert [sum(told) for told in quotas] == [7, 8]
    behind = replace(observation, blocks_left=(96, 92))  # eight are on their way: 5, then 3
    quotas = observed_quotas(policy, M, behind, [90, 90])
    assert [sum(layer) for layer in zip(*quotas, strict=True)] == [0, 7, 1]


@given(st.floats(0, 1), st.integers(1, 9), st.integers(1, 60), st.integers(0, 40))
def test_fixed_quotas_add_up_whichever_step_one_begins_at(ratio, layers, blocks, step):
    policy = Policy(name="any", speculative_ratio=ratio)
    told = [
        quota for at in range(step, step + 5) for quota in fixed_quotas(policy, layers, blocks, at)
    ]
    assert abs(sum(told) - 5 * layers * ratio * blocks) <= 1 + 1e-6
    assert min(told) >= 0 and max(told) <= blocks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"busy_s": ()}, "an observation of 1 layers has 0 busy times"),
        ({"blocks_left": ()}, "an observation of 1 requests counts 0"),
        ({"block_s": -1.0}, "an observation holds -1.0; nothing seen is negative"),
    ],
)
def test_an_observation_that_cannot_be_is_refused(change, message):
    with pytest.raises(SmartGenError, match=message):
        replace(Observation((1.0,), (0.5,), 0.1, (3,), (4,)), **change)


# -- what an observer makes of what lands


@dataclass
class Landed:
    posted_s: float
    started_s: float
    end_s: float
    size: float = 0.0


def test_a_layer_was_busy_for_as_long_as_the_link_needed_for_pushes_and_replies():
    observer = Observer(0.0, 1.0)
    for started_s, end_s in [(0.25, 1.25), (1.25, 1.5), (2.0, 2.0), (2.75, 5.0)]:
        observer.replied(Landed(0.0, started_s, end_s, 8 * (end_s - started_s)))
    observer.iterated([0.5, 1.0, 2.0, 3.0])
    assert observer.layer_s == (0.5, 1.0, 1.0)
    assert observer.busy_s == (0.5, 0.5, 0.25)
    observer.iterated([])  # everything was local
    assert observer.layer_s == observer.busy_s == ()


def test_what_shares_a_link_with_speculative_pushes_needs_its_part_of_it_only():
    observer = Observer(0.0, 1.0)
    observer.replied(Landed(0.0, 0.0, 2.0, 300.0))
    observer.pushed(5, Landed(0.0, 0.0, 2.0, 100.0))
    observer.iterated([0.0, 2.0])
    assert observer.busy_s == (1.5,)
    assert observer.block_s == ticks(0.1)


def test_times_are_those_of_arrival():
    observer = Observer(0.25, 1.0)
    observer.replied(Landed(0.0, 0.5, 1.0, 7.0))
    observer.iterated([0.0, 1.0, 2.0])
    assert observer.busy_s == (0.25, 0.25)


def test_a_block_takes_what_it_took_lately():
    observer = Observer(0.0, 0.3)
    assert observer.block_s == ticks(0.3)
    observer.pushed(4, Landed(0.0, 1.0, 2.0, 10.0))
    observer.pushed(4, Landed(0.0, 2.0, 5.0, 30.0))
    observer.iterated([])
    assert observer.block_s == 0.5
    observer.replied(Landed(0.0, 5.0, 6.0, 10.0))
    observer.iterated([])
    assert observer.block_s == 0.5  # nothing new


def test_the_rate_counts_waiting_behind_others_but_not_for_ones_own_next_push():
    observer = Observer(0.0, 1.0)
    assert observer.rate is None
    observer.planned(1, Landed(0.0, 1.0, 2.0, 300.0), is_last=False)  # waited for a second
    assert observer.rate is None
    observer.planned(1, Landed(4.0, 4.0, 5.0, 300.0), is_last=True)
    assert observer.rate == 200.0
    observer.planned(2, Landed(0.0, 5.0, 6.0, 600.0), is_last=True)
    assert observer.rate == round(200 + WEIGHT * (100 - 200))
    observer.planned(3, Landed(7.0, 7.0, 8.0, 9.0), is_last=False)
    observer.forget(3)
    observer.planned(3, Landed(9.0, 9.0, 9.0, 0.0), is_last=True)  # nothing to send says nothing
    assert observer.rate == 175.0


@given(st.lists(st.integers(0, 10**7), min_size=2, max_size=40))
def test_sums_of_the_same_durations_in_another_order_are_the_same_number_of_ticks(tenths_us):
    durations = [number * 1e-7 for number in tenths_us]
    assert ticks(sum(durations)) == ticks(sum(reversed(durations)))
    assert abs(ticks(durations[0]) - durations[0]) <= TICK_S / 2
