"""The decoding process: finds its prefill processes, serves the workload, gathers all reports."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
import numpy as np

from smartgen.cluster import links, varying_links
from smartgen.emu.clock import PacedLoop
from smartgen.emu.processes.arrivals import Arrivals
from smartgen.emu.processes.channel import ProcessChannel
from smartgen.emu.processes.connection import Connection, beats, connected, within
from smartgen.emu.processes.decode_node import ProcessDecodeNode
from smartgen.emu.processes.driver import Driver
from smartgen.emu.processes.handshake import facts_of, machine
from smartgen.emu.processes.layouts import decode_layout, staging_at
from smartgen.emu.processes.receiver import Receiver
from smartgen.emu.processes.report import facts_of_run, same_digests
from smartgen.emu.processes.words import (
    PROTOCOL,
    Doorbell,
    Finish,
    Hello,
    Ping,
    Pong,
    Refused,
    Report,
    Start,
    Welcome,
    Withdrawn,
    Word,
    is_of_engine,
)
from smartgen.emu.runtime import EmuRuntime
from smartgen.emu.settings import Settings
from smartgen.emu.transports import open_device
from smartgen.emu.transports.protocol import Device, QueuePair, Region
from smartgen.engine.messages import Failed, Handover, PeerLost
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome, Progress
from smartgen.metrics.records import Recorder
from smartgen.nodes.meter import Meter
from smartgen.nodes.roles import make_decode_role, make_router, serve, warm_up

_GRACE_S = 0.05
"""Real seconds from the end of a queue pair to that of its connection, if the peer has died."""
_HEAD_START_S = 0.1
"""Real seconds from the last handshake to time 0, for the word of it to get around."""


class Peer:
    """A prefill process: its connection, and the queue pairs that its bytes come over."""

    def __init__(self, number: int, hear: Any, lost: Any) -> None:
        self.number = number
        self.connection = Connection(partial(hear, self), partial(lost, self))
        self.channel = ProcessChannel(self.connection)
        self.drivers: list[Driver] = []
        self.answers: asyncio.Queue[Word] = asyncio.Queue()
        self.offset_s = 0.0
        """What its clock says more than ours."""
        self.report: Report | None = None
        self.gone = asyncio.Event()

    @property
    def queue_pairs(self) -> tuple[str, str]:
        """Names of what it posts on."""
        return (f"prefill{self.number}/decode0/push", f"prefill{self.number}/decode0/reply")


class DecodeProcess:
    """The decoding node and its peers. lost(peer, reason) is told of a peer that is gone."""

    def __init__(
        self,
        experiment: Experiment,
        settings: Settings,
        lost: Callable[[int, str], None],
    ) -> None:
        self._experiment, self._settings, self._told_lost = experiment, settings, lost
        self._layout = decode_layout(experiment, settings)
        self._peers: list[Peer] = []
        self._receivers: dict[int, Receiver] = {}
        self._router = make_router(experiment)
        self._runtime: EmuRuntime | None = None
        self._finishing = False
        self._reasons: dict[str, str] = {}

    async def run(
        self,
        addresses: Sequence[tuple[str, int]],
        started: Callable[[float], None],
        watch: Callable[[Progress], None],
    ) -> Outcome:
        """Connect, serve, and bring back what all processes have recorded.

        started is told the reading of time.monotonic() at time 0.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PacedLoop)
        settings = self._settings
        with ExitStack() as closing:
            device = open_device(settings.transport, settings.limits, settings.listen)
            closing.callback(device.close)
            closing.callback(self._close)
            arena = device.register(self._layout.num_bytes)
            warm_up(self._experiment)
            for number, address in enumerate(addresses):
                self._peers.append(Peer(number, self._hear, self._lose))
                await self._connect(self._peers[-1], address, device, arena)
            epoch_s = time.monotonic() + _HEAD_START_S
            loop.pace(epoch_s, settings.dilation)
            self._runtime = EmuRuntime()
            self._build(arena)
            for peer in self._peers:
                peer.connection.send(Start(epoch_s + peer.offset_s))
                one_way_s = self._experiment.network.one_way_s
                peer.connection.pace(self._runtime, one_way_s, *beats(settings))
            started(epoch_s)
            watch(self._progress)
            await self._serve()
            return await self._outcome(loop)

    def _progress(self) -> tuple[int, float]:
        assert self._runtime is not None
        return self._router.num_over, self._runtime.now

    # -- before

    async def _connect(
        self, peer: Peer, address: tuple[str, int], device: Device, arena: Region
    ) -> None:
        settings = self._settings
        timeout_s = settings.deadline_s * settings.dilation
        try:
            await connected(*address, lambda: peer.connection, timeout_s)
            pairs = [device.queue_pair(dials=True) for _ in range(2)]
            facts = facts_of(self._experiment, settings)
            ours = (pairs[0].address, pairs[1].address)
            hello = Hello(PROTOCOL, facts, ours, arena.key, self._layout.tokens)
            peer.connection.send(hello)
            welcome = await asyncio.wait_for(peer.answers.get(), timeout_s)
            if isinstance(welcome, Refused):
                raise SmartGenError(welcome.reason)
            if not isinstance(welcome, Welcome):
                raise ConnectionError(f"it answers hello with {type(welcome).__name__}")
            for pair, theirs in zip(pairs, welcome.queue_pairs, strict=True):
                pair.connect(theirs, timeout_s)
        except (ConnectionError, TimeoutError) as error:
            where = f"{address[0]}:{address[1]}"
            raise SmartGenError(
                f"prefill{peer.number} at {where} cannot be reached within emu.deadline_s: "
                f"{error or 'it does not answer'}"
            ) from error
        self._drive(peer, pairs, arena)
        if welcome.machine != machine():
            peer.offset_s = await _clock_offset(peer, timeout_s)

    def _drive(self, peer: Peer, pairs: list[QueuePair], arena: Region) -> None:
        number = peer.number
        settings = self._settings
        receiver = Receiver(
            arena,
            settings.lane,
            staging_at(self._layout, self._experiment, settings, number),
            lambda flow_id: self._arrivals.pushed(number, flow_id),
            lambda fetch_id: self._arrivals.replied(number, fetch_id),
            peer.connection.fail,
        )
        broken = partial(self._broken, peer)
        peer.drivers = [
            Driver(pairs[0], receiver.push_completed, broken),
            Driver(pairs[1], receiver.reply_completed, broken),
        ]
        receiver.connect(*peer.drivers)
        self._receivers[number] = receiver

    def _build(self, arena: Region) -> None:
        experiment, runtime = self._experiment, self._runtime
        assert runtime is not None
        record = experiment.record
        self._recorder = Recorder(record.transfers, record.decisions, record.acts)
        self._meter = Meter(
            links(experiment.network, experiment.cluster),
            experiment.window_s,
            varying_links(experiment.network, experiment.cluster),
        )
        self._arrivals = Arrivals(
            runtime,
            experiment,
            self._settings.shaping == "wire",
            lambda posting, first, stop: self._node.land(posting, first, stop),
            self._tell,
        )
        self._node = ProcessDecodeNode(
            runtime,
            experiment,
            self._arrivals,
            self._meter,
            self._recorder,
            self._layout,
            arena.memory,
            self._settings,
            self._tell,
            self._receivers,
            self._fail,
        )

    # -- the run

    async def _serve(self) -> None:
        experiment, runtime = self._experiment, self._runtime
        assert runtime is not None
        channels = [peer.channel for peer in self._peers]
        role = self._role = make_decode_role(
            runtime, experiment, self._node, channels, self._router
        )
        for peer in self._peers:
            if peer.gone.is_set():  # before there was anybody to tell
                peer.channel.deliver(PeerLost(f"prefill{peer.number}"))
        serving = runtime.scope()
        serving.spawn(serve(runtime, experiment.requests, self._router, [role], serving))
        await serving.join()

    def _tell(self, peer: int, word: Word) -> None:
        self._peers[peer].connection.send(word)

    def _hear(self, peer: Peer, _: Connection, word: Word) -> None:
        match word:
            case Doorbell():
                self._arrivals.ring(peer.number, word)
            case Withdrawn():
                self._arrivals.withdrawn(peer.number, word.flow_id)
            case Report():
                peer.report = word
                peer.gone.set()
            case Welcome() | Refused() | Pong():
                peer.answers.put_nowait(word)
            case Handover():
                # said here as well, for the sake of peers that do not live to report
                row = self._recorder.request(word.request_id)
                assert self._runtime is not None
                row.first_token_s = self._runtime.now - self._experiment.network.one_way_s
                peer.channel.deliver(word)
            case Failed():
                self._reasons.setdefault(f"request {word.request_id}", word.reason)
                peer.channel.deliver(word)
            case _ if is_of_engine(word):
                peer.channel.deliver(word)

    def _fail(self, request_id: int, reason: str) -> None:
        self._reasons.setdefault(f"request {request_id}", reason)
        self._role.fail(request_id)

    def _broken(self, peer: Peer, status: str) -> None:
        if not (self._finishing or peer.gone.is_set()):
            # if it has died its connection says so, too, which is better to know
            grace_s = _GRACE_S / self._settings.dilation
            told = f"its queue pair has failed: {status}"
            asyncio.get_running_loop().call_later(grace_s, peer.connection.fail, told)

    def _lose(self, peer: Peer, _: Connection, reason: str) -> None:
        """A peer is gone: nothing that it has posted will land any more."""
        for driver in peer.drivers:
            driver.close()
        if peer.gone.is_set():
            return
        peer.gone.set()
        peer.answers.put_nowait(Refused(f"prefill{peer.number} is lost: {reason}"))
        if self._runtime is None or self._finishing:
            return
        self._told_lost(peer.number, reason)
        self._reasons[f"prefill{peer.number}"] = reason
        dropped = self._arrivals.drop(peer.queue_pairs)
        # who has died writes nothing; who ends a connection closes its queue pairs before
        may_write = self._settings.transport == "shm" and not peer.connection.ended
        self._node.lost(peer.number, dropped, may_write)
        peer.channel.deliver(PeerLost(f"prefill{peer.number}"))

    # -- after

    async def _outcome(self, loop: PacedLoop) -> Outcome:
        """Ask everybody for a report; who does not answer is taken to be lost."""
        assert self._runtime is not None
        makespan_s = self._runtime.now
        behind_s = loop.real_s() - makespan_s
        lateness_s = [np.array(loop.lateness_s)]
        self._finishing = True
        for peer in self._peers:
            peer.connection.send(Finish())
        recorders, equal = [self._recorder], 0
        give_up_s = time.monotonic() + self._settings.deadline_s * self._settings.dilation
        for peer in self._peers:
            if not await within(peer.gone, give_up_s - time.monotonic()):
                self._told_lost(peer.number, "it does not report")
            if peer.report is not None:
                recorders.append(msgspec.msgpack.decode(peer.report.recorder, type=Recorder))
                lateness_s.append(np.frombuffer(peer.report.lateness_s))
                equal += same_digests(self._node.digests, peer.report.digests)
        told = facts_of_run(self._settings, np.concatenate(lateness_s), self._arrivals.late_s)
        told = {
            **told,
            "behind_s": behind_s,
            "equal_pools": equal,
            "failures": self._reasons,
        }
        return Outcome(recorders, makespan_s, self._meter.busy_s, told)

    def _close(self) -> None:
        for peer in self._peers:
            peer.connection.close()
            for driver in peer.drivers:
                driver.close()


async def _clock_offset(peer: Peer, timeout_s: float, tries: int = 8) -> float:
    """What its clock says more than ours, from the quickest of a few questions."""
    found = []
    for number in range(tries):
        asked_s = time.monotonic()
        peer.connection.send(Ping(number))
        try:
            answer = await asyncio.wait_for(peer.answers.get(), timeout_s)
        except TimeoutError:
            answer = Refused("it says nothing")
        heard_s = time.monotonic()
        if not isinstance(answer, Pong):
            raise SmartGenError(f"prefill{peer.number} does not say what its clock says: {answer}")
        found.append((heard_s - asked_s, answer.clock_s - (asked_s + heard_s) / 2))
    return min(found)[1]
