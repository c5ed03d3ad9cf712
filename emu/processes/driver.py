"""Has an event loop drive a queue pair."""

import asyncio
from collections.abc import Callable

from smartgen.emu.transports.protocol import Completion, QueuePair, Segments, Status
from smartgen.kv.geometry import Int


class Driver:
    """A connected queue pair: makes progress when there is any to make, hands on completions.

    failed is called once, with the status that ended the queue pair, unless it was closed.
    """

    def __init__(
        self,
        queue_pair: QueuePair,
        done: Callable[[Completion], None],
        failed: Callable[[str], None],
    ) -> None:
        self._queue_pair, self._done, self._failed = queue_pair, done, failed
        self._loop = asyncio.get_running_loop()
        self._file = queue_pair.fileno()
        self._writes = self._over = self._due = False
        self._loop.add_reader(self._file, self.turn)
        self._due_soon()

    @property
    def sges(self) -> int:
        """Most segments of one receive."""
        return self._queue_pair.limits.max_recv_sge

    @property
    def most_writes(self) -> int:
        """Most WRITEs of one chain, so that two of them can be under way."""
        return max(1, self._queue_pair.limits.max_send_wr // 2)

    def writes(
        self, wr_id: int, local: Segments, key: int, offsets: Int, immediate: int | None
    ) -> None:
        """Post a chain; PostRefused if it does not fit."""
        self._due_soon()  # also if it is refused, as by one that has failed
        self._queue_pair.post_writes(wr_id, local, key, offsets, immediate)

    def send(self, wr_id: int, local: Segments) -> None:
        """Post a SEND; PostRefused if it does not fit."""
        self._due_soon()
        self._queue_pair.post_send(wr_id, local)

    def receive(self, wr_id: int, into: Segments | None) -> None:
        """Post a receive; PostRefused if it does not fit."""
        self._due_soon()
        self._queue_pair.post_recv(wr_id, into)

    def turn(self) -> None:
        """Do what can be done now."""
        self._due = False
        if self._over:
            return
        ended = self._take()
        if self._over:  # whoever took a completion has closed it
            return
        if ended is not None or self._queue_pair.failed:
            self.close()
            self._failed(ended or str(Status.WR_FLUSH_ERR))
        elif self._queue_pair.wants_write != self._writes:
            self._writes = not self._writes
            if self._writes:
                self._loop.add_writer(self._file, self.turn)
            else:
                self._loop.remove_writer(self._file)

    def _take(self) -> str | None:
        """Hand on completions; returns the status that says most of an end, if there is one."""
        ended: str | None = None
        for completion in self._queue_pair.poll():
            if self._over:
                break
            if completion.status == Status.SUCCESS:
                self._done(completion)
            elif ended is None or completion.status != Status.WR_FLUSH_ERR:
                ended = str(completion.status)
        return ended

    def close(self) -> None:
        """End it; both ends flush what is outstanding."""
        if not self._over:
            self._over = True
            self._loop.remove_reader(self._file)
            if self._writes:
                self._loop.remove_writer(self._file)
            self._queue_pair.close()

    def _due_soon(self) -> None:
        """What was posted may have completed at once, or need the file to become writable."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self.turn)
