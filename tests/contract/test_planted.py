"""A contract that cannot fail proves nothing: plant a fault in one world and see it found."""

from dataclasses import replace

import pytest

import smartgen.engine.idleness as idleness
import smartgen.engine.prefill_role as prefill_role
import smartgen.nodes.channel as channel
from smartgen.cost.shaper import Shaper
from smartgen.emu.nodes import EmuDecodeNode, EmuPrefillNode
from smartgen.emu.virtual import VirtualBackend
from smartgen.errors import SmartGenError
from smartgen.kv import LOCAL
from smartgen.metrics.records import Purpose
from smartgen.nodes.channel import LocalChannel, channel_pair
from smartgen.nodes.observer import Observer
from smartgen.nodes.timed_prefill import TimedPrefillNode
from smartgen.nodes.timed_step import TimedStep
from smartgen.nodes.timing import StepTimer
from smartgen.policy import Plan, observed_quotas
from smartgen.policy.observation import TICK_S
from smartgen.sim import SimBackend
from smartgen.sim.runtime import SimRuntime


def decisions_and_times(outcome):
    ends = [row.end_s for recorder in outcome.recorders for row in recorder.iterations]
    return [recorder.decisions for recorder in outcome.recorders], ends


@pytest.fixture
def worlds_agree(tiny):
    """Runs the simulator as it is, then the emulator with whatever a test plants."""
    experiment = tiny("network.gbps=0.01", "record.decisions=true")
    decisions, ends = decisions_and_times(SimBackend(fold=False).run(experiment))

    def compare():
        emulated, emulated_ends = decisions_and_times(
            VirtualBackend(memory_gib=1.0).run(experiment)
        )
        assert emulated == decisions
        assert emulated_ends == pytest.approx(ends, rel=1e-9)

    compare()  # nothing planted: they agree
    return compare


def test_a_push_out_of_order_is_found(worlds_agree, monkeypatch):
    speculate = prefill_role.speculate

    def reordered(*arguments):
        return speculate(*arguments)[::-1]

    monkeypatch.setattr(prefill_role, "speculate", reordered)
    with pytest.raises(AssertionError):
        worlds_agree()


def test_a_planned_push_out_of_order_is_found(worlds_agree, monkeypatch):
    by_layer = Plan.by_layer.func
    reordered = property(lambda plan: tuple(blocks[::-1] for blocks in by_layer(plan)))
    monkeypatch.setattr(Plan, "by_layer", reordered)
    with pytest.raises(AssertionError):
        worlds_agree()


def test_a_planned_block_left_out_is_found(worlds_agree, monkeypatch):
    push = TimedPrefillNode.push

    def early(node, request_id, blocks, layer):
        return push(node, request_id, blocks[:-1] if layer == 1 else blocks, layer)

    monkeypatch.setattr(TimedPrefillNode, "push", early)
    with pytest.raises((AssertionError, RuntimeError)):
        worlds_agree()


def test_a_mask_set_before_its_data_is_found(worlds_agree, monkeypatch):
    """The mask says local, the bytes are not there: the attended rows give it away."""
    post = TimedPrefillNode._post

    def with_mask_first(node, write, *rest, **named):
        decode_node = node._landed_at[0].args[0].__self__
        if write.parcel.purpose == Purpose.SPECULATIVE and isinstance(decode_node, EmuDecodeNode):
            slot = decode_node.slots[write.parcel.slots[0]]
            bounds = node._geometry.bounds(slot.request.prompt_tokens)
            for layer, first, stop in decode_node.ranges(bounds, write.blocks):
                slot.status[layer, first:stop] = LOCAL
        return post(node, write, *rest, **named)

    monkeypatch.setattr(TimedPrefillNode, "_post", with_mask_first)
    with pytest.raises(RuntimeError, match="attended rows hold wrong bytes"):
        worlds_agree()


@pytest.mark.parametrize("purpose", [Purpose.PROACTIVE, Purpose.SPECULATIVE, Purpose.ON_DEMAND])
def test_a_delivery_counted_twice_is_found(worlds_agree, monkeypatch, purpose):
    land, twice = Shaper._land, []

    def landing(shaper, posting, pieces):
        land(shaper, posting, pieces)
        if posting.write.parcel.purpose == purpose and posting.landed and not twice:
            twice.append(posting)
            posting.land(posting, 0, pieces)

    monkeypatch.setattr(Shaper, "_land", landing)
    with pytest.raises((RuntimeError, KeyError)):
        worlds_agree()
    assert twice


def test_a_delivery_that_is_lost_is_found(worlds_agree, monkeypatch):
    """A block that never lands stays remote; nothing waits for ever, but the worlds differ."""
    land, lost = Shaper._land, []

    def landing(shaper, posting, pieces):
        if posting.write.parcel.purpose == Purpose.SPECULATIVE and not lost:
            lost.append(posting)
            shaper._postings.pop(posting.flow, None)
            posting.landed_pieces = posting.flow.pieces
            return
        land(shaper, posting, pieces)

    monkeypatch.setattr(Shaper, "_land", landing)
    with pytest.raises((AssertionError, SmartGenError)):
        worlds_agree()


def test_a_row_from_the_wrong_head_is_found(worlds_agree, monkeypatch):
    rows = EmuDecodeNode.store_rows

    def permuted(node, write):
        payload = [entries[::-1].copy() for entries in write.payload]
        rows(node, type(write)(write.parcel, write.peer, write.blocks, write.fetch_id, payload))

    monkeypatch.setattr(EmuDecodeNode, "store_rows", permuted)
    with pytest.raises(RuntimeError, match="attended rows hold wrong bytes"):
        worlds_agree()


def test_metadata_that_arrive_wrong_are_found(worlds_agree, monkeypatch):
    payload_of_blocks = EmuPrefillNode.payload_of_blocks

    def damaged(node, pages, blocks, layer):
        payload = payload_of_blocks(node, pages, blocks, layer)
        metadata = payload.metadata.copy()
        metadata[-1:, :1] += 1
        return replace(payload, metadata=metadata)

    monkeypatch.setattr(EmuPrefillNode, "payload_of_blocks", damaged)
    with pytest.raises(RuntimeError, match="layer 0: wrong metadata arrived of 1 of"):
        worlds_agree()


def test_an_act_that_takes_a_little_longer_is_found(worlds_agree, monkeypatch):
    head = StepTimer.head
    monkeypatch.setattr(StepTimer, "head", lambda timer, now: head(timer, now) * 1.001)
    with pytest.raises(AssertionError):
        worlds_agree()


# -- observations


@pytest.fixture
def observing_worlds_agree(tiny):
    """The same as worlds_agree, for a scheme that decides by what decoding nodes observe."""
    experiment = tiny("network.gbps=0.01", "policy=smartgen_adaptive", "record.decisions=true")
    decisions, _ = decisions_and_times(SimBackend(fold=False).run(experiment))

    def compare():
        assert decisions_and_times(VirtualBackend(memory_gib=1.0).run(experiment))[0] == decisions

    compare()
    return compare


@pytest.mark.parametrize(
    "alter",
    [
        lambda seen: replace(seen, layer_s=(seen.layer_s[0] + TICK_S, *seen.layer_s[1:])),
        lambda seen: replace(seen, block_s=1.1 * seen.block_s),
        lambda seen: replace(seen, blocks_left=(seen.blocks_left[0] + 1, *seen.blocks_left[1:])),
    ],
    ids=["a layer that took a tick longer", "slower blocks", "a block that had landed"],
)
def test_an_observation_that_is_altered_is_found(observing_worlds_agree, monkeypatch, alter):
    observe = TimedStep.observe
    monkeypatch.setattr(TimedStep, "observe", lambda *arguments: alter(observe(*arguments)))
    with pytest.raises(AssertionError):
        observing_worlds_agree()


def test_a_quota_that_does_not_follow_from_its_observation_is_found(
    observing_worlds_agree, monkeypatch
):
    def greedy(*arguments):
        return tuple(tuple(quota + 1 for quota in told) for told in observed_quotas(*arguments))

    monkeypatch.setattr(idleness, "observed_quotas", greedy)
    with pytest.raises(AssertionError):
        observing_worlds_agree()


def test_a_block_that_is_seen_to_land_twice_is_found(observing_worlds_agree, monkeypatch):
    pushed = Observer.pushed
    monkeypatch.setattr(
        Observer, "pushed", lambda observer, blocks, flow: pushed(observer, 2 * blocks, flow)
    )
    with pytest.raises(AssertionError):
        observing_worlds_agree()


# -- messages


@pytest.fixture
def crossing(tiny, monkeypatch):
    """Runs a world and returns what was sent and what was received, as the roles held it."""
    sent, received = [], []
    send, listen = LocalChannel.send, LocalChannel.listen

    def sending(channel, message):
        sent.append(message)
        send(channel, message)

    def listening(channel, hear):
        def hearing(message):
            received.append(message)
            hear(message)

        listen(channel, hearing)

    monkeypatch.setattr(LocalChannel, "send", sending)
    monkeypatch.setattr(LocalChannel, "listen", listening)

    def run(backend):
        backend.run(tiny("network.gbps=0.01", "cluster.prefill_nodes=1", "network.rtt_us=500"))
        return sent, received

    return run


def assert_nothing_crosses_by_reference(sent, received):
    assert len(received) > 60 and {type(m).__name__ for m in received} >= {
        "Assign",
        "Handover",
        "Idle",
        "Fetch",
        "Release",
        "Drained",
    }
    assert all(message in sent for message in received[:50])  # by value they do
    assert not {id(message) for message in sent} & {id(message) for message in received}


BACKENDS = [SimBackend(fold=False), VirtualBackend(memory_gib=1.0)]


@pytest.mark.parametrize("backend", BACKENDS, ids=["sim", "emu"])
def test_no_message_crosses_between_the_roles_by_reference(crossing, backend):
    assert_nothing_crosses_by_reference(*crossing(backend))


@pytest.mark.parametrize("backend", BACKENDS, ids=["sim", "emu"])
def test_messages_passed_by_reference_are_found(crossing, backend, monkeypatch):
    monkeypatch.setattr(channel, "encode", lambda message: message)
    monkeypatch.setattr(channel, "decode", lambda message: message)
    with pytest.raises(AssertionError):
        assert_nothing_crosses_by_reference(*crossing(backend))


def test_what_is_not_serialisable_cannot_cross():
    left, _ = channel_pair(SimRuntime(), 0.0)
    with pytest.raises(TypeError):
        left.send(object())
