"""What measuring a machine times, and that it leaves nothing behind, whatever happens."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smartgen.emu import loopback
from smartgen.emu.measure import Measured, Sizes, Timings, measure
from smartgen.errors import SmartGenError

SMALL = Sizes(
    row_bytes=64,
    gathered_rows=8,
    layer_bytes=4096,
    chunk_bytes=1024,
    pool_layers=2,
    copies=3,
    streams=2,
    messages=4,
    num_pairs=(2, 4, 8),
    pair_repeats=3,
)


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """What processes the loopback starts; in the end all are reaped and all files closed."""
    processes: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(popen(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(loopback.subprocess, "Popen", start)
    before = open_files()
    yield processes
    assert processes
    assert [process.returncode is None for process in processes] == [False] * len(processes)
    assert open_files() == before


def test_everything_is_timed_as_often_as_asked_and_nothing_is_left(
    started: list[subprocess.Popen[bytes]],
) -> None:
    told: list[str] = []
    found = measure(SMALL, told.append)
    few, many = 8 * 64, 4096
    amounts = {
        "gather": (few, 3),
        "load": (few, 3),
        "dense_load": (many, 3),
        "offload": (many, 3),
        "stream": (many, 2),
        "round_trip": (1, 4),
        "acknowledged": (1, 4),
        "call": (1, 4),
    }
    assert {name: shape(getattr(found, name)) for name in amounts} == amounts
    assert [shape(one) for one in found.pairs] == [(2, 3), (4, 3), (8, 3)]
    assert all(second > 0 for timings in all_of(found) for second in timings.seconds)
    assert len(started) == 3
    assert told[0] == "host memory, turn 0 of 3" and told[-1] == "small WRITEs, turn 3 of 3"
    assert found.machine.endswith(" cores") and len(found.day.split("-")) == 3


def shape(timings: Timings) -> tuple[int, int]:
    return timings.amount, len(timings.seconds)


def all_of(found: Measured) -> list[Timings]:
    named = [getattr(found, name) for name in found.__dataclass_fields__]
    return [one for one in (*named, *found.pairs) if isinstance(one, Timings)]


@pytest.mark.parametrize("at", ["echoes", "loopback", "small WRITEs"])
def test_an_interruption_leaves_nothing(started: list[subprocess.Popen[bytes]], at: str) -> None:
    def interrupt(what: str) -> None:
        if what.startswith(at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(SMALL, interrupt)


@pytest.mark.parametrize("act", ["answer", "echo"])
def test_the_other_process_ends_by_itself_once_the_connection_does(
    started: list[subprocess.Popen[bytes]], act: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with loopback._other_process(act, 64) as connection:
        connection.shutdown(socket.SHUT_RDWR)
        assert started[0].wait(timeout=60) == 0
    assert capfd.readouterr().err == ""


def test_the_other_process_ends_by_itself_while_it_is_written_to(
    started: list[subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    with loopback.writes(64, 4) as other:
        other.stream()
        other._queue_pair.close()
        assert started[0].wait(timeout=60) == 0
    assert capfd.readouterr().err == ""


def test_a_process_that_dies_is_told_of(started: list[subprocess.Popen[bytes]]) -> None:
    lost = "the other process is lost, measure again: "
    with pytest.raises(SmartGenError, match=lost), loopback.echoes() as echo:
        kill(started[0])
        echo()
    lost += "a WRITE came to retry_exc_err"
    with pytest.raises(SmartGenError, match=lost), loopback.writes(64, 4) as other:
        kill(started[1])
        other.stream()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"copies": 0}, "sizes.copies=0 must be an integer of 1 or more"),
        ({"layer_bytes": 1000}, "sizes.layer_bytes=1000 must be whole rows of 64"),
        ({"gathered_rows": 65}, "sizes.gathered_rows=65 must be at most 64"),
        ({"num_pairs": (4, 2)}, r"sizes.num_pairs=\(4, 2\) must ascend"),
        ({"num_pairs": (4,)}, r"sizes.num_pairs=\(4,\) must ascend"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(wrong: dict[str, Any], told: str) -> None:
    fields = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    with pytest.raises(SmartGenError, match=told):
        Sizes(**{**fields, **wrong})
