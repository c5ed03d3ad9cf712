"""What every transport must do, alike: the semantics of verbs, between two ends of one process."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgen.emu.transports.protocol import (
    Completion,
    Opcode,
    PostRefused,
    Status,
)
from smartgen.errors import SmartGenError

SIZE = 1 << 20
Join = Callable[..., Any]
ALL = pytest.mark.parametrize("name", ["tcp", "shm"])
FLUSHED = Status.WR_FLUSH_ERR


def statuses(done: list[Completion]) -> list[Status]:
    return [completion.status for completion in done]


@ALL
@pytest.mark.parametrize("row", [1, 7, 512, 4096, 40_000, 3 << 20])
def test_a_chain_lands_where_it_belongs_and_its_immediate_comes_after_it(
    join: Join, name: str, row: int
) -> None:
    num = max(2, min(1000, (1 << 20) // row))
    with join(name, size=2 * num * row + 1) as pair:
        places = np.random.default_rng(row).permutation(2 * num)[:num] * row + 1
        pair.b.post_recv(5, None)
        pair.write(1, [(i * row, int(to), row) for i, to in enumerate(places)], imm=77)
        expected = np.zeros_like(pair.far.memory)
        for i, to in enumerate(places):
            expected[to : to + row] = pair.near.memory[i * row : (i + 1) * row]
        done, taken = pair.run(lambda a, b: bool(b))
        assert taken == [Completion(5, Opcode.RECV_RDMA_WITH_IMM, Status.SUCCESS, num * row, 77)]
        assert (pair.far.memory == expected).all()
        done = done or pair.counts(1, 0)[0]
        assert done == [Completion(1, Opcode.WRITE, Status.SUCCESS, num * row)]


_PIECE = st.tuples(
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.one_of(st.just(64), st.just(0), st.integers(0, 300), st.integers(10_000, 100_000)),
)


@ALL
@given(chains=st.lists(st.tuples(st.lists(_PIECE, max_size=30), st.booleans()), max_size=8))
def test_any_chains_leave_the_bytes_that_copies_in_their_order_leave(
    join: Join, name: str, chains: list[tuple[list[tuple[int, int, int]], bool]]
) -> None:
    with join(name, size=110_000) as pair:
        expected = pair.far.memory.copy()
        for number, (pieces, has_immediate) in enumerate(chains):
            pair.write(number, pieces, imm=number if has_immediate else None)
            for from_, to, length in pieces:
                expected[to : to + length] = pair.near.memory[from_ : from_ + length]
        told = [number for number, (_, has_immediate) in enumerate(chains) if has_immediate]
        for receive in range(len(told)):
            pair.b.post_recv(receive, None)
        done, taken = pair.counts(len(chains), len(told))
        assert [completion.wr_id for completion in done] == list(range(len(chains)))
        assert [completion.immediate for completion in taken] == told
        assert (pair.far.memory == expected).all()


_CUTS = st.lists(st.one_of(st.integers(0, 200), st.just(0), st.integers(5000, 30_000)), max_size=20)


@ALL
@pytest.mark.parametrize("most", [1, 6, 20])
@given(sent=_CUTS, room=_CUTS, seed=st.integers(0, 99))
def test_a_send_fills_the_segments_of_its_receive_in_order(
    join: Join, name: str, most: int, sent: list[int], room: list[int], seed: int
) -> None:
    room, draw = room[:most], np.random.default_rng(seed)
    with join(name, size=700_000, max_recv_sge=most) as pair:
        into = list(zip(draw.permutation(20)[: len(room)] * 31_000, room, strict=True))
        pair.b.post_recv(3, pair.at(pair.far, *into))
        pieces = [(int(draw.integers(0, 600_000)), length) for length in sent]
        pair.send(4, *pieces)
        total = sum(sent)
        if total > sum(room):
            done, taken = pair.counts(1, 1)
            assert statuses(done) == [Status.REM_INV_REQ_ERR]
            assert statuses(taken) == [Status.LOC_LEN_ERR]
            assert not pair.far.memory.any()
            return
        expected = pair.far.memory.copy()
        stream = np.concatenate(
            [np.zeros(0, np.uint8), *(pair.near.memory[o : o + n] for o, n in pieces)]
        )
        for offset, length in into:
            fits = stream[:length]
            expected[offset : offset + len(fits)] = fits
            stream = stream[length:]
        done, taken = pair.counts(1, 1)
        assert done == [Completion(4, Opcode.SEND, Status.SUCCESS, total)]
        assert taken == [Completion(3, Opcode.RECV, Status.SUCCESS, total)]
        assert (pair.far.memory == expected).all()


@ALL
def test_a_receive_that_is_posted_late_is_waited_for_and_what_follows_waits_too(
    join: Join, name: str
) -> None:
    with join(name) as pair:
        pair.write(1, [(0, 0, 1000)], imm=9)
        pair.send(2, (0, 500))
        pair.write(3, [(0, 5000, 1000)])
        for _ in range(50):
            assert not pair.a.poll()
            assert not pair.b.poll()
        assert not pair.far.memory[5000:6000].any()
        pair.b.post_recv(1, pair.at(pair.far, (0, 1)))  # an immediate leaves its segments alone
        done, taken = pair.counts(1, 1)
        assert (done[0].wr_id, taken[0].immediate) == (1, 9)
        assert not pair.far.memory[5000:6000].any()
        pair.b.post_recv(2, pair.at(pair.far, (2000, 600)))
        done, taken = pair.counts(2, 1)
        assert [completion.wr_id for completion in done] == [2, 3]
        assert (pair.far.memory[2000:2500] == pair.near.memory[:500]).all()
        assert (pair.far.memory[5000:6000] == pair.near.memory[:1000]).all()


@ALL
def test_patience_with_a_peer_that_posts_no_receive_can_end(join: Join, name: str) -> None:
    with join(name, patience_s=0.0) as pair:
        pair.send(1, (0, 10))
        pair.write(2, [(0, 0, 10)])
        done, _ = pair.counts(2, 0)
        assert statuses(done) == [Status.RNR_RETRY_EXC_ERR, FLUSHED]
        pair.run(lambda a, b: pair.b.failed)


@ALL
def test_one_large_segment_may_lead_thousands_of_small_ones(join: Join, name: str) -> None:
    with join(name, size=2 << 20) as pair:
        pieces = [(0, 1 << 20, 70_000), *((i * 300, 300 * (1700 - i), 299) for i in range(1700))]
        expected = pair.far.memory.copy()
        for from_, to, length in pieces:
            expected[to : to + length] = pair.near.memory[from_ : from_ + length]
        pair.write(1, pieces)
        pair.counts(1, 0)
        assert (pair.far.memory == expected).all()


@ALL
def test_a_chain_may_be_empty(join: Join, name: str) -> None:
    with join(name) as pair:
        pair.write(1, [])
        pair.write(2, [], imm=0xFFFF_FFFF)
        pair.b.post_recv(7, None)
        done, taken = pair.counts(2, 1)
        assert [completion.wr_id for completion in done] == [1, 2]
        assert taken == [Completion(7, Opcode.RECV_RDMA_WITH_IMM, Status.SUCCESS, 0, 0xFFFF_FFFF)]


@ALL
def test_a_send_longer_than_its_receive_ends_both_ends(join: Join, name: str) -> None:
    with join(name) as pair:
        for receive in range(3):
            pair.b.post_recv(receive, pair.at(pair.far, (0, 10), (50, 5)))
        pair.send(0, (0, 15))
        pair.send(1, (0, 16))
        pair.write(2, [(0, 100, 10)])
        done, taken = pair.counts(3, 3)
        assert statuses(done) == [Status.SUCCESS, Status.REM_INV_REQ_ERR, FLUSHED]
        assert statuses(taken) == [Status.SUCCESS, Status.LOC_LEN_ERR, FLUSHED]
        assert not pair.far.memory[100:110].any()
        assert pair.a.failed
        assert pair.b.failed


@ALL
@pytest.mark.parametrize(
    ("offset", "length", "key"),
    [
        (-1, 10, 0),
        (SIZE - 9, 10, 0),
        (SIZE + 1, 0, 0),
        (2**63 - 1, 10, 0),
        (-(2**63), 10, 0),
        (2**63 - 5, 100_000, 0),
        (0, 10, 1),
        (0, SIZE, 1),
    ],
)
def test_a_write_outside_of_registered_memory_ends_both_ends_and_writes_nothing(
    join: Join, name: str, offset: int, length: int, key: int
) -> None:
    with join(name) as pair:
        pair.b.post_recv(1, None)
        pair.b.post_writes(8, pair.at(pair.far, (0, 1)), pair.near.key, np.zeros(1, np.int64))
        pair.counts(0, 1)
        local = pair.at(pair.near, (0, 20), (0, length))
        pair.a.post_writes(1, local, (pair.far.key + key) % 2**32, np.array([50, offset]), 3)
        pair.a.post_recv(2, None)
        done, taken = pair.counts(2, 1)
        assert statuses(done) == [Status.REM_ACCESS_ERR, FLUSHED]
        assert statuses(taken) == [FLUSHED]
        assert not pair.far.memory.any()
        assert pair.b.failed


@ALL
def test_a_write_to_what_is_registered_no_longer_is_an_error(join: Join, name: str) -> None:
    with join(name) as pair:
        memory = pair.far.memory
        pair.write(1, [(0, 0, 10)])
        pair.counts(1, 0)
        pair.devices[1].deregister(pair.far)
        pair.write(2, [(0, 20, 10)])
        done, _ = pair.counts(1, 0)
        assert statuses(done) == [Status.REM_ACCESS_ERR]
        assert memory[:10].any()
        assert not memory[10:].any()
        with pytest.raises(SmartGenError, match="has registered"):
            pair.devices[1].deregister(pair.far)


@ALL
@pytest.mark.parametrize("ended_by", ["deregister", "fail"])
def test_nothing_lands_after_the_end_in_the_middle_of_a_write(
    join: Join, name: str, ended_by: str
) -> None:
    with join(name, size=64 << 20) as pair:
        memory = pair.far.memory
        pair.write(1, [(0, 0, 64 << 20)])
        for _ in range(2):
            pair.a.progress()
            pair.b.progress()
        assert memory.any()
        if ended_by == "fail":
            pair.b.fail()
        else:
            pair.devices[1].deregister(pair.far)
        before = memory.copy()
        done, _ = pair.counts(1, 0)
        assert statuses(done) == [FLUSHED if ended_by == "fail" else Status.REM_ACCESS_ERR]
        assert (memory == before).all()


@ALL
def test_memory_registered_after_connecting_is_found_by_its_key(join: Join, name: str) -> None:
    with join(name) as pair:
        keys = {pair.far.key}
        for number in range(5):
            late = pair.devices[1].register(100 + number)
            keys.add(late.key)
            pair.a.post_writes(number, pair.at(pair.near, (0, 100)), late.key, np.array([number]))
            pair.counts(1, 0)
            assert (late.memory[number:] == pair.near.memory[:100]).all()
            pair.devices[1].deregister(late)
        assert len(keys) == 6


@ALL
@pytest.mark.parametrize("who", ["a", "b"])
def test_failing_flushes_both_ends_and_nothing_posted_is_executed_any_more(
    join: Join, name: str, who: str
) -> None:
    with join(name, size=16 << 20) as pair:
        pair.a.post_recv(20, None)
        pair.send(1, (0, 10))  # meets no receive
        pair.write(2, [(0, 0, 10)])
        pair.b.post_writes(3, pair.at(pair.far, (0, 0)), pair.near.key, np.zeros(1, np.int64), 1)
        pair.b.post_writes(4, pair.at(pair.far, (0, 0)), pair.near.key, np.zeros(1, np.int64), 2)
        met, first = pair.counts(1, 1)
        assert statuses(met + first) == [Status.SUCCESS] * 2
        getattr(pair, who).fail()
        done, taken = pair.counts(2, 1)
        assert statuses(done) == [FLUSHED] * 2
        assert statuses(taken) == [FLUSHED]
        assert not pair.far.memory.any()
        for post in (
            lambda: pair.write(5, []),
            lambda: pair.send(6),
            lambda: pair.a.post_recv(7, None),
        ):
            with pytest.raises(PostRefused, match="failed"):
                post()
