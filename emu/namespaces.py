"""Hosts as network namespaces: one NIC each, shaped in both directions by the kernel (tc tbf).

A namespace for every host and one for the bridge that joins them. What leaves a host passes a
bucket inside its namespace, what comes to it one at its port of the bridge; nothing of the
machine's own network is touched, and the namespaces reach each other only. It needs root and
iproute2; why_not tells whether that will do.

Names of namespaces tell the owner by process id and start time. What an owner left that was killed
is removed when the next one starts.
"""

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import count
from pathlib import Path

from smartgen.errors import SmartGenError, positive

PACKET_BYTES = 9000
"""MTU. Headers take 0.7 % of the rate (4.4 % at 1500), and a bucket hands out fewer packets."""

FRAME_BYTES = PACKET_BYTES + 14
"""What a bucket counts of the largest packet: with its Ethernet header."""

BURST_S = 0.004
"""A bucket's depth as time at its rate.

A timer wakes what waits for tokens. Tokens that come while the bucket is full are lost, so it must
hold what accrues while a timer is late, and on busy cores that is milliseconds
(benchmarks/namespaces.md). A deeper one lets more pass at once after an idle time.
"""

QUEUE_S = 0.05
LEAST_QUEUE_BYTES = 1_000_000
"""What may wait before a bucket: QUEUE_S at the rate, and this at least.

Only at a port where several hosts send to one does it fill. With 250 kB two BBR senders at 5 MB/s
lost so many packets that they reached 60 to 99 % of the rate, with 500 kB and more all of it.
"""

SUBNET = ip_network("10.77.0.0/24")
NIC = "nic"
"""A host's interface, as seen from inside."""

BRIDGE = "bridge"

_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")  # IFNAMSIZ is 16 with its zero
_OWNED_NAME = re.compile(r"smartgen-(?P<pid>\d+)-(?P<started>\d+)-\d+-.+")
_FOLDER = Path("/run/netns")
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of sched.h."""

_WAITING = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one NIC; address is how the other hosts reach it."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Put before a command's words, it runs in this host, with the process id it is given."""
        return ("ip", "netns", "exec", self.namespace)


def why_not() -> str | None:
    """Say in one line what keeps this process from making namespaces, or null; it tries."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"the program {program} (of iproute2) is not there"
    try:
        with namespaces({"one": 1e6, "other": 1e6}) as hosts:
            _run([*hosts["one"].prefix, "true"])
    except SmartGenError as error:
        return str(error)
    return None


def burst_bytes(bytes_per_s: float, burst_s: float = BURST_S) -> int:
    """What a NIC of that rate lets pass at once after an idle time; two frames at least."""
    return max(round(bytes_per_s * burst_s), 2 * FRAME_BYTES)


@contextmanager
def namespaces(rates: Mapping[str, float], burst_s: float = BURST_S) -> Iterator[dict[str, Host]]:
    """Make a host for every name, with that rate in bytes per second out of it and into it.

    When left, by an error, SIGINT or SIGTERM too, all are removed and what still runs in them is
    killed. SIGTERM ends the process by SystemExit meanwhile, if it would have ended it anyway.
    """
    _check(rates)
    positive("burst_s", burst_s)
    with _terminated_by_exit():
        prefix = None
        try:
            with _signals_wait():
                remove_leftovers()
                prefix = _free_prefix()
                hosts = _make(prefix, rates, burst_s)
            yield hosts
        finally:
            if prefix is not None:
                with _signals_wait():
                    _remove([name for name in _names() if name.startswith(prefix)])


def enter(name: str) -> None:
    """Move this process into a namespace; its connections are made there from now on."""
    with (_FOLDER / name).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"namespace {name} cannot be entered")


def remove_leftovers() -> None:
    """Remove the namespaces whose owner does not live any more, and kill what runs in them."""
    owned = [(name, _OWNED_NAME.fullmatch(name)) for name in _names()]
    _remove(
        [name for name, own in owned if own and _started(int(own["pid"])) != int(own["started"])]
    )


# -- checks


def _check(rates: Mapping[str, float]) -> None:
    """Refuse names that cannot be interfaces' and rates that are none."""
    if len(rates) > SUBNET.num_addresses - 2:
        raise SmartGenError(f"{len(rates)} hosts must be at most {SUBNET.num_addresses - 2}")
    for name, rate in rates.items():
        if not _HOST_NAME.fullmatch(name) or name in (BRIDGE, "lo"):
            raise SmartGenError(
                f"host {name!r} must be named by 1 to 15 letters, digits, dots, dashes or"
                f" underscores (an interface's name), and neither {BRIDGE} nor lo"
            )
        positive(f"bytes per second of host {name}", rate)


# -- making and removing


def _make(prefix: str, rates: Mapping[str, float], burst_s: float) -> dict[str, Host]:
    """The bridge, then each host at a port of it."""
    bridge = prefix + BRIDGE
    _run(["ip", "netns", "add", bridge])
    _run(["ip", "-n", bridge, "link", "add", "name", BRIDGE, "type", "bridge"])
    _run(["ip", "-n", bridge, "link", "set", "dev", BRIDGE, "up"])
    hosts = {}
    for (name, rate), address in zip(rates.items(), SUBNET.hosts(), strict=False):
        host = Host(prefix + name, str(address))
        _plug(bridge, name, host)
        _shape(host.namespace, NIC, rate, burst_bytes(rate, burst_s))
        _shape(bridge, name, rate, burst_bytes(rate, burst_s))
        hosts[name] = host
    return hosts


def _plug(bridge: str, port: str, host: Host) -> None:
    """Make a host's namespace, with one end of a veth in it and the other at the bridge."""
    inside = ["ip", "-n", host.namespace]
    mtu = ["mtu", str(PACKET_BYTES)]
    _run(["ip", "netns", "add", host.namespace])
    ends = ["name", port, *mtu, "type", "veth", "peer", "name", NIC, *mtu]
    _run(["ip", "-n", bridge, "link", "add", *ends, "netns", host.namespace])
    _run(["ip", "-n", bridge, "link", "set", "dev", port, "master", BRIDGE, "up"])
    _run([*inside, "address", "add", f"{host.address}/{SUBNET.prefixlen}", "dev", NIC])
    _run([*inside, "link", "set", "dev", NIC, "up"])
    _run([*inside, "link", "set", "dev", "lo", "up"])


def _shape(namespace: str, device: str, bytes_per_s: float, burst: int) -> None:
    """A token bucket at an interface's way out; tc calls bytes per second bps."""
    limit = burst + max(round(bytes_per_s * QUEUE_S), LEAST_QUEUE_BYTES)
    bucket = ["rate", f"{bytes_per_s:.0f}bps", "burst", f"{burst}b", "limit", f"{limit}b"]
    _run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *bucket])


def _remove(names: Sequence[str]) -> None:
    """Kill what runs in these namespaces and remove them; another process may do so, too."""
    for name in names:
        with suppress(SmartGenError):
            for pid in _run(["ip", "netns", "pids", name]).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            _run(["ip", "netns", "delete", name])
        except SmartGenError:
            if name in _names():
                raise


def _names() -> list[str]:
    """Every namespace of this machine that has a name."""
    return sorted(entry.name for entry in _FOLDER.iterdir()) if _FOLDER.is_dir() else []


def _free_prefix() -> str:
    """What the names of this owner's next namespaces begin with."""
    pid = os.getpid()
    taken = _names()
    prefixes = (f"smartgen-{pid}-{_started(pid)}-{number}-" for number in count())
    return next(p for p in prefixes if not any(name.startswith(p) for name in taken))


def _started(pid: int) -> int | None:
    """When a living process began, in ticks since boot; a number of a dead one may come again."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # its name, in brackets, may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


def _run(command: Sequence[str]) -> str:
    """Run a command and return what it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SmartGenError(f"{shlex.join(command)}: {error}") from None
    if done.returncode:
        told = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise SmartGenError(f"{shlex.join(command)}: {told}")
    return done.stdout


# -- signals


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let SIGINT and SIGTERM take effect afterwards, and never in what is run meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _terminated_by_exit() -> Iterator[None]:
    """Unwind the stack on SIGTERM, unless somebody handles it already or this is no main thread."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
