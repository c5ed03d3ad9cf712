"""The transport over TCP: a device."""

import math

import numpy as np

from smartgen.emu.transports.memory import Regions
from smartgen.emu.transports.protocol import Limits, Memory, Region
from smartgen.emu.transports.tcp_queue import TcpQueuePair


class TcpRegion:
    """Memory of a TCP device."""

    def __init__(self, key: int, num_bytes: int) -> None:
        self._key = key
        self._memory: Memory = np.zeros(num_bytes, dtype=np.uint8)

    @property
    def key(self) -> int:
        """The remote key."""
        return self._key

    @property
    def memory(self) -> Memory:
        """All of it, as bytes."""
        return self._memory


class TcpDevice:
    """Memory and queue pairs over TCP; patience_s is how long a request waits for a receive."""

    def __init__(
        self, limits: Limits, host: str = "127.0.0.1", patience_s: float = math.inf
    ) -> None:
        self._limits = limits
        self._host = host
        self._patience_s = patience_s
        self._regions: Regions[TcpRegion] = Regions()
        self._queue_pairs: set[TcpQueuePair] = set()

    @property
    def limits(self) -> Limits:
        """What its queue pairs can hold."""
        return self._limits

    def register(self, num_bytes: int) -> Region:
        """Allocate zeroed memory, and register it."""
        return self._regions.add(num_bytes, TcpRegion)

    def deregister(self, region: Region) -> None:
        """A WRITE to its key is an error from now on; its memory is freed with the last user."""
        self._regions.remove(region)

    def queue_pair(self, dials: bool) -> TcpQueuePair:
        """A new one, not connected; one that does not dial listens at a port of its own."""
        return TcpQueuePair(
            self._limits, self._regions, self._queue_pairs, self._host, dials, self._patience_s
        )

    def close(self) -> None:
        """Close all queue pairs and free all memory."""
        for queue_pair in list(self._queue_pairs):
            queue_pair.close()
        for region in self._regions.all():
            self._regions.remove(region)
