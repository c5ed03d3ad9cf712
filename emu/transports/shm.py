"""The transport over shared memory: a device."""

import math

from smartgen.emu.transports.memory import Regions
from smartgen.emu.transports.messages import MOST_SEGMENTS
from smartgen.emu.transports.protocol import Limits, Region
from smartgen.emu.transports.shared import ShmRegion
from smartgen.emu.transports.shm_queue import ShmQueuePair
from smartgen.errors import within


class ShmDevice:
    """Memory and queue pairs of one machine; patience_s is how long a request waits for a receive.

    Nothing of it has a name in a file system: with the processes it is gone.
    """

    def __init__(self, limits: Limits, patience_s: float = math.inf) -> None:
        within("max_recv_sge of transport=shm", limits.max_recv_sge, 1, MOST_SEGMENTS)
        self._limits = limits
        self._patience_s = patience_s
        self._regions: Regions[ShmRegion] = Regions()
        self._queue_pairs: set[ShmQueuePair] = set()

    @property
    def limits(self) -> Limits:
        """What its queue pairs can hold."""
        return self._limits

    def register(self, num_bytes: int) -> Region:
        """Allocate zeroed memory, and register it."""
        region = self._regions.add(num_bytes, ShmRegion)
        for queue_pair in self._queue_pairs:
            queue_pair.announce(region)
        return region

    def deregister(self, region: Region) -> None:
        """A WRITE to its key is an error from now on; its memory is freed with the last user."""
        self._regions.remove(region).revoke()
        for queue_pair in self._queue_pairs:
            queue_pair.withdraw(region.key)

    def queue_pair(self, dials: bool) -> ShmQueuePair:
        """A new one, not connected; one that does not dial listens at a name of its own."""
        return ShmQueuePair(self._limits, self._regions, self._queue_pairs, dials, self._patience_s)

    def close(self) -> None:
        """Close all queue pairs and free all memory."""
        for queue_pair in list(self._queue_pairs):
            queue_pair.close()
        for region in self._regions.all():
            self._regions.remove(region).revoke()
