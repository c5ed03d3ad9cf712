"""What is told while something runs."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smartgen import progress
from smartgen.emu.virtual import VirtualBackend
from smartgen.experiment import Experiment, Progress
from smartgen.progress import Notes, Screen, of_point, of_run, of_sweep
from smartgen.sim import SimBackend


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time."""
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)

    def at(now_s: float) -> None:
        monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)

    return at


def test_a_terminal_shows_the_state_once_a_second_below_what_stays(
    clock: Callable[[float], None],
) -> None:
    stream = Terminal()
    screen = Screen(stream)
    for at_s, text in ((0.5, "early"), (1.0, "one"), (1.9, "soon"), (2.0, "two")):
        clock(at_s)
        screen.show(text)
    screen.say("stays")
    screen.clear()
    assert stream.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Kstays\n\r\x1b[K"


def test_what_is_shown_never_takes_two_lines(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    stream = Terminal()
    screen = Screen(stream)
    clock(1.0)
    screen.show("0123456789abc")
    assert stream.getvalue() == "\r\x1b[K012345678"


def test_a_file_gets_a_line_a_minute(clock: Callable[[float], None]) -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    for at_s in range(130):
        clock(float(at_s))
        screen.show(f"at {at_s}")
    screen.clear()
    assert stream.getvalue() == "at 60\nat 120\n"


def test_a_stream_that_is_closed_disturbs_nobody() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    stream.close()
    screen.say("lost")


@pytest.mark.parametrize(
    "backend",
    [SimBackend(), SimBackend(fold=False), VirtualBackend(memory_gib=1.0)],
    ids=["folded", "sim", "emu"],
)
def test_every_backend_answers_how_far_it_is(tiny: Callable[..., Experiment], backend: Any) -> None:
    experiment = tiny()
    answers: list[Progress] = []
    outcome = backend.run(experiment, answers.append)
    (answer,) = answers
    assert answer() == (len(experiment.requests), outcome.makespan_s)


def test_a_run_is_asked_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHOW_S", 0.001)
    stream, told = Terminal(), threading.Event()

    def answer() -> tuple[int, float]:
        if "1,234 of 5,000" in stream.getvalue():
            told.set()
        return 1234, 56.789

    with of_run(stream, 5000) as watch:
        watch(answer)
        assert told.wait(60)
    assert "\r\x1b[K1,234 of 5,000 requests over, 56.8 s simulated" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_point_notes_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHOW_S", 0.001)
    notes, asked_twice = Notes(tmp_path), threading.Event()
    times: list[int] = []

    def answer() -> tuple[int, float]:
        times.append(1)
        if len(times) > 1:
            asked_twice.set()
        return 3, 1.0

    with of_point(notes, 7, "seed=7", 10) as watch:
        watch(answer)
        assert asked_twice.wait(60)
    assert notes.read("running") == {7: ("seed=7", "3 of 10 requests")}
    notes.done(7, "seed=7", "TTST 1.000 s")
    assert notes.read("running") == {}
    assert notes.read("done") == {7: ("seed=7", "TTST 1.000 s")}


def test_points_are_counted_as_they_are_noted_and_notes_removed(tmp_path: Path) -> None:
    notes, stream = Notes(tmp_path / "notes"), io.StringIO()
    with of_sweep(notes, 3, stream):
        notes.running(0, "seed=0", "1 of 2 requests")
        notes.done(0, "seed=0", "kept")
        (notes.folder / "1.done").write_text("not yet wri")
        notes.done(2, "seed=2", "TTST 1.000 s")
    assert stream.getvalue() == "[1/3] seed=0: kept\n[2/3] seed=2: TTST 1.000 s\n"
    assert list(tmp_path.iterdir()) == []


def test_a_note_that_cannot_be_made_is_none(tmp_path: Path) -> None:
    Notes(tmp_path / "gone").done(0, "seed=0", "kept")


def test_few_of_many_running_points_are_named() -> None:
    running = {number: (f"seed={number}", "0 of 9 requests") for number in range(5)}
    told = progress._listed(running)
    assert told.endswith("seed=2: 0 of 9 requests; 2 others")
