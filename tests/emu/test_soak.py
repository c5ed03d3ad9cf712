"""Many requests with aborts and killed processes; processes started one by one; nothing is left."""

import multiprocessing
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from smartgen.emu.processes.launcher import Launch
from smartgen.emu.settings import TRANSPORTS, Settings
from smartgen.metrics.records import merge
from smartgen.workload import Request

KEYS = [
    "model=tiny",
    "workload=tiny",
    "blocks_per_layer=32",
    "cluster.prefill_nodes=1",
    "network.gbps=0.02",
]


def held():
    """Descriptors by kind, shared memory, children of this process, and its memory in MiB."""
    kinds = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            kinds.append(re.sub(r"\d+", "N", str(path.readlink())))
        except OSError:  # the listing's own
            continue
    shared = sorted(path.name for path in Path("/dev/shm").iterdir() if "smartgen" in path.name)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    rss_mib = pages * resource.getpagesize() / 2**20
    return sorted(kinds), shared, multiprocessing.active_children(), rss_mib


def asked_200(rng):
    """One every 20 ms, of 40 to 300 tokens; every tenth is given up."""
    requests = []
    for number in range(200):
        at_s = 0.02 * number
        abort_s = at_s + float(rng.uniform(0, 0.5)) if rng.random() < 0.1 else None
        prompt, output = int(rng.integers(40, 300)), int(rng.integers(2, 12))
        requests.append(Request(number, at_s, prompt, 0, output, abort_s))
    return requests


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_200_requests_with_aborts_and_kills_end_and_leave_nothing(tiny, ask, transport):
    """Pages are used again and again, and every attended row is compared."""
    experiment = ask(
        tiny(
            "network.gbps=0.2",
            "cluster.decode_batch=8",
            "cluster.decode_pool_tokens=2000",
            "cluster.lost_s=[[1,1.5],[2,3]]",
        ),
        asked_200(np.random.default_rng(6)),
    )
    Launch(tiny(), Settings(transport=transport)).run(None)  # what stays once, stays
    before = held()
    launch = Launch(experiment, Settings(transport=transport))
    outcome = launch.run(None)
    rows = merge(list(outcome.recorders)).requests
    found = [rows[number].status for number in range(200)]
    assert {name for name, _, _ in launch.lost} == {"prefill1", "prefill2"}
    assert set(found) == {"finished", "aborted", "failed"} and found.count("finished") > 100
    after = held()
    assert after[:3] == before[:3]
    assert after[3] < before[3] + 200  # MiB; records of 200 requests are far less


def prefill(*overrides, cwd):
    """A prefill process by itself, and where it listens."""
    command = [sys.executable, "-m", "smartgen", "prefill", "0", "127.0.0.1:0", *KEYS, *overrides]
    child = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd
    )
    line = child.stderr.readline()
    assert line.startswith("prefill0 listens at "), line + child.stderr.read()
    return child, line.split()[-1]


def decode(place, *overrides, cwd):
    command = [sys.executable, "-m", "smartgen", "backend=emu", f"emu.peers=[{place}]"]
    return subprocess.Popen(
        [*command, *KEYS, *overrides],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def test_processes_started_one_by_one_refuse_what_differs_and_end_with_their_peer(tmp_path):
    served, place = prefill(cwd=tmp_path)
    try:
        other = decode(place, "seed=5", cwd=tmp_path)
        _, told = other.communicate(timeout=60)
        assert other.returncode == 1 and "seed is 5" in told and told.count("\n") == 1
        assert served.poll() is None  # it still waits for one that fits
        right = decode(place, cwd=tmp_path)
        assert right.wait(60) == 0
        right.communicate()
        assert served.wait(20) == 0
    finally:
        served.kill()
        served.communicate()


def connected(place):
    """Whether somebody is connected to that port of this machine."""
    port = f":{int(place.rpartition(':')[2]):04X}"
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(
        remote.endswith(port) and state == "01" for _, _, remote, state, *_ in map(str.split, lines)
    )


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_process_ends_with_its_decoding_process(tmp_path, sent):
    """It is killed, or stalls for longer than the deadline."""
    keys = ("workload.output_tokens=2000", "emu.deadline_s=2")
    served, place = prefill(*keys, cwd=tmp_path)
    decoding = decode(place, *keys, cwd=tmp_path)
    try:
        while not connected(place):
            assert decoding.poll() is None, decoding.stderr.read()
            time.sleep(0.05)
        time.sleep(1)  # if it has begun or not, it must end
        decoding.send_signal(sent)
        assert served.wait(30) == 1
        _, told = served.communicate()
        assert "prefill0: the decoding process is lost" in told and told.count("\n") == 1
    finally:
        for child in (served, decoding):
            child.kill()
            child.communicate()
