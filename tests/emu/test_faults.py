"""Faults of processes, peers and words: each ends what it must, nothing else, and leaves nothing.

Every attended row is compared in the decoding process, so a run that ends has no wrong byte.
"""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from smartgen.emu.backend import EmuBackend
from smartgen.emu.processes import launcher
from smartgen.emu.processes.decode import DecodeProcess
from smartgen.emu.processes.launcher import Launch
from smartgen.emu.settings import TRANSPORTS, Settings
from smartgen.errors import SmartGenError
from smartgen.metrics.records import merge

SIX = (
    "workload.requests=6",
    "workload.prompt_tokens=[180,250,301,97,200,333]",
    "workload.output_tokens=14",
    "network.gbps=0.01",
)
"""At this rate: prefill until about 0.05 s, the plan in flight until about 0.3 s, then fetches and
speculative pushes beside each other, and nothing remote after about 0.8 s."""
SIX_NODES = (*SIX, "cluster.prefill_nodes=6")
PHASES = {
    "prefill": ("smartgen", 0.01),
    "plan_in_flight": ("smartgen", 0.12),
    "waiting_for_its_plan": ("partial", 0.12),
    "on_demand": ("partial_parallel", 0.6),
    "speculative": ("smartgen", 0.45),
}

by_both = pytest.mark.parametrize("transport", TRANSPORTS)


def statuses(outcome):
    return {row.request_id: row.status for row in merge(list(outcome.recorders)).requests.values()}


def tokens(outcome):
    made = {}
    for row in merge(list(outcome.recorders)).tokens:
        made[row.request_id] = made.get(row.request_id, 0) + 1
    return made


def all_but(number, status, count=6):
    return {i: status if i == number else "finished" for i in range(count)}


def watched(experiment, act, **told):
    """Run in processes; act(launch) is done in a thread once the run has begun."""
    launch = Launch(experiment, Settings(**told))
    begun = threading.Event()

    def after():
        assert begun.wait(60)
        act(launch)

    note, thread = launch._note, threading.Thread(target=after)

    def noting(kind, words):
        note(kind, words)
        if kind == "started":
            begun.set()

    launch._note = noting
    thread.start()
    try:
        return launch, launch.run(None)
    finally:
        begun.set()
        thread.join()


# -- aborts


@by_both
@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_ends_one_request_of_six(tiny, processes, transport, phase):
    policy, at_s = PHASES[phase]
    experiment = tiny(*SIX_NODES, f"policy={policy}", f"workload.abort_s=[[2,{at_s}]]")
    outcome = processes(experiment, transport=transport)
    assert statuses(outcome) == all_but(2, "aborted")
    made = tokens(outcome)
    assert all(made[i] == 13 for i in range(6) if i != 2) and made.get(2, 0) < 13
    rows = merge(list(outcome.recorders)).requests
    # its prefill node has let go of it before its pages are given back
    assert rows[2].prefill_released_s is None or rows[2].released_s >= rows[2].prefill_released_s


@by_both
def test_pages_of_an_aborted_request_go_to_the_next_once_they_have_drained(
    tiny, processes, transport
):
    experiment = tiny(
        *SIX,
        "cluster.decode_pool_tokens=700",
        "cluster.decode_batch=2",
        "workload.abort_s=[[0,0.12],[2,0.5]]",
    )
    outcome = processes(experiment, transport=transport)
    found = statuses(outcome)
    assert found.pop(0) == "aborted" and found.pop(2) in ("aborted", "finished")
    assert set(found.values()) == {"finished"}


# -- processes that are killed or stalled


@by_both
def test_a_killed_prefill_process_takes_only_its_own_requests_with_it(tiny, transport):
    experiment = tiny(*SIX, "cluster.lost_s=[[1,0.12]]")
    launch = Launch(experiment, Settings(transport=transport))
    outcome = launch.run(None)
    assert statuses(outcome) == {i: "failed" if i % 3 == 1 else "finished" for i in range(6)}
    [(name, reason, lost_s)] = launch.lost
    assert name == "prefill1" and ("gone" in reason or "broke" in reason or "queue pair" in reason)
    assert lost_s - launch.killed_s["prefill1"] < Settings().deadline_s
    assert list(outcome.emulation["failures"]) == ["prefill1"]


@by_both
def test_whole_requests_outlive_their_prefill_process(tiny, transport):
    experiment = tiny(
        *SIX, "network.gbps=1", "policy=full", "workload.output_tokens=60", "cluster.lost_s=[[1,1]]"
    )
    outcome = Launch(experiment, Settings(transport=transport)).run(None)
    assert set(statuses(outcome).values()) == {"finished"}


@by_both
def test_all_prefill_processes_may_die(tiny, transport):
    experiment = tiny(*SIX, "cluster.lost_s=[[0,0.1],[1,0.12],[2,0.14]]")
    outcome = Launch(experiment, Settings(transport=transport)).run(None)
    assert set(statuses(outcome).values()) == {"failed"}


def test_nothing_is_sent_to_a_prefill_process_that_dies_before_the_run(tiny, threads, monkeypatch):
    """Found: the word of it came before anybody listened, and its requests waited for ever."""
    serve = DecodeProcess._serve

    async def losing(self):
        self._peers[1].connection.fail("planted")
        await serve(self)

    monkeypatch.setattr(DecodeProcess, "_serve", losing)
    outcome = threads.run(tiny(*SIX))
    assert threads.lost == [(1, "planted")]
    assert set(statuses(outcome).values()) == {"finished"}


@by_both
def test_the_decoding_process_that_dies_is_named_with_its_signal(tiny, transport):
    with pytest.raises(SmartGenError, match=r"^decode0 has died \(signal 9, SIGKILL\)$"):
        watched(tiny(*SIX), lambda launch: launch.kill("decode0"), transport=transport)


@by_both
def test_a_stalled_prefill_process_is_lost_after_the_deadline(tiny, transport):
    def stall(launch):
        pid = launch.pid("prefill1")
        os.kill(pid, signal.SIGSTOP)
        while not launch.lost:
            time.sleep(0.01)
        os.kill(pid, signal.SIGCONT)  # what it still writes must not show

    # enough iterations for it to go on while others decode
    experiment = tiny(*SIX, "workload.output_tokens=60")
    launch, outcome = watched(experiment, stall, transport=transport, deadline_s=0.5)
    assert statuses(outcome) == {i: "failed" if i % 3 == 1 else "finished" for i in range(6)}
    assert launch.lost[0][0] == "prefill1" and "emu.deadline_s" in launch.lost[0][1]


def test_pages_that_a_stalled_process_may_write_are_not_used_again(tiny):
    """What then does not fit into the pool any more fails instead of waiting for ever."""

    def stall(launch):
        os.kill(launch.pid("prefill1"), signal.SIGSTOP)

    experiment = tiny(*SIX, "cluster.decode_pool_tokens=540", "policy=full", "network.gbps=0.002")
    launch, outcome = watched(experiment, stall, transport="shm", deadline_s=0.5)
    found = statuses(outcome)
    assert found[1] == found[4] == "failed" and launch.lost[0][0] == "prefill1"
    assert found[5] == "failed"  # 347 tokens, of which 264 are out of use
    assert found[0] == found[3] == "finished"


def test_a_stalled_decoding_process_ends_the_run(tiny, monkeypatch):
    monkeypatch.setattr(launcher, "_PAUSE_S", 0.5)

    def stall(launch):
        os.kill(launch.pid("decode0"), signal.SIGSTOP)

    with pytest.raises(SmartGenError, match=r"^decode0 has said nothing for .* s, though it would"):
        watched(tiny(*SIX), stall, deadline_s=0.5)


# -- leases and room


def test_a_lease_that_runs_out_fails_its_request(tiny, processes):
    experiment = tiny(*SIX, "cluster.prefill_lease_s=0.02", "network.gbps=0.002")
    outcome = processes(experiment)
    found = statuses(outcome)
    assert set(found.values()) <= {"failed", "finished"} and "failed" in found.values()
    reasons = outcome.emulation["failures"]
    assert all("had no word of it for 0.02 s" in reason for reason in reasons.values())
    assert len(reasons) == list(found.values()).count("failed")


@by_both
def test_requests_wait_for_room_and_all_finish(tiny, processes, transport):
    experiment = tiny(*SIX, "cluster.decode_pool_tokens=360", "network.gbps=0.1")
    outcome = processes(experiment, transport=transport)
    assert set(statuses(outcome).values()) == {"finished"}


def test_nothing_is_left_of_a_run_that_has_failed(tiny):
    """Processes and descriptors of this process, before and after."""
    backend = EmuBackend(settings=Settings())
    backend.run(tiny())
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(SmartGenError):
        watched(tiny(*SIX), lambda launch: launch.kill("decode0"))
    children = [child.name for child in multiprocessing.active_children()]
    assert not [name for name in children if name.startswith(("prefill", "decode"))]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
