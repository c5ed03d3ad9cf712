"""The loopback of this machine, between two processes: bytes, small WRITEs, control messages.

The other process runs this very module. It takes a stream of WRITEs, each a header and its bytes,
into memory of its own, or answers control messages from asyncio, as a prefill node does.
"""

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from smartgen.engine.messages import Fetch, Rows, decode, encode

_WRITE = struct.Struct("<QQ")  # where the bytes go, how many follow; with none it is answered
_FRAME = struct.Struct("<I")  # bytes of the control message that follows

_PATIENCE_S = 30.0
"""How long the other process may say nothing."""

_BUFFER_BYTES = 256 * 1024
_SMALL_BYTES = 8
"""What one WRITE of a pair carries, so that its bytes cost nothing beside itself."""


@contextmanager
def writes(memory_bytes: int) -> Iterator["Writes"]:
    """Another process with so much memory to write to, for as long as the context lasts."""
    with _other_process("take", memory_bytes) as connection:
        yield Writes(connection)


class Writes:
    """This end of a stream of WRITEs; each method returns once all of them have arrived."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.round_trip()  # has the other process started

    def round_trip(self) -> None:
        """There and back, with nothing to write."""
        self._connection.sendall(_WRITE.pack(0, 0))
        if not self._connection.recv(1):
            raise ConnectionError("the process at the other end of the loopback is gone")

    def stream(self, memory: memoryview) -> None:
        """One WRITE of all of it."""
        self._connection.sendall(_WRITE.pack(0, len(memory)))
        self._connection.sendall(memory)
        self.round_trip()

    def post(self, chain: bytes) -> None:
        """Every WRITE of a chain."""
        self._connection.sendall(chain)
        self.round_trip()


def chain_of_pairs(num_pairs: int) -> bytes:
    """Pairs of WRITEs as small as a block's mask."""
    write = _WRITE.pack(0, _SMALL_BYTES) + bytes(_SMALL_BYTES)
    return 2 * num_pairs * write


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
        raise ConnectionError("the other end of the loopback is gone") from None


# -- the other process


@contextmanager
def _other_process(act: str, memory_bytes: int) -> Iterator[socket.socket]:
    """Give a connection to a process that ends with it, even where this one is killed.

    It is out of reach of Ctrl-C, of which it would print a traceback.
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
        finally:
            process.kill()
            process.wait()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection, as socket.socketpair has them of others; nobody else gets in."""
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
    """Write what comes to where it belongs, until the connection ends."""
    memory = memoryview(np.ones(memory_bytes, dtype=np.uint8))
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    start = stop = 0
    while True:
        while stop - start < _WRITE.size:
            buffer[: stop - start] = buffer[start:stop]
            start, stop = 0, stop - start
            got = connection.recv_into(buffer[stop:])
            if not got:
                return
            stop += got
        offset, num_bytes = _WRITE.unpack_from(buffer, start)
        start += _WRITE.size
        if not num_bytes:
            connection.sendall(b"\0")
            continue
        here = min(num_bytes, stop - start)
        memory[offset : offset + here] = buffer[start : start + here]
        start += here
        while here < num_bytes:
            got = connection.recv_into(memory[offset + here : offset + num_bytes])
            if not got:
                return
            here += got


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
            else:
                asyncio.run(_answer(connection))
        except ConnectionError:  # it is over, one way or another
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
