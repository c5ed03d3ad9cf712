"""Starts all roles as processes of this machine, watches over them, and leaves none behind."""

import asyncio
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from smartgen.cluster import links
from smartgen.emu.clock import PacedLoop, run
from smartgen.emu.namespaces import Host, enter, namespaces
from smartgen.emu.processes.decode import DecodeProcess
from smartgen.emu.processes.prefill import PrefillProcess
from smartgen.emu.settings import Settings
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome, Progress, Watch

_PATIENCE_S = 60.0
"""Real seconds for all processes to come up."""
_PAUSE_S = 5.0
"""Real seconds that the decoding process may say nothing, besides deadlines."""


class Launch:
    """The processes of one run; kill(name) is for faults."""

    def __init__(self, experiment: Experiment, settings: Settings) -> None:
        self._experiment, self._settings = experiment, settings
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._children: dict[str, Any] = {}
        self._pipes: dict[Connection, str] = {}
        self._hosts: Mapping[str, Host] = {}
        self._at: tuple[int, float] = (0, 0.0)
        self._kills: list[tuple[float, str]] = []
        self._silence_s = _PATIENCE_S
        self.lost: list[tuple[str, str, float]] = []
        """Prefill nodes that were lost on the way, why, and when (of time.monotonic)."""
        self.killed_s: dict[str, float] = {}
        """When processes were killed (of time.monotonic)."""

    def run(self, watch: Watch | None) -> Outcome:
        """Start, watch, and bring back what the decoding process brings."""
        with ExitStack() as closing:
            if self._settings.shaping == "tbf":
                rates = real_rates(self._experiment, self._settings)
                self._hosts = closing.enter_context(namespaces(rates))
            closing.callback(self._end)
            numbers = range(self._experiment.cluster.prefill_nodes)
            for number in numbers:
                host = self._experiment.cluster.host_of(number)
                self._start(f"prefill{number}", host, _prefill, number)
            addresses = self._addresses(len(numbers))
            self._start("decode0", "decode0", _decode, addresses)
            if watch is not None:
                watch(lambda: self._at)
            return self._watch()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.killed_s[name] = time.monotonic()
        self._children[name].kill()

    def pid(self, name: str) -> int:
        """Of a child."""
        return int(self._children[name].pid)

    def _start(self, name: str, host: str, main: Callable[..., Any], *told: Any) -> None:
        ours, theirs = self._context.Pipe()
        settings, namespace = self._settings, None
        if host in self._hosts:
            namespace = self._hosts[host].namespace
            settings = replace(settings, listen=self._hosts[host].address)
        child = self._context.Process(
            target=_child,
            args=(namespace, main, theirs, self._experiment, settings, *told),
            name=name,
            daemon=True,
        )
        # an interruption is for this process, which ends the others
        waiting = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            child.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)
        theirs.close()
        self._children[name], self._pipes[ours] = child, name

    def _addresses(self, count: int) -> list[tuple[str, int]]:
        """Where prefill processes listen, in their order."""
        found: dict[str, tuple[str, int]] = {}
        give_up_s = time.monotonic() + _PATIENCE_S
        while len(found) < count:
            ready = wait(list(self._pipes), timeout=max(0.0, give_up_s - time.monotonic()))
            if not ready:
                raise SmartGenError(f"processes did not start within {_PATIENCE_S:g} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                kind, *told = self._said(pipe)
                if kind == "listening":
                    found[self._pipes[pipe]] = told[0], told[1]
        return [found[f"prefill{number}"] for number in range(count)]

    def _watch(self) -> Outcome:
        heard_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if now_s - heard_s > self._silence_s:
                raise SmartGenError(
                    f"decode0 has said nothing for {now_s - heard_s:.3g} s, "
                    "though it would twice a second"
                )
            while self._kills and self._kills[0][0] <= now_s:
                self.kill(self._kills.pop(0)[1])
            until_s = min([heard_s + self._silence_s, *(at_s for at_s, _ in self._kills[:1])])
            for pipe in wait(list(self._pipes), timeout=max(0.0, until_s - now_s)):
                assert isinstance(pipe, Connection)
                if self._pipes[pipe] == "decode0":
                    heard_s = time.monotonic()
                kind, *told = self._said(pipe)
                if kind == "outcome":
                    outcome: Outcome = told[0]
                    return outcome
                self._note(kind, told)

    def _note(self, kind: str, told: Sequence[Any]) -> None:
        """What a child says on the way."""
        settings = self._settings
        if kind == "progress":
            self._at = told[0], told[1]
        elif kind == "lost":
            self.lost.append((told[0], told[1], told[2]))
        elif kind == "started":
            losses = self._experiment.cluster.losses
            self._kills = sorted(
                (told[0] + at_s * settings.dilation, f"prefill{number}")
                for number, at_s in losses.items()
            )
            # time 0 is a moment away, and the report at the end may take each peer's deadline
            peers = self._experiment.cluster.prefill_nodes
            self._silence_s = _PAUSE_S + (1 + peers) * settings.deadline_s * settings.dilation

    def _said(self, pipe: Connection) -> tuple[Any, ...]:
        """What a child says; the decoding process must not die, a prefill process may."""
        name = self._pipes[pipe]
        try:
            said: tuple[Any, ...] = pipe.recv()
        except (EOFError, ConnectionResetError):
            del self._pipes[pipe]
            pipe.close()
            child = self._children[name]
            child.join(_PATIENCE_S)
            if name == "decode0" or not any(n == "decode0" for n in self._pipes.values()):
                raise SmartGenError(f"{name} has died ({_death(child.exitcode)})") from None
            return ("died", name)
        if said[0] == "refused" and (name == "decode0" or "decode0" not in self._children):
            raise SmartGenError(said[1])
        if said[0] == "fault":
            raise RuntimeError(f"{name}: {said[1]}")
        return said

    def _end(self) -> None:
        """Nobody lives on."""
        for child in self._children.values():
            if child.is_alive():
                child.kill()
        for child in self._children.values():
            child.join()
            child.close()
        for pipe in self._pipes:
            pipe.close()


def real_rates(experiment: Experiment, settings: Settings) -> dict[str, float]:
    """Bytes a real second of every host's NIC, as it is emulated."""
    real = settings.byte_scale * settings.dilation
    return {
        host: rate / real for host, rate in links(experiment.network, experiment.cluster).items()
    }


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}, {signal.Signals(-code).name}"
    return f"exit code {code}"


# -- in the children


def _child(namespace: str | None, main: Callable[..., Any], pipe: Connection, *told: Any) -> None:
    """Run a role; whatever ends it is told to the parent, without which nothing goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    try:
        if namespace is not None:
            enter(namespace)
        run(_watched(main, pipe, *told), PacedLoop)
    except SmartGenError as error:
        pipe.send(("refused", str(error)))
    except Exception:
        pipe.send(("fault", traceback.format_exc()))


async def _watched(main: Callable[..., Any], pipe: Connection, *told: Any) -> None:
    asyncio.get_running_loop().add_reader(pipe.fileno(), os._exit, 1)  # the parent is gone
    await main(pipe, *told)


async def _prefill(
    pipe: Connection, experiment: Experiment, settings: Settings, number: int
) -> None:
    process = PrefillProcess(experiment, settings, number)
    await process.run((settings.listen, 0), lambda host, port: pipe.send(("listening", host, port)))


async def _decode(
    pipe: Connection,
    experiment: Experiment,
    settings: Settings,
    addresses: Sequence[tuple[str, int]],
) -> None:
    def watch(progress: Progress) -> None:
        loop = asyncio.get_running_loop()

        def tell() -> None:
            pipe.send(("progress", *progress()))
            loop.call_later(0.5 / settings.dilation, tell)

        tell()

    process = DecodeProcess(
        experiment,
        settings,
        lambda number, reason: pipe.send(("lost", f"prefill{number}", reason, time.monotonic())),
    )
    outcome = await process.run(addresses, lambda epoch_s: pipe.send(("started", epoch_s)), watch)
    pipe.send(("outcome", outcome))
