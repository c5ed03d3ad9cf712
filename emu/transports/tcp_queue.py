"""The transport over TCP: one socket for each queue pair, bytes straight from and to memory.

What takes a receive goes out only when the other end has said that one is posted: so whatever
arrives can be placed at once, and acknowledgements never wait behind what cannot.
"""

import socket
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import numpy as np

from smartgen.emu.transports import frames, rendezvous, sockets
from smartgen.emu.transports.frames import HEADER_BYTES, Header, Kind, Sink
from smartgen.emu.transports.inbox import Inbox
from smartgen.emu.transports.memory import Regions, advance, gather, inside, views
from smartgen.emu.transports.protocol import Limits, Memory, Opcode, Segments, Status
from smartgen.emu.transports.queues import Posted, Queues

_PART_BYTES = 1 << 20  # of one frame, unless a segment has more
_LARGE_PART_BYTES = 4 << 20  # of one of large segments, which are not staged
_STAGE_BYTES = 2 << 20
_ROOM_BYTES = _PART_BYTES + frames.ARRAY_BYTES + 2 * HEADER_BYTES  # what a frame may need of it
_TURN_BYTES = 4 << 20  # most that one call of progress receives, and sends
_FRAME_BYTES = 4 << 10  # what a frame costs beside its bytes, in the time of bytes
_MOST_BUFFERS = 1000  # IOV_MAX is 1024


class TcpQueuePair(Queues):
    """One end. After it has failed, fileno stays readable: watch it no longer, and close it."""

    def __init__(
        self,
        limits: Limits,
        regions: Regions[Any],
        siblings: set[Any],
        host: str,
        dials: bool,
        patience_s: float,
    ) -> None:
        super().__init__(limits, regions, siblings, patience_s)
        self._token = b"" if dials else rendezvous.new_token()
        self._listener = None if dials else sockets.listen(host)
        self._address = b""
        if self._listener is not None:
            host, port = self._listener.getsockname()[:2]
            self._address = f"tcp {host} {port} {self._token.hex()}".encode()
        self._socket: socket.socket | None = None
        self._out: list[list[memoryview]] = []  # frames, each of buffers; the first may have begun
        self._begun = False
        self._stage = bytearray(_STAGE_BYTES)
        self._staged: Memory = np.frombuffer(self._stage, np.uint8)
        self._num_staged = 0
        self._num_credits = 0  # receives of the other end that nothing has taken
        self._num_to_ack = 0
        self._num_to_credit = 0
        self._inbox = Inbox()
        self._header: Header | None = None
        self._sink: Sink | None = None
        self._chain_bytes = 0
        self._ended = False  # nothing is sent any more

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
                connected = rendezvous.accept(self._listener, self._token, timeout_s)
        else:
            connected = sockets.dial(peer, timeout_s)
        sockets.tune(connected)
        self._socket = connected

    @property
    def wants_write(self) -> bool:
        """Whether progress also waits for fileno to become writable, not only readable."""
        if self._out:
            return True
        if self._failed or self._socket is None:
            return False
        return bool(self._num_to_ack or self._num_to_credit) or self._sendable()

    def fileno(self) -> int:
        """What to wait on; -1 before it is connected and after it was closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def progress(self) -> None:
        """Do what can be done now, without waiting, up to a few MiB in each direction."""
        if self._socket is None:
            return
        self._receive(self._socket)
        if not self._send(self._socket):
            self._receive(self._socket)  # what it had said before it broke
            self._lost()
        self._lose_patience(bool(self._unsent) and not self._sendable() and not self._sent)

    def close(self) -> None:
        """Fail it and free what it holds; completions that were not polled are lost."""
        super().close()
        if self._listener is not None:
            self._listener.close()
        if self._socket is not None:
            self._send(self._socket)
            self._socket.close()
            self._socket = None
        self._out.clear()
        self._sink = None

    # sending

    def _posted_recv(self, into: Segments | None) -> None:
        self._num_to_credit += 1

    def _sendable(self) -> bool:
        if not self._unsent:
            return False
        return self._num_credits > 0 or not self._needs_receive(self._unsent[0])

    def _needs_receive(self, request: Posted) -> bool:
        """Whether its next frame takes a receive."""
        if request.opcode is Opcode.SEND:
            return True
        return request.immediate is not None and request.num_done == len(request.ends)

    def _send(self, to: socket.socket) -> bool:
        """Send what can be sent; false if the connection is broken."""
        left = _TURN_BYTES
        while left > 0 and (self._out or self._fill()):
            buffers = list(islice(chain.from_iterable(self._out), _MOST_BUFFERS))
            try:
                num_sent = to.sendmsg(buffers)
            except BlockingIOError:
                return True
            except OSError:
                self._out.clear()
                return False
            left -= num_sent
            self._sent_bytes(num_sent)
        if self._failed and not self._out and not self._ended:
            self._ended = True
            _shut(to)
        return True

    def _sent_bytes(self, num_sent: int) -> None:
        done = 0
        for frame in self._out:
            if not num_sent:
                break
            num_sent = advance(frame, num_sent)
            self._begun = bool(frame)
            if frame:
                break
            done += 1
        del self._out[:done]

    def _fill(self) -> bool:
        """Make frames of what is posted, some MiB at most; whether there are any."""
        if self._failed:
            return False
        self._num_staged = 0
        self._acknowledge()
        left = _TURN_BYTES
        while left > 0 and self._sendable() and self._num_staged + _ROOM_BYTES <= _STAGE_BYTES:
            request = self._unsent[0]
            left -= self._frame(request) + _FRAME_BYTES
            if request.framed:
                self._sent.append(self._unsent.popleft())
        return bool(self._out)

    def _acknowledge(self) -> None:
        if self._num_to_ack or self._num_to_credit:
            self._emit(Header(Kind.ACK, 0, self._num_to_credit, self._num_to_ack))
            self._num_to_ack = self._num_to_credit = 0

    def _emit(self, header: Header) -> None:
        end = header.into(self._stage, self._num_staged)
        self._out.append([memoryview(self._stage)[self._num_staged : end]])
        self._num_staged = end

    def _frame(self, request: Posted) -> int:
        """Make the next frame of a request; return how many bytes of its it takes."""
        start = self._num_staged
        if request.opcode is Opcode.SEND:
            self._num_credits -= 1
            end = Header(Kind.SEND, length=request.num_bytes).into(self._stage, start)
            request.framed = True
            return self._payload(end, request.local)
        if self._needs_receive(request):
            self._num_credits -= 1
            self._emit(Header(Kind.IMMEDIATE, value=request.immediate or 0))
            request.framed = True
            return 0
        large = request.num_bytes >= frames.LARGE_BYTES * len(request.ends)
        most = _LARGE_PART_BYTES if large else _PART_BYTES
        part = request.next(frames.MOST_SEGMENTS, most)
        request.framed = request.num_done == len(request.ends) and request.immediate is None
        region, offsets, lengths = request.local
        local = Segments(region, offsets[part], lengths[part])
        end, row = frames.arrays_into(
            request.offsets[part], local.lengths, self._stage, start + HEADER_BYTES
        )
        num_segments = part.stop - part.start
        Header(Kind.WRITE, request.framed, request.key, num_segments, row).into(self._stage, start)
        return self._payload(end, local)

    def _payload(self, end: int, local: Segments) -> int:
        """End a frame, whose header and arrays are staged up to end, with what segments hold."""
        start, size = self._num_staged, int(local.lengths.sum())
        memory, offsets, lengths = local.region.memory, local.offsets, local.lengths
        direct: list[memoryview] = []
        if frames.staged(lengths) and end + size <= _STAGE_BYTES:
            gather(memory, offsets, lengths, self._staged[end : end + size])
            end += size
        else:
            direct = views(memory, offsets, lengths)
        self._out.append([memoryview(self._stage)[start:end], *direct])
        self._num_staged = end
        return size

    def _goodbye(self, status: Status) -> None:
        self._sink = None  # nothing is placed any more
        rest = self._out[:1] if self._begun else []  # a frame that has begun must end
        if sum(map(len, chain.from_iterable(rest))) > _STAGE_BYTES:
            self._out.clear()  # too much to hold: the other end will see it break off
            return
        self._out = [[memoryview(bytes(buffer)) for buffer in frame] for frame in rest]
        self._num_staged = 0
        self._stage = bytearray(2 * HEADER_BYTES)
        self._acknowledge()
        self._emit(Header(Kind.FAIL, frames.STATUSES.index(status)))

    # receiving

    def _receive(self, from_: socket.socket) -> None:
        left = _TURN_BYTES
        while left > 0:
            self._check_sink()
            try:
                num_read = self._inbox.read(from_, self._sink)
            except BlockingIOError:
                return
            except OSError:
                num_read = 0
            if not num_read:
                self._lost()
                return
            left -= num_read
            if self._failed:
                self._inbox.clear()
            else:
                self._parse()
            if self._inbox.drained:
                return  # sparing a call that would say so; if more comes, fileno tells

    def _check_sink(self) -> None:
        """Fail if what is arriving belongs into memory that is registered no longer."""
        sink, header = self._sink, self._header
        if sink is None or header is None or self._regions.find(sink.region.key) is sink.region:
            return
        write = header.kind == Kind.WRITE
        self._fail(peer=Status.REM_ACCESS_ERR if write else Status.REM_INV_REQ_ERR)

    def _lost(self) -> None:
        """The other end is gone."""
        self._ended = True
        self._fail(sent=Status.RETRY_EXC_ERR)
        self._out.clear()

    def _parse(self) -> None:
        """Take what has arrived as far as it makes sense."""
        while not self._failed:
            if self._sink is not None:
                if not self._filled(self._sink):
                    return
            elif self._header is None:
                if self._inbox.num_bytes < HEADER_BYTES:
                    return
                self._header = frames.header_from(self._inbox.buffer, self._inbox.start)
                if self._header is None:
                    self._fail(peer=Status.REM_INV_REQ_ERR)
                    return
                self._inbox.start += HEADER_BYTES
            elif self._inbox.num_bytes < self._header.array_bytes:
                return
            else:
                self._begin(self._header)

    def _begin(self, header: Header) -> None:
        """A header has arrived, and its arrays."""
        kind = header.kind
        if kind == Kind.WRITE:
            self._begin_write(header)
        elif kind == Kind.ACK:
            self._acknowledged(header.number, header.value)
        elif kind == Kind.FAIL:
            known = header.code < len(frames.STATUSES)
            self._fail(sent=frames.STATUSES[header.code] if known else Status.WR_FLUSH_ERR)
        elif not self._receives:  # nobody may send before a receive was posted
            self._fail(peer=Status.REM_INV_REQ_ERR)
        elif kind == Kind.SEND:
            self._begin_send(header)
        else:
            self._complete_receive(self._chain_bytes, header.value)
            self._executed()

    def _begin_write(self, header: Header) -> None:
        offsets, lengths = frames.arrays_from(header, self._inbox.buffer, self._inbox.start)
        self._inbox.start += header.array_bytes
        region = self._regions.find(header.value)
        if len(offsets):
            if region is None or not inside(offsets, lengths, len(region.memory)):
                self._fail(peer=Status.REM_ACCESS_ERR)
                return
            self._sink = Sink(Segments(region, offsets, lengths))
            self._chain_bytes += int(lengths.sum())
        elif header.code:
            self._executed()
        else:
            self._header = None

    def _begin_send(self, header: Header) -> None:
        _, into = self._receives[0]
        if header.length > (0 if into is None else int(into.lengths.sum())):
            self._fail(received=Status.LOC_LEN_ERR, peer=Status.REM_INV_REQ_ERR)
        elif into is None:
            self._complete_receive(0)
            self._executed()
        else:
            self._sink = Sink(frames.trimmed(into, header.length))

    def _filled(self, sink: Sink) -> bool:
        """Place what has arrived; whether the frame is complete."""
        assert self._header is not None
        write = self._header.kind == Kind.WRITE
        self._inbox.feed(sink)
        if not sink.full:
            return False
        self._sink = None
        if not write:
            self._complete_receive(self._header.length)
        if not write or self._header.code:
            self._executed()
        self._header = None
        return True

    def _executed(self) -> None:
        self._num_to_ack += 1
        self._chain_bytes = 0
        self._header = None

    def _acknowledged(self, num_done: int, num_credits: int) -> None:
        self._header = None
        if num_done > len(self._sent):
            self._fail(peer=Status.REM_INV_REQ_ERR)
            return
        for _ in range(num_done):
            self._complete_sent()
        self._num_credits += num_credits


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # the other end may have gone
        connected.shutdown(socket.SHUT_WR)
