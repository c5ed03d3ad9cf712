"""Contract (4): a request that ends early ends alone, and its pages outlive its writers."""

import pytest

from smartgen.emu.virtual import VirtualBackend
from smartgen.metrics.records import merge
from smartgen.nodes.timed_decode import TimedDecodeNode
from smartgen.nodes.timed_prefill import TimedPrefillNode
from smartgen.sim import SimBackend

WORLDS = {"sim": SimBackend(fold=False), "emu": VirtualBackend(memory_gib=1.0)}

SIX = (
    "workload.requests=6",
    "workload.prompt_tokens=[180,250,301,97,200,333]",
    "workload.output_tokens=14",
    "cluster.prefill_nodes=6",
    "network.gbps=0.01",
    "record.transfers=true",
)
"""At this rate: prefill until about 0.05 s, the plan in flight until about 0.3 s, then fetches and
speculative pushes beside each other, and nothing remote after about 0.8 s."""


@pytest.fixture(params=list(WORLDS))
def world(request):
    return WORLDS[request.param]


@pytest.fixture
def watch(monkeypatch):
    """Notes every release of a slot and every write that was still on its way to it."""
    log = {"released": [], "open": {}}
    post, land, release = TimedPrefillNode._post, TimedDecodeNode.land, TimedDecodeNode.release

    def posting(node, write, *rest, **named):
        for slot in write.parcel.slots:
            log["open"][slot] = log["open"].get(slot, 0) + 1
        return post(node, write, *rest, **named)

    def landing(node, posted, first, stop):
        land(node, posted, first, stop)
        if posted.landed:
            for slot in posted.write.parcel.slots:
                log["open"][slot] -= 1

    def releasing(node, slot):
        log["released"].append((slot, log["open"].get(slot, 0), node.runtime.now))
        release(node, slot)

    monkeypatch.setattr(TimedPrefillNode, "_post", posting)
    monkeypatch.setattr(TimedDecodeNode, "land", landing)
    monkeypatch.setattr(TimedDecodeNode, "release", releasing)
    return log


def statuses(outcome):
    rows = merge(list(outcome.recorders)).requests.values()
    return {row.request_id: row.status for row in rows}


def tokens(outcome):
    made = {}
    for row in merge(list(outcome.recorders)).tokens:
        made[row.request_id] = made.get(row.request_id, 0) + 1
    return made


PHASES = {
    "prefill": ("smartgen", 0.01),
    "plan_in_flight": ("smartgen", 0.12),
    "waiting_for_its_plan": ("partial", 0.12),
    "on_demand": ("partial_parallel", 0.6),
    "speculative": ("smartgen", 0.45),
}


def phase_of(outcome, request_id, at_s):
    """What was going on for the request at that time, read from the run without the abort."""
    merged = merge(list(outcome.recorders))
    row = merged.requests[request_id]
    moving = {
        transfer.purpose
        for transfer in merged.transfers
        if transfer.posted_s < at_s < transfer.end_s
    }
    return row, moving


@pytest.mark.parametrize("phase", PHASES)
def test_the_phases_are_what_they_are_called(tiny, phase):
    policy, at_s = PHASES[phase]
    row, moving = phase_of(SimBackend().run(tiny(*SIX, f"policy={policy}")), 2, at_s)
    if phase == "prefill":
        assert at_s < row.first_token_s
    elif phase in ("plan_in_flight", "waiting_for_its_plan"):
        assert row.first_token_s < at_s < row.plan_delivered_s and "proactive" in moving
    else:
        assert row.plan_delivered_s < at_s < row.finish_s and phase in moving


@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_ends_one_request_of_six_and_the_others_tokens_come(tiny, world, watch, phase):
    policy, at_s = PHASES[phase]
    outcome = world.run(tiny(*SIX, f"policy={policy}", f"workload.abort_s=[[2,{at_s}]]"))
    assert statuses(outcome) == {i: "aborted" if i == 2 else "finished" for i in range(6)}
    made = tokens(outcome)
    assert all(made[i] == 13 for i in range(6) if i != 2) and made.get(2, 0) < 13
    assert sorted(slot for slot, _, _ in watch["released"]) == list(range(6))
    assert all(still_open == 0 for _, still_open, _ in watch["released"])


@pytest.mark.parametrize("phase", PHASES)
def test_aborts_take_the_same_course_in_both_worlds(tiny, phase):
    policy, at_s = PHASES[phase]
    experiment = tiny(
        *SIX, f"policy={policy}", f"workload.abort_s=[[2,{at_s}]]", "record.decisions=true"
    )
    sim, emu = (world.run(experiment) for world in WORLDS.values())
    assert emu.makespan_s == pytest.approx(sim.makespan_s, rel=1e-9)
    assert [r.decisions for r in emu.recorders] == [r.decisions for r in sim.recorders]


def test_a_waiting_request_gets_the_pages_only_once_their_writers_have_drained(tiny, world, watch):
    """Seven requests in a pool for six: the last is admitted into the aborted one's pages."""
    lengths = [180, 250, 301, 97, 200, 333, 301]
    overrides = [
        *SIX,
        "workload.requests=7",
        f"workload.prompt_tokens={lengths}",
        f"cluster.decode_pool_tokens={sum(lengths[:6]) + 6 * 14}",
        "workload.abort_s=[[2,0.12]]",
    ]
    outcome = world.run(tiny(*overrides))
    assert statuses(outcome) == {i: "aborted" if i == 2 else "finished" for i in range(7)}
    (_, still_open, released_s) = next(row for row in watch["released"] if row[0] == 2)
    assert still_open == 0
    merged = merge(list(outcome.recorders))
    drained_s = max(t.end_s for t in merged.transfers if t.request_id == 2)
    assert drained_s <= released_s <= merged.requests[6].prefill_start_s
    assert released_s > 0.12  # writes were in flight when the client left


@pytest.mark.parametrize("policy", ["smartgen", "partial", "partial_parallel", "full"])
@pytest.mark.parametrize("at_s", [0.01, 0.12, 0.45, 0.7])
def test_a_lost_prefill_node_takes_only_its_own_requests_with_it(tiny, world, policy, at_s):
    experiment = tiny(*SIX, f"policy={policy}", f"cluster.lost_s=[[1,{at_s}]]")
    whole = merge(list(SimBackend().run(tiny(*SIX, f"policy={policy}")).recorders)).requests[1]
    outcome = world.run(experiment)
    lost = "finished" if whole.finish_s < at_s else "failed"
    assert statuses(outcome) == {i: lost if i == 1 else "finished" for i in range(6)}


@pytest.mark.parametrize("at_s", [0.01, 0.12, 0.45, 0.7])
def test_a_loss_takes_the_same_course_in_both_worlds(tiny, at_s):
    experiment = tiny(*SIX, f"cluster.lost_s=[[1,{at_s}]]", "record.decisions=true")
    sim, emu = (world.run(experiment) for world in WORLDS.values())
    assert emu.makespan_s == pytest.approx(sim.makespan_s, rel=1e-9)
    assert statuses(emu) == statuses(sim)
    assert [r.decisions for r in emu.recorders] == [r.decisions for r in sim.recorders]


def test_when_every_prefill_node_is_lost_the_run_ends_and_says_so(tiny, world):
    losses = ",".join(f"[{node},0.1]" for node in range(6))
    outcome = world.run(tiny(*SIX, f"cluster.lost_s=[{losses}]"))
    assert set(statuses(outcome).values()) == {"failed"}


def test_a_client_that_leaves_after_its_last_token_changes_nothing(tiny, world):
    outcome = world.run(tiny(*SIX, "workload.abort_s=[[2,99]]"))
    assert set(statuses(outcome).values()) == {"finished"}


def test_a_push_that_fails_fails_its_request_and_nothing_else(tiny, world, monkeypatch):
    from smartgen.errors import RequestFailed

    push = TimedPrefillNode.push

    def failing(node, request_id, blocks, layer):
        if request_id == 3 and layer == 2:
            raise RequestFailed("the post was refused")
        return push(node, request_id, blocks, layer)

    monkeypatch.setattr(TimedPrefillNode, "push", failing)
    outcome = world.run(tiny(*SIX))
    assert statuses(outcome) == {i: "failed" if i == 3 else "finished" for i in range(6)}


def test_a_fault_of_the_program_fails_the_run(tiny, world, monkeypatch):
    def broken(node, request_id, blocks, layer):
        raise KeyError("a bug")

    monkeypatch.setattr(TimedPrefillNode, "push", broken)
    with pytest.raises(KeyError, match="a bug"):
        world.run(tiny(*SIX))


@pytest.mark.parametrize(
    "overrides",
    [
        ("cluster.lost_s=[[0,0]]",),
        ("workload.abort_s=[[0,0],[1,0],[2,0],[3,0],[4,0],[5,0]]", "network.rtt_us=200"),
        ("workload.abort_s=[[1,0.3],[4,0.3]]",),
        ("workload.abort_s=[[1,0.3]]", "cluster.lost_s=[[1,0.3],[2,0.3]]"),
        ("workload.abort_s=[[1,0.3]]", "cluster.lost_s=[[0,0.3]]", "cluster.prefill_nodes=2"),
        ("policy=hack", "workload.abort_s=[[1,0.02083845846422339]]"),  # a layer's very end
        ("cluster.prefill_nodes=1", "network.rtt_us=50000", "policy=partial"),
        ("cluster.prefill_nodes=1", "workload.abort_s=[[0,0.01],[3,0.01]]"),
    ],
    ids=str,
)
def test_what_happens_at_one_instant_ends_alike_in_both_worlds(tiny, overrides):
    experiment = tiny(*SIX, *overrides, "record.decisions=true")
    sim, emu = (world.run(experiment) for world in WORLDS.values())
    assert emu.makespan_s == pytest.approx(sim.makespan_s, rel=1e-9)
    assert statuses(emu) == statuses(sim)
    assert tokens(emu) == tokens(sim)
    assert [r.decisions for r in emu.recorders] == [r.decisions for r in sim.recorders]


def test_a_late_abort_or_loss_does_not_keep_a_run_going(tiny, world):
    whole = world.run(tiny(*SIX))
    late = world.run(tiny(*SIX, "workload.abort_s=[[2,99]]", "cluster.lost_s=[[2,99]]"))
    assert late.makespan_s == whole.makespan_s


def test_a_request_that_is_here_whole_outlives_its_prefill_node(tiny, world):
    whole = merge(list(world.run(tiny(*SIX, "policy=full")).recorders)).requests
    delivered_s = max(row.plan_delivered_s for row in whole.values())
    finish_s = min(row.finish_s for row in whole.values())
    at_s = (delivered_s + finish_s) / 2
    assert delivered_s < at_s < finish_s
    outcome = world.run(tiny(*SIX, "policy=full", f"cluster.lost_s=[[1,{at_s}]]"))
    assert set(statuses(outcome).values()) == {"finished"}


def test_a_prefill_role_that_loses_its_decoding_node_stops_and_gives_everything_back(tiny):
    from smartgen.engine.messages import PeerLost
    from smartgen.errors import SmartGenError
    from smartgen.nodes.world import World
    from smartgen.sim.nodes import SimDecodeNode, SimPrefillNode
    from smartgen.sim.runtime import SimRuntime

    runtime, made = SimRuntime(), []

    def make(*arguments):
        made.append(SimPrefillNode(*arguments))
        return made[-1]

    world = World(tiny(*SIX), runtime, make, SimDecodeNode)

    def lose(_):
        assert made[2]._pages  # it is prefilling
        world._ends[2][0][1].deliver(PeerLost("decode0"))

    runtime.call_last(0.01, lose)
    with pytest.raises(SmartGenError, match="nothing can happen any more"):
        runtime.run(world.run())  # nobody tells the decoding node, so it waits
    assert not made[2]._pages
