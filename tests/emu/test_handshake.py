"""How processes meet: strangers, latecomers, and those that do not agree."""

import asyncio
import socket

import pytest

from smartgen.emu.clock import PacedLoop, run
from smartgen.emu.processes.decode import DecodeProcess
from smartgen.emu.processes.handshake import _hash_of, facts_of, mismatch
from smartgen.emu.processes.prefill import PrefillProcess
from smartgen.emu.processes.words import PROTOCOL, Frame, Hello, Start, decode, encode
from smartgen.emu.settings import Settings
from smartgen.errors import SmartGenError
from smartgen.metrics.records import merge

SIX = (
    "workload.requests=6",
    "workload.prompt_tokens=[180,250,301,97,200,333]",
    "workload.output_tokens=10",
    "network.gbps=0.05",
    "cluster.prefill_nodes=6",
)


def statuses(outcome):
    return {row.request_id: row.status for row in merge(list(outcome.recorders)).requests.values()}


ALL = dict.fromkeys(range(6), "finished")


def framed(body):
    return len(body).to_bytes(4, "big") + body


STRANGERS = {
    "silence": b"",
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "half a frame": encode(Frame(1, 0.0, Start(0.0)))[:-1],
    "no hello": encode(Frame(1, 0.0, Start(0.0))),
    "an old hello": encode(Frame(1, 0.0, Hello(0, {}, (b"", b""), 1, 1))),
    "nested too deep": framed(b"\x94\x01\xcb" + bytes(8) + b"\xc0" + b"\x91" * 100_000),
    "a large frame": (1 << 21).to_bytes(4, "big") + bytes(100),
}


@pytest.mark.parametrize("words", STRANGERS)
def test_a_stranger_at_the_port_changes_nothing(tiny, threads, monkeypatch, words):
    whole, sockets = PrefillProcess.run, []

    async def visited(process, listen, told):
        def tell(host, port):
            sockets.append(socket.create_connection((host, port)))
            sockets[-1].sendall(STRANGERS[words])
            told(host, port)

        await whole(process, listen, tell)

    monkeypatch.setattr(PrefillProcess, "run", visited)
    try:
        assert statuses(threads.run(tiny(*SIX))) == ALL and not threads.faults
    finally:
        for stranger in sockets:
            stranger.close()


def test_a_second_decoding_process_is_refused_by_name(tiny, threads, monkeypatch):
    greet, whole, places, sockets = PrefillProcess._greet, PrefillProcess.run, {}, []

    async def placed(process, listen, told):
        def tell(host, port):
            places[process] = host, port
            told(host, port)

        await whole(process, listen, tell)

    def greeting(process, connection, hello):
        first = process._peer is None
        greet(process, connection, hello)
        if first:
            sockets.append(socket.create_connection(places[process]))
            sockets[-1].sendall(encode(Frame(1, 0.0, hello)))

    monkeypatch.setattr(PrefillProcess, "run", placed)
    monkeypatch.setattr(PrefillProcess, "_greet", greeting)
    try:
        assert statuses(threads.run(tiny(*SIX))) == ALL and not threads.faults
        for second in sockets:
            second.settimeout(5)
            answer = decode(second.recv(1 << 16)[4:])
            assert "another decoding process is connected already" in answer.word.reason
    finally:
        for second in sockets:
            second.close()


def meet(ours, theirs, settings):
    """Both roles on one loop: they come as far as their handshake."""

    async def main():
        listening = asyncio.get_running_loop().create_future()
        prefill = PrefillProcess(theirs, settings, 0)
        serving = asyncio.create_task(
            prefill.run(("127.0.0.1", 0), lambda *place: listening.set_result(place))
        )
        try:
            decoding = DecodeProcess(ours, Settings(), lambda number, reason: None)
            await decoding.run([await listening], lambda _: None, lambda _: None)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    run(main(), PacedLoop)


@pytest.mark.parametrize(
    ("theirs", "told", "name"),
    [
        (("model.num_hidden_layers=7",), {}, "model.num_hidden_layers is 6"),
        (("model.num_key_value_heads=4",), {}, "model.num_key_value_heads is 2"),
        (("blocks_per_layer=16",), {}, "blocks_per_layer is 32"),
        (("policy=full",), {}, "policy.name is smartgen"),
        (("seed=5",), {}, "seed is 0"),
        (("network.gbps=0.06",), {}, "network.gbps is 0.05 at the decoding process and 0.06"),
        (("workload.output_tokens=5",), {}, "workload.output_tokens is 10"),
        ((), {"transport": "shm"}, "emu.transport is tcp"),
        ((), {"byte_scale": 2}, "emu.byte_scale is 1"),
        ((), {"dilation": 2.0}, "emu.dilation is 1 "),
        ((), {"checksum": True}, "emu.checksum is False"),
    ],
)
def test_processes_that_do_not_agree_refuse_each_other_by_name(tiny, theirs, told, name):
    ours = (*SIX, "cluster.prefill_nodes=1")
    with pytest.raises(SmartGenError) as refused:
        meet(tiny(*ours), tiny(*ours, *theirs), Settings(**told))
    assert name in str(refused.value) and "\n" not in str(refused.value)


def test_another_version_of_the_protocol_is_refused(tiny, monkeypatch):
    experiment = tiny(*SIX, "cluster.prefill_nodes=1")
    monkeypatch.setattr("smartgen.emu.processes.decode.PROTOCOL", 0)
    with pytest.raises(SmartGenError, match="protocol 0 of the decoding process is not 1"):
        meet(experiment, experiment, Settings())


def test_a_prefill_process_that_starts_late_is_found(tiny):
    """Found it is by the name of what differs, which only it can say."""
    ours, theirs = (tiny(*SIX, "cluster.prefill_nodes=1", f"seed={seed}") for seed in (0, 5))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = taken.getsockname()

    async def main():
        decoding = DecodeProcess(ours, Settings(), lambda number, reason: None)
        looking = asyncio.create_task(decoding.run([place], lambda _: None, lambda _: None))
        await asyncio.sleep(0.3)
        prefill = PrefillProcess(theirs, Settings(), 0)
        serving = asyncio.create_task(prefill.run(place, lambda *_: None))
        try:
            await looking
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    with pytest.raises(SmartGenError, match="seed is 0"):
        run(main(), PacedLoop)


def test_a_profile_is_compared_by_what_it_holds(tiny, tmp_path):
    """Two files may have one name on two machines."""
    experiment = tiny()
    told = []
    for content in (b"one", b"two"):
        (tmp_path / "p.npz").write_bytes(content)
        told.append(_hash_of(str(tmp_path / "p.npz")))
    assert told[0] != told[1]
    ours = facts_of(experiment, Settings())
    key = "what the file of profile holds"
    assert mismatch(PROTOCOL, {**ours, key: told[0]}, {**ours, key: told[1]}) == (
        f"{key} is not the same at the decoding and at the prefill process"
    )
