"""The link without a clock: conservation at both ends, disciplines, ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartgen.cost import Flow, Wire
from smartgen.cost.variation import Course, Random, Steps

GB = 1e9


def flow(number, size, queue_pair="a", source="host0", urgent=False, pieces=1):
    return Flow((number,), source, "decode0", queue_pair, size, pieces, urgent)


def run(wire, postings):
    """Post flows at their times; returns them in order of their end."""
    ended = []
    for at_s, posted in sorted(postings, key=lambda row: row[0]):
        ended += wire.advance(at_s, at_s)
        wire.post(at_s, posted)
    return ended + wire.advance(1e12)


def two_flows(discipline):
    wire = Wire(discipline, {"host0": 9 * GB, "host1": 9 * GB, "decode0": GB})
    flows = [flow(0, GB, "a", "host0"), flow(1, GB, "b", "host1")]
    run(wire, [(0.0, flows[0]), (0.1, flows[1])])
    return [f.end_s for f in flows]


def test_two_equal_flows_end_at_1_9_and_2_0_s_when_they_share_fairly():
    assert two_flows("queue_pair") == pytest.approx([1.9, 2.0], rel=1e-12)


def test_two_equal_flows_end_at_1_0_and_2_0_s_in_order_of_posting():
    assert two_flows("fifo") == pytest.approx([1.0, 2.0], rel=1e-12)


def test_a_fetch_preempts_a_push_under_priority_and_waits_under_fifo():
    for discipline, push_end, fetch_end in (("priority", 1.5, 0.6), ("fifo", 1.0, 1.5)):
        wire = Wire(discipline, {"host0": GB, "decode0": GB})
        push, fetch = flow(0, GB), flow(1, 0.5 * GB, urgent=True)
        run(wire, [(0.0, push), (0.1, fetch)])
        assert (push.end_s, fetch.end_s) == pytest.approx((push_end, fetch_end))


def test_a_sending_link_that_is_slower_binds_its_flows_and_leaves_the_rest_to_others():
    wire = Wire("queue_pair", {"host0": 0.2 * GB, "host1": 9 * GB, "decode0": GB})
    slow, fast = flow(0, 0.2 * GB, "a", "host0"), flow(1, 0.8 * GB, "b", "host1")
    run(wire, [(0.0, slow), (0.0, fast)])
    assert slow.end_s == pytest.approx(1.0) and fast.end_s == pytest.approx(1.0)


def test_in_order_of_posting_a_slow_sender_leaves_room_for_the_next_one():
    """Three senders of half the receiver's rate: two at a time, in order."""
    rates = {f"host{i}": 0.5 * GB for i in range(3)} | {"decode0": GB}
    wire = Wire("fifo", rates)
    flows = [flow(i, 0.5 * GB, f"node{i}", f"host{i}") for i in range(3)]
    run(wire, [(0.0, f) for f in flows])
    assert [f.end_s for f in flows] == pytest.approx([1.0, 1.0, 2.0])
    for discipline in ("fifo", "priority"):
        same = Wire(discipline, rates)
        urgent = [flow(i, 0.5 * GB, f"node{i}", f"host{i}", urgent=True) for i in range(3)]
        run(same, [(0.0, f) for f in urgent])
        assert [f.end_s for f in urgent] == pytest.approx([1.0, 1.0, 2.0])
    later = flow(3, 0.5 * GB, "node0", "host0")
    first = flow(4, 0.5 * GB, "node0", "host0")
    again = Wire("fifo", rates)
    run(again, [(0.0, first), (0.0, later)])  # but one sender's own flows stay in order
    assert (later.end_s, first.end_s) == pytest.approx((1.0, 2.0))


def test_two_nodes_of_one_host_share_its_link():
    wire = Wire("queue_pair", {"host0": GB, "decode0": 9 * GB})
    flows = [flow(i, GB, f"node{i}", "host0") for i in range(2)]
    run(wire, [(0.0, f) for f in flows])
    assert [f.end_s for f in flows] == pytest.approx([2.0, 2.0])


def test_flows_posted_at_the_same_instant_are_served_by_their_keys():
    wire = Wire("fifo", {"host0": GB, "decode0": GB})
    flows = [flow(number, GB) for number in (2, 0, 1)]
    ended = run(wire, [(0.0, f) for f in flows])
    assert [f.key[0] for f in ended] == [0, 1, 2]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_so_are_flows_that_have_nothing_to_send(order):
    """The second one is over when the first is, whichever was posted first of them."""
    wire = Wire("fifo", {"host0": GB, "decode0": GB})
    flows = [flow(0, GB), flow(1, 0.0), flow(2, GB)]
    assert run(wire, [(3.0, flows[i]) for i in order]) == flows
    assert [(f.started_s, f.end_s) for f in flows] == [(3.0, 4.0), (4.0, 4.0), (4.0, 5.0)]


def test_a_displaced_flow_has_not_started():
    wire = Wire("fifo", {"host0": GB, "decode0": GB})
    flows = [flow(number, GB) for number in (2, 0, 1)]
    run(wire, [(0.0, f) for f in flows])
    assert [(f.started_s, f.end_s) for f in flows] == [(2.0, 3.0), (0.0, 1.0), (1.0, 2.0)]


def test_a_key_does_not_displace_what_has_begun_to_move():
    wire = Wire("fifo", {"host0": GB, "decode0": GB})
    first, late = flow(5, GB), flow(0, GB)
    run(wire, [(0.0, first), (0.5, late)])
    assert (first.end_s, late.end_s) == (1.0, 2.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(1, 1e9)), min_size=1, max_size=40))
def test_a_single_fifo_link_is_lindleys_recursion(rows):
    wire = Wire("fifo", {"host0": 9 * GB, "decode0": GB})
    rows = sorted(rows)
    flows = [flow(number, size) for number, (_, size) in enumerate(rows)]
    run(wire, [(at_s, f) for (at_s, _), f in zip(rows, flows, strict=True)])
    busy_s = 0.0
    for (at_s, size), posted in zip(rows, flows, strict=True):
        busy_s = max(busy_s, at_s) + size / GB
        assert posted.end_s == pytest.approx(busy_s, rel=1e-9)


@settings(max_examples=60)
@given(
    st.sampled_from(["fifo", "queue_pair", "priority"]),
    st.lists(
        st.tuples(st.floats(0, 3), st.floats(1e6, 1e9), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=25,
    ),
)
def test_no_link_ever_delivers_more_than_its_rate_allows(discipline, rows):
    rates = {"host0": 0.5 * GB, "host1": 0.7 * GB, "decode0": 0.6 * GB}
    wire = Wire(discipline, rates)
    flows = [
        Flow((i,), f"host{node // 2}", "decode0", f"node{node}", size, 1, urgent)
        for i, (_, size, node, urgent) in enumerate(rows)
    ]
    postings = sorted(zip([row[0] for row in rows], flows, strict=True), key=lambda row: row[0])
    times = np.linspace(0, 60, 241)
    delivered = {link: np.zeros(len(times)) for link in rates}
    ended: list[Flow] = []
    for step, at_s in enumerate(times):
        while postings and postings[0][0] <= at_s:
            posted_s, posted = postings.pop(0)
            ended += wire.advance(posted_s)
            wire.post(posted_s, posted)
        ended += wire.advance(at_s)
        for f in flows:
            done = (
                f.size
                if f.end_s <= at_s
                else f.size - f.remaining(at_s)
                if f.posted_s <= at_s
                else 0
            )
            done = done if f.started_s <= at_s else 0.0
            for link in (f.source, f.destination):
                delivered[link][step] += done
    for link, rate in rates.items():
        assert (np.diff(delivered[link]) <= rate * np.diff(times) * (1 + 1e-9) + 1).all()
    assert len(ended) == len(flows) == len(set(map(id, ended)))  # every flow ends, once


def test_pieces_land_one_after_the_other():
    wire = Wire("fifo", {"host0": GB, "decode0": GB})
    posted = flow(0, GB, pieces=10)
    wire.post(0.0, posted)
    assert [posted.landed_pieces(t) for t in (0.0, 0.05, 0.1, 0.35, 0.999, 1.0)] == [
        0,
        0,
        1,
        3,
        9,
        10,
    ]


def test_a_flushed_queue_pair_gives_its_rate_to_the_others():
    wire = Wire("queue_pair", {"host0": 9 * GB, "decode0": GB})
    gone, left = flow(0, GB, "a"), flow(1, GB, "b")
    wire.post(0.0, gone)
    wire.post(0.0, left)
    wire.advance(1.0)
    assert wire.drop(1.0, ["a"]) == [gone]
    assert wire.advance(1e9) == [left] and left.end_s == pytest.approx(1.5)


def test_a_sender_is_shared_by_its_receivers_in_order_of_posting():
    wire = Wire("fifo", {"host0": 1.5 * GB, "decode0": GB, "decode1": GB})
    first = Flow((1,), "host0", "decode0", "a", 2 * GB)
    second = Flow((2,), "host0", "decode1", "b", 1 * GB)
    run(wire, [(0.0, first), (0.0, second)])
    # the first takes its whole link; the second gets half of its own, and all of it from 2 s on
    assert (first.end_s, second.end_s) == (pytest.approx(2.0), pytest.approx(2.0))
    third = Flow((3,), "host0", "decode1", "b", 1 * GB)
    fourth = Flow((4,), "host0", "decode0", "a", 1 * GB)
    wire = Wire("fifo", {"host0": 1.5 * GB, "decode0": GB, "decode1": GB})
    run(wire, [(0.0, third), (0.5, fourth)])
    assert (third.end_s, fourth.end_s) == (pytest.approx(1.0), pytest.approx(1.75))


@pytest.mark.parametrize("discipline", ["fifo", "priority", "queue_pair"])
def test_two_receivers_do_not_touch_each_other_where_senders_are_fast(discipline):
    wire = Wire(discipline, {"host0": 2 * GB, "decode0": GB, "decode1": GB})
    flows = [Flow((i,), "host0", f"decode{i % 2}", f"qp{i % 2}", GB) for i in range(4)]
    run(wire, [(0.1 * i, flow) for i, flow in enumerate(flows)])
    assert [f.end_s for f in flows] == [pytest.approx(t) for t in (1.0, 1.1, 2.0, 2.1)]


DISCIPLINES = ["fifo", "priority", "queue_pair"]


def steps(*pairs):
    return {"decode0": Course(Steps(steps=pairs).changes("decode0"))}


def varying(discipline, *pairs):
    return Wire(discipline, {"host0": 9 * GB, "decode0": GB}, steps(*pairs))


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_flow_across_two_changes_ends_where_one_computes_by_hand(discipline):
    """1 s at 1 GB/s, 2 s at half of it, the last 0.2 GB at a quarter of it."""
    wire = varying(discipline, [0, 1], [1, 0.5], [3, 0.25])
    posted = flow(0, 2.2 * GB, pieces=22)
    wire.post(0.0, posted)
    ends = [wire.next_end_s]
    assert wire.advance(1.0) == []
    ends.append(wire.next_end_s)
    assert wire.advance(2.05) == [] and posted.landed_pieces(2.05) == 15
    assert wire.advance(3.41) == [] and posted.landed_pieces(3.41) == 21
    # what arrives one way later was sent before the last changes
    assert [posted.landed_pieces(3.41, way) for way in (0.31, 1.41, 2.46, 3.4)] == [20, 15, 9, 0]
    ends.append(wire.next_end_s)
    assert ends == pytest.approx([1.0, 3.0, 3.8])
    assert wire.advance(4.0) == [posted] and posted.end_s == pytest.approx(3.8)
    assert wire.next_end_s == float("inf")


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_change_at_the_end_of_a_flow_or_at_its_posting_counts_for_the_next_one(discipline):
    wire = varying(discipline, [0, 1], [1, 0.5], [2, 2])
    flows = [flow(number, size, str(number)) for number, size in enumerate((GB, 0.5 * GB, GB))]
    ended = run(wire, [(0.0, flows[0]), (1.0, flows[1]), (2.0, flows[2])])
    assert ended == flows and [f.end_s for f in flows] == [1.0, 2.0, 2.5]


def test_a_change_while_nothing_moves_wakes_nobody_and_counts():
    wire = varying("fifo", [0, 1], [1, 0.5])
    assert wire.drop(0.5, ["a"]) == [] and wire.next_end_s == float("inf")
    first, later = flow(0, 0.5 * GB), flow(1, GB)
    assert run(wire, [(0.0, first), (7.0, later)]) == [first, later]
    assert (first.end_s, later.end_s) == (0.5, 9.0)


def test_a_receiver_that_gets_faster_than_its_sender_is_limited_by_it():
    rates = {"host0": GB, "decode0": GB, "decode1": GB}
    for discipline in DISCIPLINES:
        wire = Wire(discipline, rates, steps([0, 0.5], [1, 2]))
        posted = flow(0, 1.5 * GB)
        run(wire, [(0.0, posted)])
        assert posted.end_s == pytest.approx(2.0)


def test_flows_on_constant_links_keep_their_exact_ends():
    rates = {"host0": 9 * GB, "host1": 9 * GB, "decode0": GB, "decode1": GB}
    drawn = Random(period_s=0.01, cv=0.5, seed=3)
    for discipline in DISCIPLINES:
        ends = []
        for courses in ({}, {"decode0": Course(drawn.changes("decode0"))}):
            wire = Wire(discipline, rates, courses)
            still = Flow((0,), "host1", "decode1", "b", 0.7 * GB / 3)
            run(wire, [(0.0, flow(1, GB)), (0.1, still)])
            ends.append(still.end_s)
        assert ends[0] == ends[1]


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_factors_of_one_change_nothing_but_when_one_wakes(discipline):
    sizes = [(0.0, 0.3 * GB), (0.1, 0.5 * GB), (0.1, 0.2 * GB), (2.0, GB)]
    found = []
    for courses in ({}, steps([0, 1], [0.15, 1], [0.8, 1], [2, 1])):
        wire = Wire(discipline, {"host0": 9 * GB, "decode0": GB}, courses)
        flows = [flow(i, size, str(i), urgent=i == 2) for i, (_, size) in enumerate(sizes)]
        run(wire, [(at_s, f) for (at_s, _), f in zip(sizes, flows, strict=True)])
        found.append([(f.started_s, f.end_s) for f in flows])
    assert found[0] == found[1]


@settings(max_examples=80)
@given(
    st.sampled_from(DISCIPLINES),
    st.integers(0, 99),
    st.floats(0.02, 1),
    st.sampled_from([0.4, 9.0]),
    st.lists(
        st.tuples(st.floats(0, 3), st.floats(1e6, 1e9), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=15,
    ),
)
def test_a_link_that_varies_moves_what_it_can_and_no_more(discipline, seed, period_s, fast, rows):
    """What is backlogged on one link is moved at its rate: bytes are its integral over busy time.

    Where senders are slow, no more than the integral is moved within any stretch between ends.
    """
    drawn = Random(period_s=period_s, cv=0.6, seed=seed, correlation=0.5, max_factor=2)
    rates = {"host0": fast * GB, "host1": fast * GB, "decode0": 0.6 * GB}
    wire = Wire(discipline, rates, {"decode0": Course(drawn.changes("decode0"))})
    rows = sorted(rows)
    flows = [
        Flow((i,), f"host{node // 2}", "decode0", f"node{node}", size, 1, urgent)
        for i, (_, size, node, urgent) in enumerate(rows)
    ]
    ended = run(wire, [(row[0], f) for row, f in zip(rows, flows, strict=True)])
    assert sorted(f.key for f in ended) == [f.key for f in flows]
    assert [f.end_s for f in ended] == sorted(f.end_s for f in ended)
    course = Course(drawn.changes("decode0"))
    busy = 0.0
    reach_s = rows[0][0]
    first_s = reach_s
    for f in sorted(flows, key=lambda f: f.posted_s):
        if f.posted_s > reach_s:
            busy += (reach_s - first_s) * course.mean(first_s, reach_s)
            first_s = f.posted_s
        reach_s = max(reach_s, f.end_s)
    busy += (reach_s - first_s) * course.mean(first_s, reach_s)
    moved = sum(f.size for f in flows)
    could = 0.6 * GB * busy
    assert moved <= could * (1 + 1e-9) + 1
    if fast == 9.0:
        assert moved == pytest.approx(could, rel=1e-9, abs=1)


def test_drawn_factors_have_the_mean_spread_and_correlation_that_were_asked_for():
    drawn = Random(
        period_s=0.5, cv=0.2, seed=1, mean=0.8, correlation=0.7, min_factor=0.001, max_factor=99
    )
    changes = drawn.changes("decode0")
    rows = np.array([next(changes) for _ in range(60_000)])
    factors = rows[:, 1]
    assert (rows[:, 0] == 0.5 * np.arange(len(rows))).all()
    assert factors.mean() == pytest.approx(0.8, rel=0.01)
    assert factors.std() / factors.mean() == pytest.approx(0.2, rel=0.02)
    logs = np.log(factors)
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(0.7, abs=0.01)


def test_drawn_factors_differ_by_link_and_seed_and_by_nothing_else():
    def first(seed, link, num=50):
        changes = Random(period_s=1, cv=0.3, seed=seed).changes(link)
        return [next(changes) for _ in range(num)]

    assert first(0, "decode0") == first(0, "decode0") == first(0, "decode0", 90)[:50]
    assert first(0, "decode0") != first(0, "decode1") != first(1, "decode1")


@given(st.lists(st.floats(0, 20), min_size=2, max_size=2), st.integers(0, 9))
def test_a_mean_is_that_of_the_pieces(ends, seed):
    first_s, last_s = sorted(ends)
    drawn = Random(period_s=0.7, cv=0.5, seed=seed)
    course, other = (Course(drawn.changes("decode0")) for _ in range(2))
    total, at_s = 0.0, first_s
    while at_s < last_s:
        factor, until_s = other.piece(at_s)
        assert until_s > at_s
        total += factor * (min(until_s, last_s) - at_s)
        at_s = until_s
    assert course.mean(first_s, last_s) * (last_s - first_s) == pytest.approx(total, abs=1e-12)
