"""The loopback of this machine, between two processes: bytes, small WRITEs, control messages.

The other process runs this very module. It has memory that is written to over the emulator's own
transport, sends bytes back, or answers control messages through asyncio.
"""

import asyncio
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from smartgen.emu.transports import open_device
from smartgen.emu.transports.protocol import Device, Limits, QueuePair, Region, Segments, Status
from smartgen.engine.messages import Fetch, Rows, decode, encode
from smartgen.errors import SmartGenError

_FRAME = struct.Struct("<I")  # bytes of the control message that follows

_PATIENCE_S = 30.0
"""How long the other process may say nothing."""

_SMALL_BYTES = 8
"""What one WRITE of a pair carries, so that its bytes cost nothing beside itself."""

_APART_BYTES = 512
"""From the beginning of one WRITE of a chain to that of the next."""


@contextmanager
def writes(memory_bytes: int, most_pairs: int) -> Iterator["Writes"]:
    """Another process with so much memory to write to, for as long as the context lasts."""
    with _other_process("take", memory_bytes) as connection, _device(2 * most_pairs) as device:
        with connection.makefile("rb") as said:
            (num_bytes,) = _FRAME.unpack(_all_of(said.read(_FRAME.size), _FRAME.size))
            address, key = msgspec.msgpack.decode(
                _all_of(said.read(num_bytes), num_bytes), type=tuple[bytes, int]
            )
        queue_pair = device.queue_pair(dials=True)
        queue_pair.connect(address, _PATIENCE_S)
        yield Writes(queue_pair, device.register(memory_bytes), key)


class Writes:
    """Chains of WRITEs to another process; each method returns once all of its have arrived."""

    def __init__(self, queue_pair: QueuePair, region: Region, key: int) -> None:
        self._queue_pair, self._region, self._key = queue_pair, region, key
        self._region.memory.fill(1)

    def nothing(self) -> None:
        """A chain of no WRITEs."""
        self._write(0, 0)

    def stream(self) -> None:
        """One WRITE of all memory."""
        self._write(1, len(self._region.memory))

    def pairs(self, num_pairs: int) -> None:
        """A chain of pairs of WRITEs, each as small as a block's mask."""
        self._write(2 * num_pairs, _SMALL_BYTES)

    def _write(self, number: int, num_bytes: int) -> None:
        last = len(self._region.memory) - num_bytes
        offsets = np.arange(number, dtype=np.int64) * _APART_BYTES % (last + 1)
        local = Segments(self._region, offsets, np.full(number, num_bytes, dtype=np.int64))
        self._queue_pair.post_writes(0, local, self._key, offsets)
        while not (done := self._queue_pair.poll()):
            if not any(_wait(self._queue_pair, (), _PATIENCE_S)):
                raise TimeoutError
        if done[0].status is not Status.SUCCESS:
            raise ConnectionError(f"a WRITE came to {done[0].status}")


def _wait(queue_pair: QueuePair, others: Sequence[socket.socket], timeout_s: float | None) -> Any:
    """Until it can make progress, or another can be read from: what select returns."""
    sends = [queue_pair] if queue_pair.wants_write else []
    return select.select([queue_pair, *others], sends, [], timeout_s)


def _all_of(data: bytes, num_bytes: int) -> bytes:
    if len(data) < num_bytes:
        raise ConnectionError("it has hung up")
    return data


@contextmanager
def _device(max_send_wr: int) -> Iterator[Device]:
    device = open_device("tcp", Limits(max_send_wr=max_send_wr))
    try:
        yield device
    finally:
        device.close()


@contextmanager
def echoes() -> Iterator[Callable[[], None]]:
    """What sends a byte to another process and waits for it to come back."""
    with _other_process("echo", 0) as connection:

        def there_and_back() -> None:
            connection.sendall(b"x")
            _all_of(connection.recv(1), 1)

        yield there_and_back


def call_seconds(num_calls: int, num_before: int) -> list[float]:
    """How long each control message took there and back, after some that do not count."""
    with _other_process("answer", 0) as connection:
        return asyncio.run(_call(connection, num_calls, num_before))


async def _call(connection: socket.socket, num_calls: int, num_before: int) -> list[float]:
    reader, writer = await asyncio.open_connection(sock=connection)
    message = Fetch(fetch_id=1, layer=1, rows=(Rows(request_id=1, slot=1, entries=1.0),))
    seconds = []
    try:
        for _ in range(num_before + num_calls):
            async with asyncio.timeout(_PATIENCE_S):
                begun_s = time.perf_counter()
                writer.write(_framed(encode(message)))
                decode(await _frame(reader))
                seconds.append(time.perf_counter() - begun_s)
    finally:
        writer.close()
    return seconds[num_before:]


def _framed(data: bytes) -> bytes:
    return _FRAME.pack(len(data)) + data


async def _frame(reader: asyncio.StreamReader) -> bytes:
    try:
        (num_bytes,) = _FRAME.unpack(await reader.readexactly(_FRAME.size))
        return await reader.readexactly(num_bytes)
    except asyncio.IncompleteReadError:
        raise ConnectionError("it has hung up") from None


# -- the other process


@contextmanager
def _other_process(act: str, memory_bytes: int) -> Iterator[socket.socket]:
    """Give a connection to a process that ends with it, even where this one is killed.

    It is out of reach of Ctrl-C, of which it would print a traceback. SmartGenError if it is lost.
    """
    ours, theirs = _tcp_pair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", __name__),
                    *(act, str(theirs.fileno()), str(memory_bytes)),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,
            )
        try:
            yield ours
        except (ConnectionError, TimeoutError) as error:
            raise SmartGenError(
                f"the other process is lost, measure again: {error or 'it does not answer'}"
            ) from error
        finally:
            process.kill()
            process.wait()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection, as socket.socketpair has them; nobody else gets in."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_PATIENCE_S)
        ours = socket.create_connection(server.getsockname(), timeout=_PATIENCE_S)
        try:
            theirs, address = server.accept()
            while address != ours.getsockname():
                theirs.close()
                theirs, address = server.accept()
        except BaseException:
            ours.close()
            raise
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs.settimeout(None)
    return ours, theirs


def _take(connection: socket.socket, memory_bytes: int) -> None:
    """Take part in what is written to memory of this process, until the connection ends."""
    with _device(max_send_wr=1) as device:
        region = device.register(memory_bytes)
        region.memory.fill(1)
        queue_pair = device.queue_pair(dials=False)
        connection.sendall(_framed(msgspec.msgpack.encode((queue_pair.address, region.key))))
        queue_pair.connect(b"", _PATIENCE_S)
        while not queue_pair.failed:
            readable, _, _ = _wait(queue_pair, [connection], None)
            if connection in readable:
                return
            queue_pair.progress()


def _echo(connection: socket.socket) -> None:
    """Send back what comes, until the connection ends."""
    while said := connection.recv(1):
        connection.sendall(said)


async def _answer(connection: socket.socket) -> None:
    """Decode what comes and send it back, until the connection ends."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        while True:
            writer.write(_framed(encode(decode(await _frame(reader)))))
    except ConnectionError:
        return
    finally:
        writer.close()


def _main(act: str, descriptor: str, memory_bytes: str) -> None:
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            if act == "take":
                _take(connection, int(memory_bytes))
            elif act == "echo":
                _echo(connection)
            else:
                asyncio.run(_answer(connection))
        except (ConnectionError, TimeoutError):  # it is over, one way or another
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
