"""A prefill process: waits for the decoding process, serves it to its end, reports, and goes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import numpy as np

from smartgen.cost.shaper import Posting
from smartgen.emu.clock import PacedLoop
from smartgen.emu.processes.arena import all_local
from smartgen.emu.processes.channel import ProcessChannel
from smartgen.emu.processes.connection import Connection, beats, listening
from smartgen.emu.processes.driver import Driver
from smartgen.emu.processes.handshake import facts_of, machine, mismatch
from smartgen.emu.processes.layouts import decode_layout, prefill_layout
from smartgen.emu.processes.prefill_node import ProcessPrefillNode
from smartgen.emu.processes.sender import Sender
from smartgen.emu.processes.words import (
    Address,
    Finish,
    Grant,
    Hello,
    Landed,
    Ping,
    Pong,
    Refused,
    Report,
    Start,
    Welcome,
    Word,
    is_of_engine,
)
from smartgen.emu.runtime import EmuRuntime
from smartgen.emu.settings import Settings
from smartgen.emu.transports import open_device
from smartgen.emu.transports.protocol import QueuePair
from smartgen.engine.messages import PeerLost
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment
from smartgen.metrics.records import Recorder
from smartgen.nodes.roles import make_prefill_role, warm_up
from smartgen.nodes.timed_prefill import Write


class PrefillProcess:
    """One prefill node and its connection; ends when it has reported, or its peer is gone."""

    def __init__(self, experiment: Experiment, settings: Settings, number: int) -> None:
        self._experiment, self._settings, self._number = experiment, settings, number
        self._facts = facts_of(experiment, settings)
        self._there = decode_layout(experiment, settings)
        self._here = prefill_layout(experiment, settings)
        self._peer: Connection | None = None
        self._started = asyncio.get_running_loop().create_future()
        self._node: ProcessPrefillNode | None = None
        self._sender: Sender | None = None
        self._channel: ProcessChannel | None = None
        self._drivers: list[Driver] = []
        self._connections: list[Connection] = []
        self._lost: str | None = None
        self._early: list[Word] = []
        self._patience: asyncio.TimerHandle | None = None

    async def run(self, listen: tuple[str, int], told: Callable[[str, int], None]) -> None:
        """Listen, tell where, and serve one decoding process to its end.

        SmartGenError if it was lost before.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PacedLoop)
        with ExitStack() as closing:
            self._device = open_device(
                self._settings.transport, self._settings.limits, self._settings.listen
            )
            closing.callback(self._device.close)
            self._arena = self._device.register(self._here.num_bytes)
            all_local(self._here, self._arena.memory)
            warm_up(self._experiment)
            server = await self._listen(loop, *listen)
            closing.callback(self._close)
            closing.callback(server.close)
            told(*listening(server))
            epoch_s: float = await self._started
            loop.pace(epoch_s, self._settings.dilation)
            await self._serve(loop)

    async def _listen(self, loop: PacedLoop, host: str, port: int) -> asyncio.Server:
        try:
            return await loop.create_server(self._accept, host, port)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise SmartGenError(
                f"prefill{self._number} cannot listen at {host}:{port} (emu.listen): {why}"
            ) from error

    async def _serve(self, loop: PacedLoop) -> None:
        experiment, runtime = self._experiment, EmuRuntime()
        record = experiment.record
        recorder = Recorder(record.transfers, record.decisions, record.acts)
        assert self._peer is not None and self._sender is not None
        node = self._node = ProcessPrefillNode(
            runtime,
            experiment,
            self._number,
            self._sender,
            recorder,
            self._here,
            self._there,
            self._arena.memory,
            self._settings,
        )
        self._channel = ProcessChannel(self._peer)
        role = make_prefill_role(runtime, experiment, node, [self._channel])
        self._peer.pace(runtime, experiment.network.one_way_s, *beats(self._settings))
        asyncio.get_running_loop().call_soon(self._catch_up)
        await role.run()
        if not self._peer.over:
            lateness_s = np.array(loop.lateness_s).tobytes()
            recorded = msgspec.msgpack.encode(recorder)
            self._peer.send(Report(recorded, lateness_s, node.digests))
            await self._peer.flush()
        elif self._lost is not None:
            raise SmartGenError(f"prefill{self._number}: {self._lost}")

    def _catch_up(self) -> None:
        """Hear what was said while the run was being made ready."""
        early, self._early = self._early, []
        for word in early:
            assert self._peer is not None
            self._hear(self._peer, word)

    def _accept(self) -> Connection:
        """Somebody connects; who, hello will tell."""
        self._connections.append(Connection(self._hear, self._lose))
        return self._connections[-1]

    def _close(self) -> None:
        for connection in self._connections:
            connection.close()
        for driver in self._drivers:
            driver.close()

    # -- words

    def _hear(self, connection: Connection, word: Word) -> None:
        if isinstance(word, Hello):
            self._greet(connection, word)
        elif connection is not self._peer:
            connection.fail("it has not said hello")
        elif self._channel is None or self._node is None or self._sender is None:
            self._hear_before(connection, word)
        elif is_of_engine(word):
            self._channel.deliver(word)
        else:
            self._do(self._channel, self._node, self._sender, word)

    def _hear_before(self, connection: Connection, word: Word) -> None:
        """What is said before the run has begun; what belongs to it waits."""
        if isinstance(word, Start) and self._sender is not None and not self._started.done():
            assert self._patience is not None
            self._patience.cancel()
            self._started.set_result(word.epoch_s)
        elif isinstance(word, Ping):
            connection.send(Pong(word.number, time.monotonic()))
        elif self._started.done():
            self._early.append(word)
        else:
            connection.fail(f"it says {type(word).__name__} before start")

    def _do(
        self, channel: ProcessChannel, node: ProcessPrefillNode, sender: Sender, word: Word
    ) -> None:
        match word:
            case Grant():
                sender.granted(word.flow_id)
            case Landed():
                sender.landed(word.flow_id)
            case Address():
                node.address(word.slot, word.extents)
            case Finish():
                channel.deliver(PeerLost("decode0"))

    def _greet(self, connection: Connection, hello: Hello) -> None:
        """Agree, or say why not."""
        why = mismatch(hello.protocol, hello.facts, self._facts)
        if self._peer is not None:
            why = "another decoding process is connected already"
        elif why is None and hello.arena_tokens != self._there.tokens:
            why = f"its arena has room for {hello.arena_tokens} tokens, not {self._there.tokens}"
        if why is not None:
            connection.send(Refused(f"prefill{self._number}: {why}"))
            connection.close()
            return
        self._peer = connection
        patience_s = self._settings.deadline_s * self._settings.dilation
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(patience_s, self._lose_patience)
        pairs = [self._device.queue_pair(dials=False) for _ in range(2)]
        connection.send(Welcome((pairs[0].address, pairs[1].address), machine()))
        asyncio.get_running_loop().call_soon(self._connect, pairs, hello)

    def _connect(self, pairs: list[QueuePair], hello: Hello) -> None:
        settings = self._settings
        assert self._peer is not None
        try:
            for pair, address in zip(pairs, hello.queue_pairs, strict=True):
                pair.connect(address, settings.deadline_s * settings.dilation)
        except OSError as error:
            self._peer.fail(f"its queue pairs cannot be connected: {error}")
            return
        sender = self._sender = Sender(
            self._device,
            self._arena,
            hello.arena_key,
            settings.lane,
            settings.shaping == "wire",
            self._peer.send,
            self._withdrawn,
            self._peer.fail,
        )
        self._drivers = [
            Driver(pairs[0], sender.push_completed, self._broken),
            Driver(pairs[1], sender.reply_completed, self._broken),
        ]
        sender.connect(*self._drivers)

    def _withdrawn(self, posting: Posting[Write]) -> None:
        assert self._node is not None
        for request_id in posting.write.parcel.request_ids:
            self._node.fail(request_id, "its push was refused by the queue pair")

    # -- ends

    def _lose_patience(self) -> None:
        if not self._started.done() and self._peer is not None:
            self._peer.fail("it said hello and no more")

    def _broken(self, status: str) -> None:
        if self._peer is not None:
            self._peer.fail(f"its queue pair has failed: {status}")

    def _lose(self, connection: Connection, reason: str) -> None:
        if connection is not self._peer:
            return  # somebody who did not get in
        for driver in self._drivers:  # before the connection: who sees it end may rely on that
            driver.close()
        self._lost = f"the decoding process is lost: {reason}"
        if not self._started.done():
            self._started.set_exception(SmartGenError(f"prefill{self._number}: {self._lost}"))
        elif self._channel is not None:
            self._channel.deliver(PeerLost("decode0"))
