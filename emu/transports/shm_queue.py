"""A queue pair over shared memory: the writer copies, a socket carries what is said.

Each end maps the other's regions, so a WRITE is a copy and is complete when copied. Messages tell
of regions, of receives posted and taken, and of the end. SEND goes straight into the segments of
the receive that was announced.
"""

import os
import socket
import time
from collections import deque
from secrets import token_hex
from select import poll
from typing import Any

import numpy as np

from smartgen.emu.transports import rendezvous, shared, sockets
from smartgen.emu.transports.memory import Regions, aligned, cut, inside, move
from smartgen.emu.transports.messages import Message, Say, hear, tell
from smartgen.emu.transports.protocol import Limits, Memory, Opcode, Segments, Status
from smartgen.emu.transports.queues import Posted, Queues
from smartgen.emu.transports.shared import Gate, Shared, ShmRegion

_TURN_MESSAGES = 1000  # most that one look at the socket takes
_MOST_RECEIVES = 1 << 20
_PIECE_BYTES = 1 << 20  # copied between two looks at the gate
_STAGE_BYTES = 128 << 10  # rows on their way: small enough to stay in a core's cache
_TURN_BYTES = 8 << 20  # most that one call of progress copies
_REQUEST_BYTES = 16 << 10  # what a request costs beside its bytes, in the time of bytes
_GATE_S = 1.0  # how long a writer that was stopped in the middle of a copy is waited for
_STATUSES = tuple(Status)


class ShmQueuePair(Queues):
    """One end. After it has failed, fileno stays readable: watch it no longer, and close it."""

    def __init__(
        self,
        limits: Limits,
        regions: Regions[ShmRegion],
        siblings: set[Any],
        dials: bool,
        patience_s: float,
    ) -> None:
        super().__init__(limits, regions, siblings, patience_s)
        self._gate = Gate(shared.create(0))
        self._peer_gate: Gate | None = None
        self._peer_regions: dict[int, Shared | None] = {}  # null once it is gone
        self._asked: set[int] = set()
        self._peer_receives: deque[Message] = deque()
        self._out: deque[Message] = deque()
        self._stage: Memory = np.zeros(_STAGE_BYTES, np.uint8)
        self._socket: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._ended = False  # nothing can be said any more
        self._address = b""
        self._token = rendezvous.new_token()
        self._say(Message(Say.GATE, fd=self._gate.shared.fd))
        if not dials:
            name = f"smartgen-{token_hex(8)}"
            self._listener = sockets.listen_local(name)
            self._address = f"shm {name} {self._token.hex()}".encode()

    @property
    def address(self) -> bytes:
        """What the other end must be given to connect; that of a dialling end is empty."""
        return self._address

    def connect(self, peer: bytes, timeout_s: float) -> None:
        """Connect, see the protocol; a dialling end does not wait until it is accepted."""
        if self._socket is not None or self._failed:
            raise ConnectionError("this queue pair was connected before; it takes a new one")
        if self._listener is not None:
            with self._listener:
                self._socket = rendezvous.accept(self._listener, self._token, timeout_s)
        else:
            self._socket = sockets.dial_local(peer, timeout_s)
        gate, *said = self._out  # a receive may be in a region: that comes first
        self._out = deque([gate, *map(_of_region, self._regions.all()), *said])
        self._flush()

    @property
    def wants_write(self) -> bool:
        """Whether progress also waits for fileno to become writable, not only readable."""
        if self._socket is None:
            return False
        return bool(self._out) or (bool(self._unsent) and not self._waits())

    def fileno(self) -> int:
        """What to wait on; -1 before it is connected and after it was closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def progress(self) -> None:
        """Do what can be done now, without waiting; copy some MiB at most."""
        if self._socket is None:
            return
        self._receive(self._socket)
        self._flush()
        left = look_at = _TURN_BYTES
        while left > 0 and self._unsent and not self._out and not self._waits():
            left -= self._execute(self._unsent[0]) + _REQUEST_BYTES
            if self._out or left < look_at - _PIECE_BYTES:  # not for every small request
                look_at = left
                self._receive(self._socket)
            self._flush()
        receive_is_missing = bool(self._unsent) and self._needs_receive(self._unsent[0])
        self._lose_patience(receive_is_missing and not self._peer_receives)

    def fail(self) -> None:
        """End it: what the other end had executed before still completes as it was."""
        self._shut()
        if self._socket is not None:
            self._receive(self._socket)
        self._fail()

    def close(self) -> None:
        """Fail it and free what it holds; completions that were not polled are lost."""
        super().close()
        if self._listener is not None:
            self._listener.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._gate.shared.close()
        self._out.clear()
        self._forget_peer()

    def announce(self, region: ShmRegion) -> None:
        """Let the other end map a region; it need not do anything for that but look."""
        if self._socket is not None and not self._failed:
            self._say(_of_region(region))
            self._flush()

    def withdraw(self, key: int) -> None:
        """A region is no longer registered; returns when nobody writes to it any more."""
        if self._socket is not None and not self._failed:
            # what was not said of it yet names a descriptor that is about to be closed
            kept = [
                said for said in self._out if not (said.say == Say.REGION and said.value == key)
            ]
            self._out = deque(kept)
            self._say(Message(Say.GONE, 0, key))
            self._flush()
            self._wait_for_writer()

    # sending

    def _say(self, message: Message) -> None:
        self._out.append(message)

    def _flush(self) -> None:
        """Say what can be said; a request completes when all of it was."""
        while self._out and self._socket is not None:
            message = self._out[0]
            try:
                tell(self._socket, message)
            except BlockingIOError:
                return
            except OSError:
                self._ended = True
                self._receive(self._socket)  # what it had said before it broke
                self._lost()
                return
            self._out.popleft()
        while self._sent:
            self._complete_sent()

    def _posted_recv(self, into: Segments | None) -> None:
        if into is None:
            self._say(Message(Say.RECEIVE))
        else:
            rest = into.offsets.tobytes() + into.lengths.tobytes()
            self._say(Message(Say.RECEIVE, 0, into.region.key, rest=rest))

    def _needs_receive(self, request: Posted) -> bool:
        if request.opcode is Opcode.SEND:
            return not request.framed
        return request.immediate is not None and request.num_done == len(request.ends)

    def _waits(self) -> bool:
        """Whether the oldest request cannot go on before something is heard."""
        request = self._unsent[0]
        if self._peer_gate is None:
            return True
        if self._needs_receive(request):
            return not self._peer_receives
        return request.key in self._asked

    def _execute(self, request: Posted) -> int:
        """Do the next piece of a request; return how many bytes it had."""
        if self._peer_gate is not None and self._peer_gate.closed:
            self._fail()
            return 0
        if request.opcode is Opcode.SEND and not request.framed and not self._begin_send(request):
            return 0
        if len(request.ends):
            target = self._peer_regions.get(request.key)
            if target is None and request.key not in self._peer_regions:
                self._asked.add(request.key)
                self._say(Message(Say.ASK, 0, request.key))
                return 0
            if target is None or not self._begin_writes(request, len(target.memory)):
                self._fail(sent=Status.REM_ACCESS_ERR)
                return 0
            return self._copy(request, target)
        self._end(request)
        return 0

    def _begin_writes(self, request: Posted, num_bytes: int) -> bool:
        """Check a chain as a whole, and cut what is too long to be copied in one go."""
        if request.opcode is Opcode.SEND or request.framed:
            return True
        local = request.local
        if not inside(request.offsets, local.lengths, num_bytes):
            return False
        request.framed = True
        if local.lengths.max() > _PIECE_BYTES:
            of, starts, lengths = cut(local.lengths, _PIECE_BYTES)
            request.local = Segments(local.region, local.offsets[of] + starts, lengths)
            request.offsets = request.offsets[of] + starts
            request.ends = np.cumsum(lengths)
        return True

    def _begin_send(self, request: Posted) -> bool:
        """Take the oldest receive of the other end; false if the request ends here."""
        into = self._peer_receives.popleft()
        request.framed = True
        assert into.pieces is not None
        pieces = Segments(request.local.region, *into.pieces)
        if request.num_bytes > int(pieces.lengths.sum()):
            self._fail(sent=Status.REM_INV_REQ_ERR, peer=Status.LOC_LEN_ERR)
            return False
        if not request.num_bytes:
            request.ends = request.ends[:0]
            return True
        from_, to, lengths = aligned(request.local, pieces)
        of, starts, lengths = cut(lengths, _PIECE_BYTES)
        request.local = Segments(request.local.region, from_[of] + starts, lengths)
        request.offsets, request.key = to[of] + starts, into.value
        request.ends = np.cumsum(lengths)
        target = self._peer_regions.get(into.value)
        if target is None or not inside(request.offsets, lengths, len(target.memory)):
            self._fail(sent=Status.REM_INV_REQ_ERR)
            return False
        return True

    def _copy(self, request: Posted, target: Shared) -> int:
        """Copy the next part of a chain, and end the request if it was the last."""
        assert self._peer_gate is not None
        begun, ends = request.num_done, request.ends
        if begun == len(ends):
            self._end(request)
            return 0
        if not self._peer_gate.step_in():
            self._fail(sent=Status.WR_FLUSH_ERR)
            return 0
        try:
            if target.flags[0]:  # deregistered
                write = request.opcode is Opcode.WRITE
                self._fail(sent=Status.REM_ACCESS_ERR if write else Status.REM_INV_REQ_ERR)
                return 0
            part = request.next(len(request.ends), _PIECE_BYTES)
            region, offsets, lengths = request.local
            local = Segments(region, offsets[part], lengths[part])
            move(local, target.memory, request.offsets[part], self._stage)
        finally:
            self._peer_gate.step_out()
        if request.num_done == len(request.ends) and not self._needs_receive(request):
            self._end(request)
        return int(ends[part.stop - 1] - (ends[begun - 1] if begun else 0))

    def _end(self, request: Posted) -> None:
        """All was copied: tell, if the other end is to know."""
        num_bytes = request.num_bytes
        if request.opcode is Opcode.SEND:
            self._say(Message(Say.SENT, length=num_bytes))
        elif request.immediate is not None:
            self._peer_receives.popleft()
            self._say(Message(Say.IMMEDIATE, value=request.immediate, length=num_bytes))
        self._sent.append(self._unsent.popleft())

    def _goodbye(self, status: Status) -> None:
        self._shut()
        self._out.clear()
        if not self._ended:
            self._say(Message(Say.FAIL, _STATUSES.index(status)))
            self._flush()
        self._forget_peer()

    def _lost(self) -> None:
        """The other end is gone."""
        self._ended = True
        self._out.clear()
        self._fail(sent=Status.RETRY_EXC_ERR)

    def _forget_peer(self) -> None:
        self._peer_regions.clear()
        self._peer_receives.clear()
        self._peer_gate = None

    # receiving

    def _shut(self) -> None:
        """Nothing is written into memory of this end any more."""
        if not self._gate.closed:
            self._gate.close()
            self._wait_for_writer()

    def _wait_for_writer(self) -> None:
        """Wait until the other end is not writing: microseconds, unless it was stopped."""
        if self._socket is None or not self._gate.busy:
            return
        hangs_up = poll()
        hangs_up.register(self._socket, 0)
        until_s = time.monotonic() + _GATE_S
        while self._gate.busy and time.monotonic() < until_s and not hangs_up.poll(0):
            time.sleep(2e-5)

    def _receive(self, from_: socket.socket) -> None:
        for _ in range(_TURN_MESSAGES):
            try:
                message = hear(from_)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it has closed unread messages: said once, before its own
                continue
            except OSError:
                message = None
            if message is None:
                self._lost()
                return
            try:
                if not self._failed and not self._heard(message):
                    self._fail(peer=Status.REM_INV_REQ_ERR)
            finally:
                if message.fd >= 0:
                    os.close(message.fd)

    def _heard(self, message: Message) -> bool:
        """Act on a message; false if it has no sense."""
        if message.say in (Say.GATE, Say.REGION):
            return self._attach(message)
        if message.say in (Say.IMMEDIATE, Say.SENT, Say.RECEIVE):
            return self._heard_of_receive(message)
        key = message.value
        if message.say == Say.ASK:
            if self._regions.find(key) is None:
                self._say(Message(Say.UNKNOWN, 0, key))
        elif message.say in (Say.GONE, Say.UNKNOWN):
            self._peer_regions[key] = None
            self._asked.discard(key)
        elif message.say == Say.FAIL and message.code < len(_STATUSES):
            status = _STATUSES[message.code]
            if status is Status.LOC_LEN_ERR:
                self._fail(received=status)
            else:
                self._fail(sent=status)
        else:
            return False
        return True

    def _heard_of_receive(self, message: Message) -> bool:
        if message.say == Say.RECEIVE:
            self._peer_receives.append(message)
            return message.pieces is not None and len(self._peer_receives) <= _MOST_RECEIVES
        if not self._receives or message.length < 0:
            return False
        immediate = message.value if message.say == Say.IMMEDIATE else None
        self._complete_receive(message.length, immediate)
        return True

    def _attach(self, message: Message) -> bool:
        """Map what the other end has created."""
        attached = shared.attach(message.fd, message.length) if message.fd >= 0 else None
        if attached is None:
            return False
        if message.say == Say.GATE:
            self._peer_gate = Gate(attached)
        else:
            self._peer_regions[message.value] = attached
            self._asked.discard(message.value)
        return True


def _of_region(region: ShmRegion) -> Message:
    return Message(Say.REGION, 0, region.key, len(region.memory), fd=region.shared.fd)
