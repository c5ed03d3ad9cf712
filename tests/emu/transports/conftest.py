"""Two ends of one process, connected."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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
)

SIZE = 1 << 20


class Pair:
    """Two devices, a region of random bytes and one of zeros, and a connected queue pair."""

    def __init__(self, name: str, size: int, patience_s: float, **limits: int) -> None:
        self.devices: list[Device] = [
            open_device(name, Limits(**limits), patience_s=patience_s) for _ in range(2)
        ]
        self.near: Region = self.devices[0].register(size)
        self.far: Region = self.devices[1].register(size)
        self.near.memory[:] = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        self.a: QueuePair = self.devices[0].queue_pair(dials=True)
        self.b: QueuePair = self.devices[1].queue_pair(dials=False)
        self.a.connect(self.b.address, 10)
        self.b.connect(self.a.address, 10)

    def run(
        self, until: Callable[[list[Completion], list[Completion]], bool]
    ) -> tuple[list[Completion], list[Completion]]:
        """Poll both ends until the completions of a and of b are enough."""
        done: tuple[list[Completion], list[Completion]] = ([], [])
        give_up_s = time.monotonic() + 60
        while not until(*done):
            assert time.monotonic() < give_up_s, f"stuck with {done}"
            done[0].extend(self.a.poll())
            done[1].extend(self.b.poll())
        return done

    def counts(self, of_a: int, of_b: int) -> tuple[list[Completion], list[Completion]]:
        """Poll until each end has so many completions, and a little longer."""
        done = self.run(lambda a, b: len(a) >= of_a and len(b) >= of_b)
        for _ in range(20):
            done[0].extend(self.a.poll())
            done[1].extend(self.b.poll())
        assert (len(done[0]), len(done[1])) == (of_a, of_b)
        return done

    def write(self, wr_id: int, pieces: list[tuple[int, int, int]], imm: int | None = None) -> None:
        """Post a chain from near to far: (from, to, length) each."""
        from_, to, lengths = np.array(pieces, np.int64).reshape(-1, 3).T
        self.a.post_writes(wr_id, Segments(self.near, from_, lengths), self.far.key, to, imm)

    def send(self, wr_id: int, *pieces: tuple[int, int]) -> None:
        """Post a SEND from near."""
        self.a.post_send(wr_id, self.at(self.near, *pieces))

    @staticmethod
    def at(region: Region, *pieces: tuple[int, int]) -> Segments:
        """Segments from (offset, length) each."""
        offsets, lengths = np.array(pieces, np.int64).reshape(-1, 2).T
        return Segments(region, offsets, lengths)


@contextmanager
def joined(
    name: str, size: int = SIZE, patience_s: float = float("inf"), **limits: int
) -> Iterator[Pair]:
    pair = Pair(name, size, patience_s, **limits)
    try:
        yield pair
    finally:
        for device in pair.devices:
            device.close()


@pytest.fixture(scope="session")
def join() -> Callable[..., AbstractContextManager[Pair]]:
    """A connected pair, given the transport, and what else is to be unlike the default."""
    return joined
