"""Faults planted in words, postings and bytes, where roles are threads of this process.

Where nodes are six, request i is served by prefill process i, so that a fault of process 2 is a
fault of request 2. Every attended row is compared, so a run that ends has no wrong byte.
"""

import struct
from dataclasses import replace

import pytest

from smartgen.emu.processes.connection import Connection
from smartgen.emu.processes.decode import DecodeProcess
from smartgen.emu.processes.driver import Driver
from smartgen.emu.processes.prefill import PrefillProcess
from smartgen.emu.processes.prefill_node import ProcessPrefillNode
from smartgen.emu.processes.sender import Sender
from smartgen.emu.processes.words import Grant, Landed, decode
from smartgen.emu.settings import TRANSPORTS
from smartgen.emu.transports.protocol import PostRefused
from smartgen.engine import DecodeRole
from smartgen.engine.messages import Drained, Failed, Handover
from smartgen.metrics.records import merge

SIX = (
    "workload.requests=6",
    "workload.prompt_tokens=[180,250,301,97,200,333]",
    "workload.output_tokens=10",
    "network.gbps=0.05",
    "cluster.prefill_nodes=6",
)
by_both = pytest.mark.parametrize("transport", TRANSPORTS)


def statuses(outcome):
    return {row.request_id: row.status for row in merge(list(outcome.recorders)).requests.values()}


ONLY_2 = {i: "failed" if i == 2 else "finished" for i in range(6)}
ALL = dict.fromkeys(range(6), "finished")


# -- postings that are refused, queue pairs that fail


@by_both
def test_a_push_that_is_refused_fails_its_request(tiny, threads, monkeypatch, transport):
    writes = Driver.writes

    def refusing(driver, *told):
        if driver in threads.prefill[2]._drivers:
            raise PostRefused("planted")
        writes(driver, *told)

    monkeypatch.setattr(Driver, "writes", refusing)
    outcome = threads.run(tiny(*SIX), transport=transport)
    assert statuses(outcome) == ONLY_2 and not threads.faults
    told = "its push was refused by the queue pair"
    assert outcome.emulation["failures"] == {"request 2": told}


@by_both
def test_of_a_push_in_parts_nothing_is_posted_once_one_is_refused(
    tiny, threads, monkeypatch, transport
):
    """Found: the parts after it were, though the request's pages had been given back by then."""
    monkeypatch.setattr(Driver, "most_writes", 3)
    writes, posted = Driver.writes, []

    def refusing(driver, wr_id, *told):
        if driver in threads.prefill[2]._drivers and wr_id == 2:
            posted.append(told)
            if len(posted) >= 2:
                raise PostRefused("planted")
        writes(driver, wr_id, *told)

    monkeypatch.setattr(Driver, "writes", refusing)
    outcome = threads.run(tiny(*SIX, "policy=full"), transport=transport)
    assert statuses(outcome) == ONLY_2 and not threads.faults
    assert all(told[2] is posted[1][2] for told in posted[2:])  # the same part, tried again
    assert not any(told[-1] is not None for told in posted)  # the last part has the immediate


@by_both
def test_a_reply_that_is_refused_ends_the_connection(tiny, threads, monkeypatch, transport):
    send = Driver.send

    def refusing(driver, *told):
        if driver in threads.prefill[2]._drivers:
            raise PostRefused("planted")
        send(driver, *told)

    monkeypatch.setattr(Driver, "send", refusing)
    outcome = threads.run(tiny(*SIX, "policy=partial"), transport=transport)
    assert statuses(outcome) == ONLY_2
    assert [number for number, _ in threads.lost] == [2]


@by_both
def test_a_receive_that_is_refused_gives_the_peer_up(tiny, threads, monkeypatch, transport):
    receive, processes = Driver.receive, []
    serve = DecodeProcess._serve

    async def noting(process):
        processes.append(process)
        await serve(process)

    def refusing(driver, wr_id, into):
        if processes and into is not None and driver in processes[0]._peers[2].drivers:
            raise PostRefused("planted")
        receive(driver, wr_id, into)

    monkeypatch.setattr(DecodeProcess, "_serve", noting)
    monkeypatch.setattr(Driver, "receive", refusing)
    outcome = threads.run(tiny(*SIX, "policy=partial"), transport=transport)
    assert statuses(outcome) == ONLY_2
    assert threads.lost == [(2, "a receive for its reply was refused: planted")]


@by_both
def test_a_queue_pair_that_fails_is_a_peer_that_is_lost(tiny, threads, monkeypatch, transport):
    granted = Sender.granted

    def failing(sender, flow_id):
        if sender is threads.prefill[2]._sender and flow_id == 3:
            sender._pushes._queue_pair.fail()
        granted(sender, flow_id)

    monkeypatch.setattr(Sender, "granted", failing)
    outcome = threads.run(tiny(*SIX), transport=transport)
    assert statuses(outcome) == ONLY_2
    assert [number for number, _ in threads.lost] == [2]


@by_both
@pytest.mark.parametrize("beyond", [1 << 40, -(1 << 20)])
def test_a_write_out_of_bounds_writes_nothing_and_ends_its_writer(
    tiny, threads, monkeypatch, transport, beyond
):
    chain = ProcessPrefillNode._chain

    def wild(node, *told):
        made = chain(node, *told)
        return replace(made, targets=made.targets + beyond) if node.name == "prefill2" else made

    monkeypatch.setattr(ProcessPrefillNode, "_chain", wild)
    outcome = threads.run(tiny(*SIX, "policy=full"), transport=transport)
    assert statuses(outcome) == ONLY_2
    assert [number for number, _ in threads.lost] == [2]


# -- bytes that change on the way


@pytest.fixture
def flipped(monkeypatch):
    """One byte of request 2 changes between its checksum and its WRITE."""
    chain = ProcessPrefillNode._chain

    def flipping(node, assign, layers, firsts, stops, layer):
        if assign.request_id == 2 and layer == 1:
            node._entries[2][1, firsts[0], 0, 0] ^= 1
        return chain(node, assign, layers, firsts, stops, layer)

    monkeypatch.setattr(ProcessPrefillNode, "_chain", flipping)


@by_both
@pytest.mark.parametrize("policy", ["full", "partial_parallel"])
def test_a_checksum_fails_the_request_whose_bytes_have_changed(
    tiny, threads, flipped, transport, policy
):
    experiment = tiny(*SIX, f"policy={policy}")
    outcome = threads.run(experiment, transport=transport, checksum=True)
    assert statuses(outcome) == ONLY_2 and not threads.faults and not threads.lost
    [(what, why)] = outcome.emulation["failures"].items()
    assert what == "request 2" and "is not what its checksum says" in why


def test_without_checksums_the_rows_tell(tiny, threads, flipped):
    with pytest.raises(RuntimeError, match=r"request 2, layer 1, head 0: 1 of .* wrong bytes"):
        threads.run(tiny(*SIX, "policy=full"))


# -- words


def longer(data):
    return struct.pack(">I", 1 << 30) + data[4:]


WORDS = {
    "lost": (lambda data: b"", "1 of its messages are lost"),
    "garbled": (lambda data: data[:4] + bytes([0xC1]) + data[5:], "it sent no frame"),
    "too long": (longer, "it sent a frame of 1073741824 bytes, which is none of ours"),
}


def planted(monkeypatch, at, change, towards):
    """Have the frame of that number change on one connection of prefill process 2."""
    write = Connection.write

    def changing(connection, data):
        hit = decode(data[4:]).number == at and towards(connection)
        write(connection, change(data) if hit else data)

    monkeypatch.setattr(Connection, "write", changing)


@pytest.mark.parametrize("fault", WORDS)
@pytest.mark.parametrize("at", [9, 11])
def test_a_word_that_does_not_come_as_it_was_sent_ends_its_connection(
    tiny, threads, monkeypatch, fault, at
):
    change, why = WORDS[fault]
    planted(monkeypatch, at, change, lambda c: c is threads.prefill[2]._peer)
    outcome = threads.run(tiny(*SIX), deadline_s=1.0)
    assert statuses(outcome) == ONLY_2
    [(number, reason)] = threads.lost
    assert number == 2 and why in reason


@pytest.mark.parametrize("fault", WORDS)
def test_the_same_towards_a_prefill_process(tiny, threads, monkeypatch, fault):
    change, why = WORDS[fault]
    planted(
        monkeypatch,
        7,
        change,
        lambda c: getattr(c._hear, "args", (None,))[0] is not None and c._hear.args[0].number == 2,
    )
    outcome = threads.run(tiny(*SIX), deadline_s=1.0)
    assert statuses(outcome) == ONLY_2
    assert [number for number, _ in threads.lost] == [2]
    [error] = threads.faults
    assert str(error).startswith("prefill2: the decoding process is lost: ") and why in str(error)


def test_words_that_are_repeated_are_heard_once(tiny, threads, monkeypatch):
    write = Connection.write
    monkeypatch.setattr(Connection, "write", lambda c, data: write(c, data + data))
    assert statuses(threads.run(tiny(*SIX))) == ALL and not threads.lost


def test_late_words_on_what_is_gone_change_nothing(tiny, threads, monkeypatch):
    """Of another epoch, of a request or posting that nobody knows any more."""
    hear, do, heard = DecodeRole._hear, PrefillProcess._do, []

    def late(role, peer, message):
        if isinstance(message, Handover | Drained):
            heard.append(message)
            for epoch in (message.epoch - 1, message.epoch + 1):
                hear(role, peer, Failed(message.request_id, epoch, "planted"))
                hear(role, peer, Drained(message.request_id, epoch))
                hear(role, peer, Handover(message.request_id, epoch, 0))
        hear(role, peer, message)
        if isinstance(message, Drained):
            hear(role, peer, Handover(message.request_id, message.epoch, 0))

    def doing(process, *told):
        *parts, word = told
        do(process, *parts, word)
        if isinstance(word, Grant | Landed):
            do(process, *parts, Landed(word.flow_id + 10**6))
            do(process, *parts, Grant(word.flow_id + 10**6))
        if isinstance(word, Landed):
            do(process, *parts, Grant(word.flow_id))
            do(process, *parts, word)

    monkeypatch.setattr(DecodeRole, "_hear", late)
    monkeypatch.setattr(PrefillProcess, "_do", doing)
    found = statuses(threads.run(tiny(*SIX)))
    assert found == ALL, (threads.lost, threads.faults)
    assert len(heard) == 12 and not threads.faults, threads.lost
