"""One end of the control stream between two processes: numbered frames, in order, with a pulse."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from smartgen.emu.processes.words import (
    MOST_FRAME_BYTES,
    MOST_HELLO_BYTES,
    Frame,
    Ping,
    Word,
    decode,
    encode,
    is_of_engine,
)
from smartgen.emu.runtime import EmuRuntime
from smartgen.emu.settings import Settings


class Connection(asyncio.Protocol):
    """Frames come in order, each once: one that is repeated is dropped, a gap ends the connection.

    A word is heard as of the nominal time at which it was sent, though it may be later by now,
    those of the engine one way later. lost(reason) is called once, whatever ends the connection but
    close.
    """

    def __init__(
        self,
        hear: Callable[["Connection", Word], None],
        lost: Callable[["Connection", str], None],
    ) -> None:
        self._hear, self._lost = hear, lost
        self._transport: asyncio.Transport | None = None
        self._bytes = bytearray()
        self._num_sent = self._num_heard = 0
        self._sent_s = 0.0
        self._runtime: EmuRuntime | None = None
        self._one_way_s = self._deadline_s = self._beat_s = 0.0
        self._heard_s = self._said_s = self._beaten_s = 0.0  # time.monotonic
        self._due: tuple[deque[tuple[float, Word]], deque[tuple[float, Word]]] = deque(), deque()
        self.over = False
        self.ended = False
        """Whether the other side has ended it, by closing it or by dying, and nothing else has."""
        self._gone = asyncio.Event()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Some bytes: take out what frames there are."""
        self._bytes += data
        while len(self._bytes) >= 4 and not self.over:
            size = int.from_bytes(self._bytes[:4], "big")
            if size > (MOST_HELLO_BYTES if self._runtime is None else MOST_FRAME_BYTES):
                self.fail(f"it sent a frame of {size} bytes, which is none of ours")
            elif len(self._bytes) < 4 + size:
                return
            else:
                body = bytes(self._bytes[4 : 4 + size])
                del self._bytes[: 4 + size]
                self._take(body)

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone; what came before is heard first, though its time may not have come yet."""
        self.ended = error is None or isinstance(error, ConnectionError)
        self._gone.set()
        for of_engine in (False, True):
            while self._due[of_engine]:
                self._arrive(of_engine)
        self.fail("its connection is gone" if error is None else f"its connection broke: {error}")

    # -- ours

    def send(self, word: Word) -> None:
        """Send; never waits. To a peer that is gone nothing is sent."""
        if self.over or self._transport is None:
            return
        if self._runtime is not None:
            self._sent_s = max(self._sent_s, self._runtime.now)
        self._num_sent += 1
        self._said_s = time.monotonic()
        self.write(encode(Frame(self._num_sent, self._sent_s, word)))

    def write(self, data: bytes) -> None:
        """Hand bytes to the network."""
        assert self._transport is not None
        self._transport.write(data)

    def pace(self, runtime: EmuRuntime, one_way_s: float, deadline_s: float, beat_s: float) -> None:
        """From now on nominal times count, and silence of so many real seconds ends it.

        beat_s: from one sign of life to the next, nominal seconds.
        """
        self._runtime, self._one_way_s = runtime, one_way_s
        self._deadline_s, self._beat_s = deadline_s, beat_s
        self._heard_s = self._beaten_s = time.monotonic()
        self._beat(0.0)

    def close(self) -> None:
        """End it, without a word to anybody here; what was sent still goes out."""
        self.over = True
        if self._transport is not None:
            self._transport.close()

    async def flush(self) -> None:
        """Close, and wait until all that was sent is on its way, if the peer takes it."""
        self.close()
        if self._transport is not None and not await within(self._gone, self._deadline_s):
            self._transport.abort()

    def fail(self, reason: str) -> None:
        """End it, and tell why."""
        if not self.over:
            self.over = True
            if self._transport is not None:
                self._transport.abort()
            self._lost(self, reason)

    def _beat(self, _: float) -> None:
        """Give a sign of life, and look for one."""
        runtime = self._runtime
        if self.over or runtime is None:
            return
        now_s, beaten_s = time.monotonic(), self._beaten_s
        self._beaten_s = now_s
        if now_s - beaten_s > self._deadline_s:  # it is this process that stood still
            self._heard_s = now_s
        silence_s = now_s - self._heard_s
        if silence_s > self._deadline_s:
            self.fail(f"it has said nothing for {silence_s:.3g} real seconds (emu.deadline_s)")
            return
        self.send(Ping())
        runtime.call_at(runtime.now + self._beat_s, self._beat)

    def _take(self, body: bytes) -> None:
        try:
            frame = decode(body)
        except ValueError as error:
            self.fail(f"it sent {error}")
            return
        if frame.number <= self._num_heard:  # repeated
            return
        if frame.number > self._num_heard + 1:
            missing = frame.number - self._num_heard - 1
            self.fail(f"{missing} of its messages are lost, before number {frame.number}")
            return
        self._num_heard = frame.number
        runtime = self._runtime
        if runtime is None:
            self._hear(self, frame.word)
            return
        self._heard_s = time.monotonic()
        if self._heard_s - self._said_s > self._deadline_s / 4:  # timers are late, we are alive
            self.send(Ping())
        of_engine = is_of_engine(frame.word)
        due_s = frame.sent_s + (self._one_way_s if of_engine else 0.0)
        queue = self._due[of_engine]
        queue.append((due_s, frame.word))
        runtime.call_at(due_s, lambda _: self._arrive(of_engine))

    def _arrive(self, of_engine: bool) -> None:
        if not self._due[of_engine]:  # it was heard early, when the connection went
            return
        due_s, word = self._due[of_engine].popleft()
        assert self._runtime is not None
        if not self.over:
            with self._runtime.as_of(due_s):
                self._hear(self, word)


async def within(event: asyncio.Event, real_s: float) -> bool:
    """Wait for an event; whether it came within so many real seconds. Nominal ones may be late."""
    give_up_s = time.monotonic() + real_s
    while not event.is_set() and time.monotonic() < give_up_s:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), 0.01)
    return event.is_set()


def beats(settings: Settings) -> tuple[float, float]:
    """How long a peer may be silent, in real seconds, and nominal ones between signs of life."""
    return settings.deadline_s * settings.dilation, settings.deadline_s / 4


async def connected(
    host: str, port: int, make: Callable[[], Connection], timeout_s: float
) -> Connection:
    """Connect to a process, which may still be starting; ConnectionError if it does not answer."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    while True:
        try:
            dialling = loop.create_connection(make, host, port)
            _, connection = await asyncio.wait_for(dialling, timeout_s)
        except TimeoutError:
            raise ConnectionError(f"{host}:{port} does not answer") from None
        except (OSError, UnicodeError) as error:
            if loop.time() > give_up_s:
                raise ConnectionError(f"{host}:{port} does not answer: {error}") from error
            await asyncio.sleep(0.05)
        else:
            return connection


def listening(server: Any) -> tuple[str, int]:
    """Where a server listens."""
    host, port = server.sockets[0].getsockname()[:2]
    return host, port
