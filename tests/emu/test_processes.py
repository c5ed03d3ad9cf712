"""Roles as processes: the same decisions as simulated, and every byte where it belongs."""

import multiprocessing
import os
from pathlib import Path

import pytest

from smartgen.emu.processes.receiver import Receiver
from smartgen.emu.settings import LANES, TRANSPORTS
from smartgen.emu.transports.protocol import Completion, Opcode, PostRefused, Status
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend

SCHEMES = (
    "full",
    "partial",
    "partial_profile",
    "smartgen",
    "smartgen_adaptive",
    "proactive_only",
    "on_demand_only",
    "order_random",
    "hack",
)
MANY_TOKENS = "workload.output_tokens=40"
"""Enough iterations for everything to have been pushed."""


def statuses(outcome):
    return {row.request_id: row.status for row in merge(list(outcome.recorders)).requests.values()}


def decided(outcome, kind):
    """Decisions of a kind by request and layer, values one after the other, in order."""
    found = {}
    for recorder in outcome.recorders:
        for row in recorder.decisions:
            if row.kind == kind:
                key = (row.request_id, row.layer if kind == "push" else 0)
                found.setdefault(key, []).extend(row.values)
    return found


@pytest.mark.parametrize("policy", SCHEMES)
def test_plans_and_pushes_are_those_of_the_simulator(tiny, processes, policy):
    """On a wall clock splits depend on what has landed; what is planned does not."""
    experiment = tiny(f"policy={policy}", "record.decisions=true", MANY_TOKENS)
    emu, sim = processes(experiment), SimBackend(fold=False).run(experiment)
    assert statuses(emu) == dict.fromkeys(range(4), "finished")
    for kind in ("plan", "push"):
        assert decided(emu, kind) == decided(sim, kind)
    pushed, order = decided(emu, "speculate"), decided(sim, "speculate")
    for key, blocks in pushed.items():  # as far as both have come, in the same order
        both = min(len(blocks), len(order[key]))
        assert blocks[:both] == order[key][:both]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("max_recv_sge", [1, 6, 20])
@pytest.mark.parametrize("policy", ["full", "smartgen", "smartgen_adaptive", "smartgen_idle"])
def test_the_pool_ends_up_as_the_prefill_pools_were(
    tiny, processes, transport, max_recv_sge, policy
):
    """By hash, both ends, uneven lengths, three prefill processes."""
    # far more iterations than everything needs, since a busy machine pushes late
    experiment = tiny(f"policy={policy}", "workload.output_tokens=150", "network.gbps=0.1")
    outcome = processes(experiment, transport=transport, max_recv_sge=max_recv_sge)
    assert statuses(outcome) == dict.fromkeys(range(4), "finished")
    assert outcome.emulation["equal_pools"] == 4


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("lane", LANES)
def test_rows_get_into_place_in_every_lane(tiny, processes, transport, lane):
    """Each attended row is compared with what it must be, in the decoding process."""
    experiment = tiny("policy=partial", "network.gbps=0.05")
    outcome = processes(experiment, transport=transport, remote_lane=lane, checksum=True)
    rows = [row for recorder in outcome.recorders for row in recorder.iterations]
    assert statuses(outcome) == dict.fromkeys(range(4), "finished")
    assert all(row.remote_entries > 0 for row in rows)
    assert outcome.emulation["remote_lane"] == lane


def test_prefixes_that_the_decoding_node_holds_are_not_sent(tiny, processes, ask):
    from smartgen.workload import Request

    asked = [
        Request(number, number * 0.3, 120 + number, 0, 4, prefix=(7,), prefix_tokens=64)
        for number in range(3)
    ]
    experiment = ask(tiny("cluster.decode_cache_tokens=400", "policy=full"), asked)
    outcome = processes(experiment)
    rows = merge(list(outcome.recorders)).requests
    assert statuses(outcome) == dict.fromkeys(range(3), "finished")
    assert [rows[i].held_tokens for i in range(3)] == [0, 64, 64]
    assert outcome.emulation["equal_pools"] == 3


def test_fewer_bytes_are_moved_in_the_same_time(tiny, processes):
    """Bytes and bandwidth are scaled down together; results stay in bytes of the model."""
    whole, scaled = (
        merge(list(processes(tiny("policy=full"), byte_scale=scale).recorders)).requests
        for scale in (1, 8)
    )
    assert [r.proactive_bytes for r in whole.values()] == [
        r.proactive_bytes for r in scaled.values()
    ]


def test_nothing_is_left_behind(tiny, processes):
    """Processes, descriptors, sockets and shared memory, before and after."""
    processes(tiny())  # the server that forks children stays, once it is there
    before = _held()
    for transport in TRANSPORTS:
        processes(tiny(), transport=transport)
    assert _held() == before


def _held():
    children = [child.name for child in multiprocessing.active_children()]
    roles = [name for name in children if name.startswith(("prefill", "decode"))]
    shared = sorted(str(path) for path in Path("/dev/shm").iterdir() if "smartgen" in path.name)
    return len(list(Path("/proc/self/fd").iterdir())), shared, roles


def test_links_may_be_the_kernels(tiny, processes):
    """Hosts are network namespaces, and token buckets their NICs."""
    from smartgen.emu.namespaces import why_not

    why = why_not()
    if why is not None:
        pytest.skip(f"no network namespaces: {why}")
    experiment = tiny("network.gbps=0.1", "workload.output_tokens=150")
    outcome = processes(experiment, shaping="tbf")
    assert statuses(outcome) == dict.fromkeys(range(4), "finished")
    assert outcome.emulation["equal_pools"] == 4
    left = [path for path in Path("/run/netns").glob("smartgen-*") if str(os.getpid()) in path.name]
    assert left == []


def test_a_layer_with_a_window_has_nothing_before_it(tiny, processes):
    """Neither sent nor compared, though pages there hold what others have left."""
    experiment = tiny(
        "model.model_type=gemma3_text",
        "+model.sliding_window=50",
        "+model.sliding_window_pattern=2",
        "model.window_only=true",
        "cluster.decode_pool_tokens=320",
        "workload.output_tokens=8",
        "policy=full",
    )
    outcome = processes(experiment)
    assert statuses(outcome) == dict.fromkeys(range(4), "finished")
    assert outcome.emulation["equal_pools"] == 4


def test_a_push_that_comes_just_before_its_sender_is_killed_counts():
    """Its immediate and the flush come in one poll: the receive cannot be posted again."""

    class Killed:
        def receive(self, wr_id, into):
            if self.failed:
                raise PostRefused("failed")

    killed, pushed = Killed(), []
    killed.failed = False
    receiver = Receiver(None, "scatter", 0, pushed.append, pushed.append, pytest.fail)
    receiver.connect(killed, killed)
    killed.failed = True
    receiver.push_completed(Completion(0, Opcode.RECV_RDMA_WITH_IMM, Status.SUCCESS, 0, 7))
    assert pushed == [7]
