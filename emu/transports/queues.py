"""What queue pairs of all transports do at their own end: queues, limits and completions."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smartgen.emu.transports.memory import NONE, Regions
from smartgen.emu.transports.protocol import (
    Completion,
    Limits,
    Opcode,
    PostRefused,
    Segments,
    Status,
)
from smartgen.errors import SmartGenError
from smartgen.kv.geometry import Int


@dataclass(slots=True, kw_only=True)
class Posted:
    """A WRITE chain or a SEND: ends[i] is how many bytes the first i + 1 segments have together."""

    wr_id: int
    opcode: Opcode
    local: Segments
    ends: Int
    key: int = 0
    offsets: Int = field(default_factory=lambda: NONE)  # at the other end
    immediate: int | None = None
    num_wr: int = 1  # what it takes of max_send_wr
    num_done: int = 0  # segments that were handed over
    framed: bool = False  # all was, and the immediate

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def next(self, most_segments: int, most_bytes: int) -> slice:
        """The segments to hand over next: as many as fit, but at least one if one is left."""
        first = self.num_done
        if first + 1 == len(self.ends):
            self.num_done += 1
            return slice(first, first + 1)
        begun = int(self.ends[first - 1]) if first else 0
        last = int(np.searchsorted(self.ends, begun + most_bytes, "right"))
        self.num_done = min(max(last, first + 1), first + most_segments, len(self.ends))
        return slice(first, self.num_done)


class Queues(ABC):
    """The queues of one end of a queue pair; a transport adds how work is executed.

    unsent holds requests that were not handed over in full, sent those that were and are not
    acknowledged; both are in order, and all of sent was posted before all of unsent.
    """

    def __init__(
        self, limits: Limits, regions: Regions[Any], siblings: set[Any], patience_s: float
    ) -> None:
        self._siblings = siblings  # the queue pairs of the device that are not closed
        siblings.add(self)
        self._limits = limits
        self._regions = regions
        self._unsent: deque[Posted] = deque()
        self._sent: deque[Posted] = deque()
        self._receives: deque[tuple[int, Segments | None]] = deque()
        self._completions: list[Completion] = []
        self._num_send_wr = 0
        self._failed = False
        self._patience_s = patience_s  # how long a request waits for a receive
        self._waits_since_s: float | None = None

    @property
    def limits(self) -> Limits:
        """What it can hold."""
        return self._limits

    @property
    def failed(self) -> bool:
        """Whether an error has ended it."""
        return self._failed

    @abstractmethod
    def progress(self) -> None:
        """Do what can be done now, without waiting."""

    @abstractmethod
    def _goodbye(self, status: Status) -> None:
        """Tell the other end that this one has failed, and what its oldest request becomes."""

    @abstractmethod
    def _posted_recv(self, into: Segments | None) -> None:
        """A receive was posted."""

    def post_writes(
        self,
        wr_id: int,
        local: Segments,
        key: int,
        offsets: Int,
        immediate: int | None = None,
    ) -> None:
        """Post a chain of WRITEs, see the protocol."""
        if immediate is not None and not 0 <= immediate < 1 << 32:
            raise SmartGenError(f"immediate={immediate!r} must be an integer of 32 bits")
        if not 0 <= key < 1 << 32:
            raise SmartGenError(f"key={key!r} must be an integer of 32 bits")
        if len(offsets) != len(local.offsets):
            raise SmartGenError(f"{len(offsets)} remote offsets for {len(local.offsets)} segments")
        self._post(
            wr_id, Opcode.WRITE, local, key=key, offsets=np.array(offsets, np.int64), imm=immediate
        )

    def post_send(self, wr_id: int, local: Segments) -> None:
        """Post a SEND of these segments, one after the other. PostRefused if it does not fit."""
        if len(local.offsets) > self._limits.max_send_sge:
            most = self._limits.max_send_sge
            raise PostRefused(f"{len(local.offsets)} segments; a SEND has {most} at most")
        self._post(wr_id, Opcode.SEND, local)

    def _post(
        self,
        wr_id: int,
        opcode: Opcode,
        local: Segments,
        key: int = 0,
        offsets: Int = NONE,
        imm: int | None = None,
    ) -> None:
        self._refuse_if_failed()
        local = self._regions.checked(local)
        ends = local.lengths if len(local.lengths) == 1 else np.cumsum(local.lengths)
        request = Posted(
            wr_id=wr_id,
            opcode=opcode,
            local=local,
            ends=ends,
            key=key,
            offsets=offsets,
            immediate=imm,
            num_wr=max(1, len(ends)) if opcode is Opcode.WRITE else 1,
        )
        most = self._limits.max_send_wr
        if self._num_send_wr + request.num_wr > most:
            raise PostRefused(
                f"{request.num_wr} requests do not fit beside the {self._num_send_wr} outstanding; "
                f"the send queue holds {most}"
            )
        self._num_send_wr += request.num_wr
        self._unsent.append(request)

    def post_recv(self, wr_id: int, into: Segments | None) -> None:
        """Post a receive: a SEND fills its segments in order; null takes an immediate or nothing.

        PostRefused if it does not fit.
        """
        self._refuse_if_failed()
        if len(self._receives) >= self._limits.max_recv_wr:
            raise PostRefused(f"the receive queue holds {self._limits.max_recv_wr} at most")
        if into is not None:
            if len(into.offsets) > self._limits.max_recv_sge:
                most = self._limits.max_recv_sge
                raise PostRefused(f"{len(into.offsets)} segments; a receive has {most} at most")
            into = self._regions.checked(into)
        self._receives.append((wr_id, into))
        self._posted_recv(into)

    def poll(self) -> Sequence[Completion]:
        """Make progress; take the completions of this end that are new, in order."""
        self.progress()
        taken, self._completions = self._completions, []
        return taken

    def fail(self) -> None:
        """End it, as modifying it to the error state does: both ends flush what is outstanding."""
        self._fail()

    def close(self) -> None:
        """Fail it and free what it holds; completions that were not polled are lost."""
        self._fail()
        self._completions.clear()
        self._siblings.discard(self)

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise PostRefused("the queue pair has failed; it takes nothing any more")

    def _complete_sent(self) -> None:
        """The oldest request was executed."""
        request = self._sent.popleft()
        self._num_send_wr -= request.num_wr
        done = Completion(request.wr_id, request.opcode, Status.SUCCESS, request.num_bytes)
        self._completions.append(done)

    def _complete_receive(self, num_bytes: int, immediate: int | None = None) -> None:
        """The oldest receive was met."""
        wr_id, _ = self._receives.popleft()
        opcode = Opcode.RECV if immediate is None else Opcode.RECV_RDMA_WITH_IMM
        met = Completion(wr_id, opcode, Status.SUCCESS, num_bytes, immediate)
        self._completions.append(met)

    def _fail(
        self,
        sent: Status = Status.WR_FLUSH_ERR,
        received: Status = Status.WR_FLUSH_ERR,
        peer: Status = Status.WR_FLUSH_ERR,
    ) -> None:
        """Flush everything; the oldest request and receive here get sent and received instead.

        peer is what the oldest request of the other end becomes.
        """
        if self._failed:
            return
        self._failed = True
        for request in (*self._sent, *self._unsent):
            self._completions.append(Completion(request.wr_id, request.opcode, sent))
            sent = Status.WR_FLUSH_ERR
        for wr_id, _ in self._receives:
            self._completions.append(Completion(wr_id, Opcode.RECV, received))
            received = Status.WR_FLUSH_ERR
        self._sent.clear()
        self._unsent.clear()
        self._receives.clear()
        self._num_send_wr = 0
        self._goodbye(peer)

    def _lose_patience(self, waits: bool) -> None:
        """Fail if the oldest request waits for a receive, and has done so for too long."""
        if not waits or math.isinf(self._patience_s):
            self._waits_since_s = None
            return
        now_s = time.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        elif now_s - self._waits_since_s > self._patience_s:
            self._fail(sent=Status.RNR_RETRY_EXC_ERR)
