"""What every transport offers, and no more than verbs can: queue pairs over registered memory.

Reliable and ordered, as RDMA's RC: what is posted on a queue pair is executed in order. WRITE is
one-sided: the other side neither agrees nor notices, and cannot refuse it, except that an address
outside of what it registered is an error. A WRITE with an immediate and a SEND each take the
receive that was posted first at the other end; where there is none they wait for it. Any error ends
the queue pair: whatever is outstanding at either end completes as flushed, and nothing that was
posted on it is executed any more. Nothing here knows of requests, layers or time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import count
from smartgen.kv.geometry import Int

Memory = NDArray[np.uint8]


class Status(StrEnum):
    """How a work request ended; names as verbs has them (IBV_WC_...)."""

    SUCCESS = "success"
    LOC_LEN_ERR = "loc_len_err"  # a SEND was longer than the receive that it met
    WR_FLUSH_ERR = "wr_flush_err"  # the queue pair had failed before
    REM_INV_REQ_ERR = "rem_inv_req_err"  # what the sender of a too long SEND sees
    REM_ACCESS_ERR = "rem_access_err"  # a WRITE outside of registered memory
    RETRY_EXC_ERR = "retry_exc_err"  # the other side is gone or does not answer
    RNR_RETRY_EXC_ERR = "rnr_retry_exc_err"  # it has posted no receive for too long


class Opcode(StrEnum):
    """What a completion is of."""

    WRITE = "write"
    SEND = "send"
    RECV = "recv"  # met by a SEND
    RECV_RDMA_WITH_IMM = "recv_rdma_with_imm"  # met by a WRITE with an immediate


class PostRefused(Exception):  # noqa: N818 - names an outcome, as verbs' ENOMEM and EINVAL do
    """A work request was not taken: the queue is full, or it has more segments than allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a queue pair can hold; a chain of n WRITEs counts n of max_send_wr until it completes.

    max_send_sge, max_recv_sge: segments of one SEND, of one receive.
    """

    max_send_wr: int = 4096
    max_recv_wr: int = 4096
    max_send_sge: int = 20
    max_recv_sge: int = 20

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            count(name, getattr(self, name))


class Region(Protocol):
    """Registered memory of this process; a peer that was told the key may WRITE into it."""

    @property
    def key(self) -> int:
        """The remote key, unlike that of any other region of this device, past or present."""

    @property
    def memory(self) -> Memory:
        """All of it, as bytes."""


class Segments(NamedTuple):
    """Pieces of one region, in order: bytes [offsets[i], offsets[i] + lengths[i])."""

    region: Region
    offsets: Int  # [n]
    lengths: Int  # [n]


class Completion(NamedTuple):
    """How a work request ended. Of a failed one only wr_id and status mean anything.

    num_bytes and immediate are those of what a receive met; immediate is 32 bits, or null.
    """

    wr_id: int
    opcode: Opcode
    status: Status
    num_bytes: int = 0
    immediate: int | None = None


class QueuePair(Protocol):
    """One end. Nothing here blocks but connect; progress is made by progress and poll alone.

    Local memory of a posted request must not change until it completes.
    """

    @property
    def limits(self) -> Limits:
        """What it can hold."""

    @property
    def address(self) -> bytes:
        """What the other end must be given to connect."""

    def connect(self, peer: bytes, timeout_s: float) -> None:
        """Connect with the other end's address; TimeoutError or ConnectionError if that fails."""

    def post_writes(
        self,
        wr_id: int,
        local: Segments,
        key: int,
        offsets: Int,
        immediate: int | None = None,
    ) -> None:
        """Post a chain of WRITEs: segment i of local to offsets[i] of the region with that key.

        They are executed in order, the immediate (of at most 32 bits) goes with the last; it may be
        an empty chain. The chain has one completion. PostRefused if it does not fit.
        """

    def post_send(self, wr_id: int, local: Segments) -> None:
        """Post a SEND of these segments, one after the other. PostRefused if it does not fit."""

    def post_recv(self, wr_id: int, into: Segments | None) -> None:
        """Post a receive: a SEND fills its segments in order; null takes an immediate or nothing.

        PostRefused if it does not fit.
        """

    def progress(self) -> None:
        """Do what can be done now, without waiting."""

    def poll(self) -> Sequence[Completion]:
        """Make progress; take the completions of this end that are new, in order."""

    @property
    def failed(self) -> bool:
        """Whether an error has ended it."""

    @property
    def wants_write(self) -> bool:
        """Whether progress also waits for fileno to become writable, not only readable."""

    def fileno(self) -> int:
        """What to wait on until there may be progress to make (select, or an event loop)."""

    def fail(self) -> None:
        """End it, as modifying it to the error state does: both ends flush what is outstanding."""

    def close(self) -> None:
        """Fail it and free what it holds; completions that were not polled are lost."""


class Device(Protocol):
    """A NIC of this process: registers memory and makes queue pairs."""

    @property
    def limits(self) -> Limits:
        """What its queue pairs can hold."""

    def register(self, num_bytes: int) -> Region:
        """Allocate zeroed memory that this device can move, and register it.

        Peers of all its queue pairs, of now and later, may WRITE into it by its key.
        """

    def deregister(self, region: Region) -> None:
        """A WRITE to its key is an error from now on; its memory is freed with the last user."""

    def queue_pair(self, dials: bool) -> QueuePair:
        """A new one, not connected. Of two ends one dials and the other answers."""

    def close(self) -> None:
        """Close all queue pairs and free all memory."""
