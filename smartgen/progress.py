"""What is told while something runs: how far it is, and a line for every point that is done.

Whoever runs is asked, from a thread beside it, and never tells; so it costs nothing. Points of a
sweep run in other processes, maybe on other machines. They leave notes in a folder, and the command
that began the sweep reads them: whatever launcher there is, it tells the same, and no clocks of
different machines are compared.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from smartgen.experiment import Progress, Watch

_LOOK_S, _SHOW_S, _LINE_S = 0.1, 1.0, 60.0
"""Between looks at notes, changes of a line on a terminal, and lines where there is none."""

_NAMED = 3
"""How many running points are named at a time."""


class Screen:
    """Lines that stay, and on a terminal one below them that changes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_terminal = stream, stream.isatty()
        self._told_s = time.monotonic()

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self._write(f"{line}\n")

    def show(self, text: str) -> None:
        """Show how things are, if it is time to."""
        passed_s = time.monotonic() - self._told_s
        if self._is_terminal and passed_s >= _SHOW_S:
            self._write(text[: shutil.get_terminal_size().columns - 1])
        elif passed_s >= _LINE_S:
            self.say(text)

    def clear(self) -> None:
        """Remove what was shown."""
        if self._is_terminal:
            self._write("")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads it any more
            self._stream.write(f"\r\x1b[K{text}" if self._is_terminal else text)
            self._stream.flush()
        self._told_s = time.monotonic()


@contextmanager
def repeated(act: Callable[[], None], every_s: float) -> Iterator[None]:
    """Act again and again, from a thread of its own."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def asked(tell: Callable[[int, float], None]) -> Iterator[Watch]:
    """Gives a backend someone to be watched by; passes on about once a second what it answers."""
    watched: list[Progress] = []

    def ask() -> None:
        if watched:
            tell(*watched[-1]())

    with repeated(ask, _SHOW_S):
        yield watched.append


@contextmanager
def of_run(stream: TextIO, num_requests: int) -> Iterator[Watch]:
    """Shows how far a run is."""
    screen = Screen(stream)

    def tell(num_over: int, now_s: float) -> None:
        screen.show(f"{num_over:,} of {num_requests:,} requests over, {now_s:,.1f} s simulated")

    try:
        with asked(tell) as watch:
            yield watch
    finally:
        screen.clear()


# -- points of a sweep


class Notes:
    """A folder in which the points of a sweep note how far they are, and that they are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def running(self, number: int, point: str, told: str) -> None:
        """Note how far a point is."""
        self._write(f"{number}.running", point, told)

    def done(self, number: int, point: str, told: str) -> None:
        """Note that a point is done."""
        self._write(f"{number}.done", point, told)
        with suppress(OSError):
            (self.folder / f"{number}.running").unlink(missing_ok=True)

    def read(self, kind: str) -> dict[int, tuple[str, str]]:
        """Points and what was noted of them, by their numbers; kind is running or done."""
        found = {}
        for path in self.folder.glob(f"*.{kind}"):
            with suppress(OSError, ValueError):
                point, told = json.loads(path.read_text(encoding="utf-8"))
                found[int(path.stem)] = (point, told)
        return dict(sorted(found.items()))

    def _write(self, name: str, point: str, told: str) -> None:
        partial = self.folder / f"{name}.partial"
        with suppress(OSError):  # a note that cannot be made is none; results do not depend on it
            partial.write_text(json.dumps([point, told]), encoding="utf-8")
            partial.replace(self.folder / name)


def of_point(
    notes: Notes, number: int, point: str, num_requests: int
) -> AbstractContextManager[Watch]:
    """Notes how far a point is."""

    def tell(num_over: int, _: float) -> None:
        notes.running(number, point, f"{num_over:,} of {num_requests:,} requests")

    return asked(tell)


@contextmanager
def of_sweep(notes: Notes, num_points: int, stream: TextIO) -> Iterator[None]:
    """Tells of points as they are done, and shows how far the others are; removes the notes."""
    screen = Screen(stream)
    told: set[int] = set()

    def look() -> None:
        for number, (point, what) in notes.read("done").items():
            if number not in told:
                told.add(number)
                screen.say(f"[{len(told)}/{num_points}] {point}: {what}")
        others = notes.read("running")
        if others:
            screen.show(f"[{len(told)}/{num_points}] {_listed(others)}")

    notes.folder.mkdir(exist_ok=True)
    try:
        with repeated(look, _LOOK_S):
            yield
    finally:
        with suppress(OSError):
            os.utime(notes.folder)  # has a network's file system list it afresh
        look()
        screen.clear()
        shutil.rmtree(notes.folder, ignore_errors=True)


def _listed(running: dict[int, tuple[str, str]]) -> str:
    named = [f"{point}: {told}" for point, told in list(running.values())[:_NAMED]]
    others = len(running) - len(named)
    return "; ".join([*named, *([f"{others} others"] if others else [])])
