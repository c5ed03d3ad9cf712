"""Between two processes, one of which may be killed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from select import select
from typing import Any, NamedTuple

import numpy as np
import pytest

from smartgen.emu.transports import open_device
from smartgen.emu.transports.protocol import (
    Completion,
    Device,
    Limits,
    QueuePair,
    Region,
    Segments,
    Status,
)

ALL = pytest.mark.parametrize("name", ["tcp", "shm"])
PEER = Path(__file__).with_name("peer.py")


def _constants() -> Any:
    spec = spec_from_file_location("transport_peer", PEER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


peer = _constants()


class Other(NamedTuple):
    """A queue pair with another process."""

    process: subprocess.Popen[str]
    device: Device
    region: Region
    queue_pair: QueuePair
    key: int

    def poll(self) -> list[Completion]:
        """Wait for completions."""
        while not (done := list(self.queue_pair.poll())):
            writes = [self.queue_pair] if self.queue_pair.wants_write else []
            assert any(select([self.queue_pair], writes, [], 60)), "nothing happens"
        return done

    def take(self, num: int) -> list[Completion]:
        """Wait for so many completions, at least."""
        done: list[Completion] = []
        while len(done) < num:
            done += self.poll()
        return done


@contextmanager
def other(name: str, what: str, receives: int = 0) -> Iterator[Other]:
    """A process that does what peer.py says, connected."""
    device = open_device(name, Limits(max_send_wr=1 << 16))
    command = [sys.executable, str(PEER), name, what]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            region = device.register(peer.SIZE)
            queue_pair = device.queue_pair(dials=what == "take")
            for number in range(receives):
                queue_pair.post_recv(number, None)
            process.stdin.write(f"{queue_pair.address.hex()}-{region.key}\n")
            process.stdin.flush()
            address, _, key = process.stdout.readline().partition("-")
            queue_pair.connect(bytes.fromhex(address), 30)
            yield Other(process, device, region, queue_pair, int(key))
        finally:
            process.kill()
            device.close()


@ALL
def test_random_chains_to_another_process_have_the_digest_of_copies(name: str) -> None:
    with other(name, "take") as taker:
        draw = np.random.default_rng(11)
        taker.region.memory[:] = draw.integers(0, 256, peer.SIZE, np.uint8)
        expected = np.zeros(peer.SIZE, np.uint8)
        for number, row in enumerate([512, 4096, 100, 65536, 1, 200_000] * 5):
            num = min(300, peer.SIZE // row // 2)
            from_, to = (draw.integers(0, peer.SIZE - row, num) for _ in range(2))
            lengths = np.full(num, row) if number % 2 else draw.integers(0, row + 1, num)
            taker.queue_pair.post_writes(
                number, Segments(taker.region, from_, lengths), taker.key, to
            )
            for source, target, size in zip(from_, to, lengths, strict=True):
                expected[target : target + size] = taker.region.memory[source : source + size]
        none = np.zeros(0, np.int64)
        taker.queue_pair.post_send(99, Segments(taker.region, none, none))
        done = taker.take(31)
        assert {completion.status for completion in done} == {Status.SUCCESS}
        assert taker.process.stdout is not None
        assert taker.process.stdout.readline().strip() == sha256(expected).hexdigest()


@ALL
@pytest.mark.parametrize("seed", range(4))
def test_of_a_killed_writer_whole_chains_stay_and_nothing_lies_elsewhere(
    name: str, seed: int
) -> None:
    num_seen = int(np.random.default_rng(seed).integers(1, peer.SLOTS - 5))
    with other(name, "write", receives=peer.SLOTS) as writer:
        done = writer.take(num_seen)
        writer.process.send_signal(signal.SIGKILL)
        done += writer.take(peer.SLOTS - len(done))
        told = [c.immediate for c in done if c.status is Status.SUCCESS]
        assert told == list(range(len(told)))
        assert {c.status for c in done[len(told) :]} <= {Status.WR_FLUSH_ERR}
        assert writer.queue_pair.failed or len(told) == peer.SLOTS
        memory = writer.region.memory
        assert not memory[: peer.GUARD].any()
        assert not memory[-peer.GUARD :].any()
        slots = memory[peer.GUARD : -peer.GUARD].reshape(peer.SLOTS, peer.SLOT)
        for slot, found in enumerate(slots):
            right = {slot + 1} if slot < len(told) else {0, slot + 1}
            assert set(np.unique(found).tolist()) <= right


@ALL
@pytest.mark.parametrize("num_seen", [0, 3, 8])
def test_of_requests_to_a_killed_process_the_first_says_so_and_others_are_flushed(
    name: str, num_seen: int
) -> None:
    with other(name, "take") as taker:
        taker.queue_pair.post_recv(1, None)
        rows = np.arange(1000, dtype=np.int64) * 1000
        for number in range(30):
            local = Segments(taker.region, rows, np.full(1000, 1000))
            taker.queue_pair.post_writes(number, local, taker.key, rows, number)
        done = taker.take(num_seen) if num_seen else []
        taker.process.send_signal(signal.SIGKILL)
        done += taker.take(31 - len(done))
        *sent, received = done
        assert received.status is Status.WR_FLUSH_ERR
        assert [completion.wr_id for completion in sent] == list(range(30))
        found = [completion.status for completion in sent]
        num_done = found.count(Status.SUCCESS)
        assert num_seen <= num_done <= peer.RECEIVES
        assert found[:num_done] == [Status.SUCCESS] * num_done
        assert found[num_done:] == [Status.RETRY_EXC_ERR] + [Status.WR_FLUSH_ERR] * (29 - num_done)
