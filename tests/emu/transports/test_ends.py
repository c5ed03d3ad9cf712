"""How ends meet, what they hold, what hostile peers cannot do, and what stays after them."""

import asyncio
import gc
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from smartgen.emu.transports import open_device
from smartgen.emu.transports.protocol import Limits, Opcode, PostRefused, QueuePair, Status
from smartgen.errors import SmartGenError

Join = Callable[..., Any]
ALL = pytest.mark.parametrize("name", ["tcp", "shm"])


@ALL
def test_what_does_not_fit_is_refused_and_fits_again_after_completions(
    join: Join, name: str
) -> None:
    with join(name, max_send_wr=4, max_recv_wr=2, max_send_sge=2, max_recv_sge=1) as pair:
        pair.write(1, [(0, 0, 1)] * 3, imm=1)
        with pytest.raises(PostRefused, match="2 requests do not fit beside the 3 outstanding"):
            pair.write(2, [(0, 0, 1)] * 2)
        pair.write(2, [])
        with pytest.raises(PostRefused, match="send queue holds 4"):
            pair.send(3)
        with pytest.raises(PostRefused, match="3 segments; a SEND has 2"):
            pair.send(3, (0, 1), (1, 1), (2, 1))
        with pytest.raises(PostRefused, match="2 segments; a receive has 1"):
            pair.b.post_recv(1, pair.at(pair.far, (0, 1), (1, 1)))
        pair.b.post_recv(1, None)
        pair.b.post_recv(2, None)
        with pytest.raises(PostRefused, match="receive queue holds 2"):
            pair.b.post_recv(3, None)
        pair.counts(2, 1)
        pair.write(4, [(0, 0, 1)] * 4)
        pair.b.post_recv(3, None)
        pair.counts(1, 0)


@ALL
def test_local_segments_that_are_not_in_registered_memory_are_refused(
    join: Join, name: str
) -> None:
    with join(name) as pair:
        for pieces in ([(-1, 1)], [(0, -1)], [(1 << 20, 1)], [(2**63 - 1, 2**63 - 1)]):
            with pytest.raises(SmartGenError, match="must lie in the 1048576 bytes"):
                pair.send(1, *pieces)
        with pytest.raises(SmartGenError, match="has registered"):
            pair.a.post_send(1, pair.at(pair.far, (0, 1)))
        with pytest.raises(SmartGenError, match="immediate=4294967296"):
            pair.write(1, [], imm=2**32)


@ALL
def test_many_requests_of_all_kinds_complete_in_order(join: Join, name: str) -> None:
    with join(name) as pair:
        draw = np.random.default_rng(3)
        kinds = draw.integers(0, 3, 1000)
        for number, kind in enumerate(kinds):
            if kind == 0:
                pair.send(number, (number, 50))
            else:
                pair.write(number, [(number, number, 10)], imm=number if kind == 1 else None)
        takes = np.flatnonzero(kinds < 2)
        for number in takes:
            pair.b.post_recv(int(number), pair.at(pair.far, (5000 + 50 * int(number), 50)))
        done, taken = pair.counts(1000, len(takes))
        assert [completion.wr_id for completion in done] == list(range(1000))
        assert [completion.wr_id for completion in taken] == takes.tolist()
        for completion in taken:
            sent = kinds[completion.wr_id] == 0
            assert completion.opcode is (Opcode.RECV if sent else Opcode.RECV_RDMA_WITH_IMM)
            assert completion.immediate == (None if sent else completion.wr_id)


@ALL
def test_both_ends_may_send_much_at_once(join: Join, name: str) -> None:
    with join(name, size=8 << 20) as pair:
        zero = np.zeros(1, np.int64)
        size = 8 << 20
        for queue_pair, own, other in (
            (pair.a, pair.near, pair.far),
            (pair.b, pair.far, pair.near),
        ):
            for number in range(4):
                queue_pair.post_writes(number, pair.at(own, (0, size)), other.key, zero)
            queue_pair.post_send(4, pair.at(own, (0, 100)))
        for queue_pair, own in ((pair.a, pair.near), (pair.b, pair.far)):
            queue_pair.post_recv(5, pair.at(own, (0, 100)))
        done, taken = pair.counts(6, 6)
        assert {completion.status for completion in done + taken} == {Status.SUCCESS}


@ALL
def test_an_end_learns_why_it_failed_although_the_other_was_in_the_middle_of_a_write(
    join: Join, name: str
) -> None:
    size = 64 << 20
    with join(name, size=size) as pair:
        zero = np.zeros(1, np.int64)
        chain = np.arange(0, size, 1 << 18)
        local = pair.at(pair.far, *((int(offset), 1 << 18) for offset in chain))
        pair.b.post_writes(1, local, pair.near.key, chain)
        pair.a.post_writes(2, pair.at(pair.near, (0, 10)), pair.far.key, zero - 5)
        for _ in range(3):
            pair.b.progress()  # until the socket is full
        done, taken = pair.counts(1, 1)
        assert (done[0].status, taken[0].status) == (Status.REM_ACCESS_ERR, Status.WR_FLUSH_ERR)


@ALL
def test_one_call_of_progress_moves_some_mib_and_no_more(join: Join, name: str) -> None:
    with join(name, size=64 << 20) as pair:
        pair.near.memory[:] = 1
        pair.write(1, [(i << 20, i << 20, 1 << 20) for i in range(64)])
        for _ in range(3):
            before = int(pair.far.memory.sum())
            pair.a.progress()
            pair.b.progress()
            assert int(pair.far.memory.sum()) - before <= 16 << 20
        assert pair.a.wants_write
        pair.counts(1, 0)
        assert pair.far.memory.all()


class Echo:
    """Both ends on an event loop: each answers a WRITE with an immediate by another one."""

    def __init__(self, pair: Any, most: int) -> None:
        self.pair, self.left = pair, most
        self.loop = asyncio.get_running_loop()
        self.done = asyncio.Event()

    async def run(self) -> None:
        for queue_pair in (self.pair.a, self.pair.b):
            self.loop.add_reader(queue_pair.fileno(), self.look, queue_pair)
            queue_pair.post_recv(0, None)
            self.arm(queue_pair)
        self.answer(self.pair.a)
        self.arm(self.pair.a)
        await asyncio.wait_for(self.done.wait(), 60)
        for queue_pair in (self.pair.a, self.pair.b):
            self.loop.remove_reader(queue_pair.fileno())
            self.loop.remove_writer(queue_pair.fileno())

    def look(self, queue_pair: QueuePair) -> None:
        for completion in queue_pair.poll():
            if completion.opcode is Opcode.RECV_RDMA_WITH_IMM:
                self.left -= 1
                if self.left:
                    self.answer(queue_pair)
                else:
                    self.done.set()
        self.arm(queue_pair)

    def answer(self, queue_pair: QueuePair) -> None:
        pair = self.pair
        own, other = (pair.near, pair.far) if queue_pair is pair.a else (pair.far, pair.near)
        queue_pair.post_recv(0, None)
        local = pair.at(own, (0, 1 << 20))
        queue_pair.post_writes(0, local, other.key, np.zeros(1, np.int64), 1)

    def arm(self, queue_pair: QueuePair) -> None:
        if queue_pair.wants_write:
            self.loop.add_writer(queue_pair.fileno(), self.look, queue_pair)
        else:
            self.loop.remove_writer(queue_pair.fileno())


@ALL
def test_an_event_loop_needs_no_polling(join: Join, name: str) -> None:
    async def echo(pair: Any) -> int:
        both = Echo(pair, 40)
        await both.run()
        return both.left

    with join(name) as pair:
        assert asyncio.run(echo(pair)) == 0


@ALL
def test_closing_ends_the_other_end_and_views_of_memory_stay(join: Join, name: str) -> None:
    with join(name) as pair:
        pair.b.post_recv(1, None)
        pair.b.post_writes(2, pair.at(pair.far, (0, 9)), pair.near.key, np.zeros(1, np.int64), 5)
        near, far = pair.near.memory, pair.far.memory
        pair.b.progress()
        pair.devices[0].close()
        done, taken = pair.run(lambda a, b: len(b) == 2)
        assert done == []
        assert {completion.status for completion in taken} == {Status.WR_FLUSH_ERR}
        with pytest.raises(PostRefused):
            pair.a.post_recv(1, None)
        assert pair.a.fileno() == -1
        near[0], far[0] = 1, 2
        assert (near[0], far[0]) == (1, 2)


def _open() -> tuple[int, int]:
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:smartgen")
    return sum(1 for _ in Path("/proc/self/fd").iterdir()), mapped


@ALL
def test_nothing_stays_open_or_mapped_after_closing(join: Join, name: str) -> None:
    with join(name):
        pass
    before = _open()
    for end in ("close", "fail", "deregister"):
        with join(name) as pair:
            pair.write(1, [(0, 0, 1000)])
            pair.counts(1, 0)
            late = pair.devices[1].register(5000)
            pair.devices[0].queue_pair(dials=False)
            pair.devices[0].queue_pair(dials=True)
            if end == "fail":
                pair.a.fail()
                pair.run(lambda a, b, pair=pair: pair.b.failed)
            elif end == "deregister":
                pair.devices[1].deregister(late)
        del pair, late
    assert _open() == before


@ALL
def test_a_stranger_is_dropped_and_the_right_one_still_gets_in(join: Join, name: str) -> None:
    answering, dialling = open_device(name, Limits()), open_device(name, Limits())
    b = answering.queue_pair(dials=False)
    *place, token = b.address.decode().split()
    wrong = " ".join([*place, "00" * (len(token) // 2)]).encode()
    stranger = dialling.queue_pair(dials=True)
    stranger.connect(wrong, 5)
    a = dialling.queue_pair(dials=True)
    thread = threading.Thread(target=b.connect, args=(b"", 30))
    thread.start()
    a.connect(b.address, 5)
    thread.join()
    while not stranger.failed:
        stranger.progress()
    assert not b.failed
    with pytest.raises(ConnectionError):
        dialling.queue_pair(dials=True).connect(b.address, 5)  # it listens no longer
    with pytest.raises(ConnectionError, match="connected before"):
        b.connect(b"", 5)
    with pytest.raises(ConnectionError, match="must be the address"):
        dialling.queue_pair(dials=True).connect(b"nonsense", 5)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        answering.queue_pair(dials=False).connect(b"", 0.01)
    answering.close()
    dialling.close()


def test_only_known_transports_are_opened() -> None:
    with pytest.raises(SmartGenError, match="transport='pigeon' must be one of tcp, shm"):
        open_device("pigeon", Limits())
    with pytest.raises(SmartGenError, match="host='nowhere' must be an address"):
        open_device("tcp", Limits(), host="nowhere").queue_pair(dials=False)


def _frame(kind: int, code: int = 0, value: int = 0, number: int = 0, length: int = 0) -> bytes:
    return pack("<BBxxIIIq", kind, code, value, number, 0, length)


def _hostile(key: int) -> list[bytes]:
    far = pack("<q", 2**63 - 1)
    return [
        _frame(0),
        _frame(200),
        _frame(1, 1, key, 1, 10) + pack("<q", -5) + bytes(10),
        _frame(1, 1, key, 1, 10) + far + bytes(10),
        _frame(1, 1, key, 1, 2**63 - 1) + bytes(8),
        _frame(1, 1, key, 2, -1) + bytes(16) + far + far,
        _frame(1, 1, key, 2, -1) + bytes(16) + pack("<qq", 10, -10),
        _frame(1, 1, key, 2**32 - 1, 2**62),
        _frame(1, 1, key, 3, 0) + pack("<qqq", 0, 0, 2**62),
        _frame(1, 1, key ^ 1, 1, 1) + bytes(9),
        _frame(2, 0, 5),
        _frame(3, length=10) + bytes(10),
        _frame(3, length=-1),
        _frame(4, 0, 0, 1),
        _frame(5, 255),
    ]


@pytest.mark.parametrize("case", [*range(15), *range(100, 130)])
def test_no_bytes_of_a_tcp_peer_do_more_than_end_the_queue_pair(case: int) -> None:
    device = open_device("tcp", Limits())
    queue_pair = device.queue_pair(dials=False)
    region = device.register(1000)
    _, host, port, token = queue_pair.address.decode().split()
    with socket.create_connection((host, int(port)), 5) as raw:
        raw.sendall(b"smartgen" + bytes.fromhex(token))
        queue_pair.connect(b"", 5)
        if case < 100:
            said = _hostile(region.key)[case]
        else:  # anything, after a start that has sense
            draw = np.random.default_rng(case)
            said = _frame(int(draw.integers(1, 5)), 0, region.key, int(draw.integers(9)), -1)
            said += draw.bytes(3000)
        raw.sendall(said)
        raw.shutdown(socket.SHUT_WR)
        while not queue_pair.failed:
            queue_pair.progress()
    assert case >= 100 or not region.memory.any()
    device.close()
