"""Hosts as namespaces: no bucket lets more pass than it holds and gets, and nothing is left."""

import hashlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from smartgen.emu.namespaces import Host, burst_bytes, namespaces, remove_leftovers, why_not
from smartgen.errors import SmartGenError

SLOW, FAST = 10e6, 400e6
MANY = 3 << 20

RECEIVER = """
import hashlib, socket, sys, time
with socket.create_server(("0.0.0.0", 5000)) as listener:
    print("listening", flush=True)
    senders = [listener.accept()[0] for _ in range(int(sys.argv[1]))]
digests = []
for sender in senders:
    digest = hashlib.sha256()
    with sender:
        while piece := sender.recv(1 << 20):
            digest.update(piece)
    digests.append(digest.hexdigest())
print(time.monotonic(), *digests)
"""

SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as receiver:
    sys.stdin.readline()
    began = time.monotonic()
    receiver.sendall(bytes(range(256)) * (int(sys.argv[2]) // 256))
print(began)
"""

OWNER = """
import subprocess, sys
from smartgen.emu.namespaces import namespaces
with namespaces({"first": 1e7, "second": 1e7}) as hosts:
    child = subprocess.Popen([*hosts["first"].prefix, "sleep", "1000"])
    print(child.pid, *(host.namespace for host in hosts.values()), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def _allowed(request: pytest.FixtureRequest) -> None:
    """Skip, saying why, where namespaces cannot be made."""
    if reason := why_not():
        pytest.skip(f"no network namespaces here: {reason}")


class Child(subprocess.Popen[str]):
    """A Python program, in a host or not, that does not outlive its block."""

    def __init__(self, program: str, *arguments: object, host: Host | None = None) -> None:
        prefix: Sequence[str] = host.prefix if host else ()
        words = [*prefix, sys.executable, "-c", program, *map(str, arguments)]
        super().__init__(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        """The next line that it prints."""
        assert self.stdout is not None
        return self.stdout.readline()

    def __exit__(self, *error: object) -> None:  # type: ignore[override]
        self.kill()
        super().__exit__(*error)  # type: ignore[arg-type]


def listed() -> set[str]:
    """The names of namespaces, as ip has them."""
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in shown.stdout.splitlines()}


def of_this_process() -> set[str]:
    """Those that belong to this process; others may be made and removed at the same time."""
    return {name for name in listed() if name.startswith(f"smartgen-{os.getpid()}-")}


def links() -> set[str]:
    """The machine's own interfaces."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


def moved(routes: Sequence[tuple[Host, Host]], num_bytes: int) -> list[float]:
    """Send over every route at once; for each, the seconds until all that its receiver gets is in.

    They count from before the first byte is given to any socket to after the last is received.
    """
    receivers = {end.address: end for _, end in routes}
    counts = {address: sum(end.address == address for _, end in routes) for address in receivers}
    listening = {a: Child(RECEIVER, counts[a], host=host) for a, host in receivers.items()}
    for receiver in listening.values():
        assert receiver.line() == "listening\n"
    sending = [Child(SENDER, end.address, num_bytes, host=start) for start, end in routes]
    began = min(float(child.communicate(timeout=60)[0]) for child in _told(sending))
    digest = hashlib.sha256(bytes(range(256)) * (num_bytes // 256)).hexdigest()
    took = {}
    for address, receiver in listening.items():
        ended, *digests = receiver.communicate(timeout=60)[0].split()
        assert digests == [digest] * counts[address]
        took[address] = float(ended) - began
    return [took[end.address] for _, end in routes]


def _told(children: Sequence[Child]) -> Sequence[Child]:
    """Let all begin before the first is waited for."""
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return children


def let_pass(took_s: float) -> float:
    """The most bytes that come through a slow NIC in that time: what it holds and what it gets."""
    return burst_bytes(SLOW) + SLOW * took_s


@pytest.mark.parametrize("slow", ["start", "end"])
def test_a_bucket_at_either_side_never_lets_more_pass_than_it_holds_and_gets(slow: str) -> None:
    rates = {"start": FAST, "end": FAST} | {slow: SLOW}
    with namespaces(rates) as hosts:
        (took_s,) = moved([(hosts["start"], hosts["end"])], MANY)
    assert let_pass(took_s) >= MANY


def test_both_directions_of_a_nic_move_at_once_and_each_within_its_bucket() -> None:
    with namespaces({"one": SLOW, "other": FAST}) as hosts:
        there, back = moved([(hosts["one"], hosts["other"]), (hosts["other"], hosts["one"])], MANY)
    for took_s in (there, back):
        assert let_pass(took_s) >= MANY


def test_two_prefill_hosts_share_what_comes_into_the_decoding_node() -> None:
    with namespaces({"prefill0": FAST, "prefill1": FAST, "decoding": SLOW}) as hosts:
        routes = [(hosts[name], hosts["decoding"]) for name in ("prefill0", "prefill1")]
        took_s = max(moved(routes, MANY))
    assert let_pass(took_s) >= 2 * MANY


def test_a_host_sees_its_own_nic_and_loopback_only_and_the_machine_sees_nothing_new() -> None:
    before = links()
    with namespaces({"one": 1e7, "other": 1e7}) as hosts:
        assert links() == before
        assert len(of_this_process()) == 3  # and the bridge's
        seen = subprocess.check_output([*hosts["one"].prefix, "ip", "-4", "-o", "addr"], text=True)
    addresses = {words[1]: words[3] for words in map(str.split, seen.splitlines())}
    assert addresses == {"lo": "127.0.0.1/8", "nic": f"{hosts['one'].address}/24"}
    assert of_this_process() == set()
    assert links() == before


def test_an_error_leaves_nothing_and_what_still_runs_in_a_host_is_killed() -> None:
    with pytest.raises(ZeroDivisionError), namespaces({"one": 1e7}) as hosts:
        child = Child("import time; time.sleep(1000)", host=hosts["one"])
        raise ZeroDivisionError
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert of_this_process() == set()


def test_one_process_may_hold_several_at_a_time() -> None:
    with namespaces({"one": 1e7}) as first:
        with namespaces({"one": 1e7}) as second:
            assert first["one"].namespace != second["one"].namespace
        assert first["one"].namespace in listed()
        assert second["one"].namespace not in listed()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_owner_that_is_asked_to_end_removes_its_namespaces(number: signal.Signals) -> None:
    with Child(OWNER) as owner:
        _, *names = owner.line().split()
        assert set(names) <= listed()
        owner.send_signal(number)
        owner.wait(60)
    assert owner.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert not set(names) & listed()


def test_what_a_killed_owner_left_is_removed_at_the_next_start_and_not_a_living_ones() -> None:
    with Child(OWNER) as killed, Child(OWNER) as living:
        pid, *left = killed.line().split()
        _, *kept = living.line().split()
        sleeper = os.pidfd_open(int(pid))
        with namespaces({"one": 1e7}):
            assert {*left, *kept} <= listed()
        killed.kill()
        killed.wait(60)
        with namespaces({"one": 1e7}):
            assert not set(left) & listed()
        assert set(kept) <= listed()
        ended, _, _ = select.select([sleeper], [], [], 60)
        os.close(sleeper)
        assert ended  # what it had started in a host was killed, too
    remove_leftovers()
    assert not set(kept) & listed()


@pytest.mark.parametrize("name", ["a" * 16, "", "two words", "a/b", "..", "bridge", "lo"])
def test_a_name_that_cannot_be_an_interfaces_is_refused(name: str) -> None:
    with pytest.raises(SmartGenError, match=r"must be named by 1 to 15 letters"):
        namespaces({name: 1e7}).__enter__()
    assert of_this_process() == set()


def test_a_rate_that_is_none_is_refused_by_the_hosts_name() -> None:
    with pytest.raises(SmartGenError, match=r"bytes per second of host one=0 must be"):
        namespaces({"one": 0}).__enter__()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ip = tmp_path / "ip"
    ip.write_text("#!/bin/sh\necho 'Operation not permitted' >&2\nexit 2\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == "the program ip (of iproute2) is not there"
    ip.chmod(0o755)
    assert why_not() == "the program tc (of iproute2) is not there"
    (tmp_path / "tc").symlink_to(ip)
    assert (why_not() or "").endswith("-bridge: Operation not permitted")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "network namespaces need root"
