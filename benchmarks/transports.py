"""Compares transports between two processes in one run; prints tables, records them beside it.

    python benchmarks/transports.py [--peers FOLDER] [--with nixl,mooncake] [--repeats 7]

Contestants: memcpy, shared memory and a plain socket (the limits), smartgen's tcp and shm, and of
other projects NIXL and Mooncake, each from the virtual environment FOLDER/nixl or FOLDER/mooncake,
which --with makes first if it is not there. What does not install or does not run is left out by
name. In each repeat all contestants do all jobs in turn, and ratios are taken within a repeat. What
was moved is compared, by its hash, after each job.
"""

import argparse
import json
import os
import platform
import re
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transports_end import PUSH_BYTES, Job

PACKAGES = {
    "nixl": ("--no-deps", "nixl-cu12==1.5.1"),  # its dependencies are GPU libraries and torch
    "mooncake": ("mooncake-transfer-engine-non-cuda==0.3.13.post1",),
}
JOBS = {
    "64 KB pushes": [Job("pushes", 64 << 10, PUSH_BYTES >> 16)],
    "16 together": [Job("pushes", 64 << 10, PUSH_BYTES >> 16, together=16)],
    "256 KB pushes": [Job("pushes", 256 << 10, PUSH_BYTES >> 18)],
    "1 MB pushes": [Job("pushes", 1 << 20, PUSH_BYTES >> 20)],
    "512 B rows": [Job("chain", 512, 16384, seed) for seed in range(2)],
    "4 KB rows": [Job("chain", 4096, 4096, seed) for seed in range(2)],
    "one row": [Job("single", 512, 500)],
}
LEAST_REPEATS = 3
ANSWER_S = 60.0


@dataclass(frozen=True)
class Contestant:
    """A name of transports_ends.ENDS, and how its processes are started."""

    name: str
    does: str
    peer: str | None = None  # whose virtual environment it needs
    variables: dict[str, str] = field(default_factory=dict)
    processes: int = 2


CONTESTANTS = (
    Contestant("one process", "memcpy (numpy) in one process", processes=1),
    Contestant("shared memory", "memcpy into memory shared by two processes"),
    Contestant("plain socket", "blocking Python TCP socket, loopback"),
    Contestant("shm", "smartgen shm"),
    Contestant("tcp", "smartgen tcp"),
    Contestant("nixl", "NIXL, UCX's default transports", "nixl"),
    Contestant("nixl tcp", "NIXL, UCX_TLS=tcp", "nixl", {"UCX_TLS": "tcp"}),
    Contestant("mooncake tcp", "Mooncake, tcp", "mooncake"),
)

DOES = {contestant.name: contestant.does for contestant in CONTESTANTS}
AIMS = (
    ("tcp", "plain socket", 1.0),
    ("tcp", "nixl tcp", 1.0),
    ("tcp", "mooncake tcp", 1.0),
    ("shm", "shared memory", 0.8),
    ("shm", "nixl", None),
    ("shared memory", "one process", None),
)

RECORDED = "Recorded by `python benchmarks/transports.py --with nixl,mooncake`."
NOTES = """
- First table: medians over the repeats. Second: ratios within a repeat, their median and quartiles;
  met if the median is.
- Pushes: 256 MiB from random slots to random slots, at most 64 outstanding. One request has one
  push, or 16 (`16 together`): a chain of smartgen, a handle of NIXL. What the two columns differ by
  is the cost of a request. The limits know no requests; Mooncake takes batches of 128 in all of
  them, since 2,500 are refused.
- Rows: 16,384 of 512 bytes and 4,096 of 4 KB, from random to random places of a pool of 32 MiB, as
  one chain. One row: 500 chains of one, each after the other has completed.
- Memory is touched beforehand, the receiver's is zeroed before each job and compared with what it
  must be, byte by byte, after it.
- The plain socket has no headers, since both ends know what comes: sendall and recv_into in place;
  rows are gathered by numpy.take, sent, received and scattered by one assignment, 256 KB at a time.
  In shared memory rows are copied as numpy void elements, 256 KB at a time: the fastest found.
- smartgen, and the plain socket, sleep while they wait. NIXL runs without its progress thread, so
  that both its ends spin; Mooncake has threads of its own. Processes are not pinned to cores.
- NIXL's lists of all slots are prepared beforehand; what is timed is make_prepped_xfer by index,
  the transfer and its completion. Its default transport on one host copies from process to process
  within the call (CMA). nixl-cu12 1.5.1 is installed without dependencies, which it does not need
  here. Mooncake is mooncake-transfer-engine-non-cuda 0.3.13.post1, which needs libibverbs.so.1.
- NIXL's spinning ends lose most where other work shares the cores.
- Not measured by this program: anything but one host over loopback, RDMA, GPU memory, reads,
  several queue pairs or peers at once, shaped links, asyncio, CPU time, NIXL with a progress
  thread or more workers, notifications and immediates.
"""


class ContestantError(Exception):
    """Why a contestant is left out."""


class Worker:
    """A process of transports_end.py."""

    def __init__(self, contestant: Contestant, role: str, python: str, verbose: bool) -> None:
        program = str(Path(__file__).with_name("transports_end.py"))
        self.process = subprocess.Popen(
            [python, program, contestant.name, role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if verbose else subprocess.DEVNULL,
            env={**os.environ, **contestant.variables},
        )

    def tell(self, *told: object) -> None:
        """Say what to do."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(told).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ContestantError("a process has ended") from None

    def hear(self) -> Any:
        """What came of it."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], ANSWER_S)[0]:
            raise ContestantError(f"no answer within {ANSWER_S:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise ContestantError(f"a process has ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "failed" in answer:
            raise ContestantError(answer["failed"])
        return answer["said"]

    def ask(self, *told: object) -> Any:
        """Both."""
        self.tell(*told)
        return self.hear()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class Ends:
    """Both processes of a contestant, connected; of memcpy in one process both are the same."""

    def __init__(self, contestant: Contestant, python: str, verbose: bool) -> None:
        self.alone = contestant.processes == 1
        self.sender = Worker(contestant, "sender", python, verbose)
        self.receiver = self.sender
        try:
            if not self.alone:
                self.receiver = Worker(contestant, "receiver", python, verbose)
                self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        for end in (self.sender, self.receiver):
            end.tell("hello")
        of_sender, of_receiver = self.sender.hear(), self.receiver.hear()
        self.receiver.tell("meet", of_sender)
        self.sender.ask("meet", of_receiver)
        self.receiver.hear()

    def seconds(self, job: Job) -> list[float]:
        """Do a job, and see whether everything is where it belongs, and nothing elsewhere."""
        self.receiver.ask("clear", *job)
        if not self.alone:
            self.receiver.ask("serve", *job)
        found: list[float] = self.sender.ask("move", *job)
        if not self.receiver.ask("check", *job):
            raise ContestantError("what was received is not what was sent")
        return found

    def close(self) -> None:
        """End both."""
        self.sender.close()
        self.receiver.close()


Samples = dict[str, list[list[float]]]  # by name of JOBS: of each repeat, seconds


@dataclass
class Results:
    """Of each contestant what it took, and why one was left out."""

    samples: dict[str, Samples] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    repeats: int = 0


def prepare(packages: tuple[str, ...], folder: Path) -> None:
    """Make a virtual environment, unless it is there."""
    if folder.exists():
        return
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "numpy", *packages],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            why = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise ContestantError(f"does not install: {why[-1]}")


def start(contestant: Contestant, peers: Path, wanted: list[str], verbose: bool) -> Ends:
    """A contestant, warmed up."""
    python = sys.executable
    if contestant.peer is not None:
        folder = peers / contestant.peer
        if contestant.peer in wanted:
            prepare(PACKAGES[contestant.peer], folder)
        python = str(folder / "bin" / "python")
        if not Path(python).exists():
            raise ContestantError(f"not asked for (--with {contestant.peer})")
    ends = Ends(contestant, python, verbose)
    try:
        for name in ("1 MB pushes", "512 B rows", "one row"):
            ends.seconds(JOBS[name][0])
    except BaseException:
        ends.close()
        raise
    return ends


def measure(peers: Path, wanted: list[str], least_s: float, verbose: bool) -> Results:
    """Repeats of all contestants that run, until so much time has gone since the first."""
    results = Results()
    running: dict[str, Ends] = {}
    with ExitStack() as stack:
        for contestant in CONTESTANTS:
            try:
                running[contestant.name] = start(contestant, peers, wanted, verbose)
            except ContestantError as error:
                results.left_out[contestant.name] = str(error)
            else:
                stack.callback(running[contestant.name].close)
                results.samples[contestant.name] = {name: [] for name in JOBS}
        until_s = time.monotonic() + least_s
        while results.repeats < LEAST_REPEATS or time.monotonic() < until_s:
            repeat(running, results)
            results.repeats += 1
    return results


def repeat(running: dict[str, Ends], results: Results) -> None:
    """Every job by every contestant; in an order that differs from repeat to repeat."""
    random = np.random.default_rng(results.repeats)
    for job, parts in JOBS.items():
        for name in random.permutation([*running]).tolist():
            try:
                found = [second for part in parts for second in running[name].seconds(part)]
            except ContestantError as error:
                results.left_out[name] = f"in repeat {results.repeats + 1}, {job}: {error}"
                running.pop(name).close()
                del results.samples[name]
            else:
                results.samples[name][job].append(found)


def rates(samples: Samples, job: str) -> list[float]:
    """Bytes per second of each repeat."""
    num_bytes = JOBS[job][0].num_bytes
    return [num_bytes / statistics.median(seconds) for seconds in samples[job]]


def figures(results: Results) -> list[list[str]]:
    """The table of medians."""
    pushes, rows = [*JOBS][:4], [*JOBS][4:6]
    titles = [*(f"{job}, GB/s" for job in pushes), *(f"{job}, us each" for job in rows)]
    table = [["", *titles, "one row of 512 B, p50 us", "p99 us"]]
    for contestant in CONTESTANTS:
        samples = results.samples.get(contestant.name)
        if samples is None:
            continue
        cells = [f"{statistics.median(rates(samples, job)) / 1e9:.2f}" for job in pushes]
        for job in rows:
            row_s = JOBS[job][0].length / statistics.median(rates(samples, job))
            cells.append(f"{1e6 * row_s:.2f}")
        single_us = 1e6 * np.concatenate(samples["one row"])
        cells += [f"{np.quantile(single_us, at):.1f}" for at in (0.5, 0.99)]
        table.append([contestant.does, *cells])
    return table


def ratios(results: Results) -> list[list[str]]:
    """The table of ratios within a repeat: median, quartiles, and whether the aim is met."""
    jobs = [job for job in JOBS if job != "one row"]
    table = [["rate of", "to that of", "at least", *jobs, "met"]]
    for ours, other, aim in AIMS:
        row = [DOES[ours], DOES[other], "" if aim is None else f"{aim:.1f}"]
        if not {ours, other} <= set(results.samples):
            table.append([*row, *[""] * len(jobs), "not measured"])
            continue
        missed = []
        for job in jobs:
            pairs = zip(*(rates(results.samples[name], job) for name in (ours, other)), strict=True)
            low, mid, high = np.quantile([one / two for one, two in pairs], (0.25, 0.5, 0.75))
            row.append(f"{mid:.2f} ({low:.2f} to {high:.2f})")
            if aim is not None and mid < aim:
                missed.append(job)
        verdict = f"missed: {', '.join(missed)}" if missed else "yes"
        table.append([*row, verdict if aim is not None else ""])
    return table


def markdown(rows: list[list[str]]) -> str:
    """A table."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def git(*told: str) -> str:
    """What git says, of the repository that this file is in."""
    command = ["git", "-C", str(Path(__file__).parent), *told]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def circumstances(load: str, wall_s: float, repeats: int) -> str:
    """Where and of what it was measured."""
    cpu = "unknown processor"
    with suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        cpu = found.group(1) if found else cpu
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ":!*.md")
    commit = git("rev-parse", "--short", "HEAD") + (" with changes" if dirty else "")
    return (
        f"Commit {commit}; {os.cpu_count()} cores of {cpu}, Linux {platform.release()}, Python "
        f"{platform.python_version()}, numpy {np.__version__}; {repeats} repeats, {wall_s:.0f} s "
        f"in all; load averages before: {load}, after: {load_averages()}."
    )


def load_averages() -> str:
    """Of 1, 5 and 15 minutes."""
    return " ".join(f"{of:.2f}" for of in os.getloadavg())


def report(results: Results, where: str) -> str:
    """Everything that is recorded."""
    left_out = [f"- Not measured: {DOES[name]}: {why}." for name, why in results.left_out.items()]
    notes = "\n".join([*left_out, NOTES.strip()])
    parts = [where, markdown(figures(results)), markdown(ratios(results)), notes]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="folder of the peers' virtual environments")
    parser.add_argument("--with", dest="wanted", default="", help="peers to install into it")
    parser.add_argument("--seconds", type=float, default=120.0, help="repeat for so long")
    parser.add_argument("--verbose", action="store_true", help="show what the processes print")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    told = parser.parse_args()
    wanted = [name for name in told.wanted.split(",") if name]
    if unknown := set(wanted) - set(PACKAGES):
        parser.error(f"--with {','.join(sorted(unknown))}: it can be {', '.join(PACKAGES)}")
    load = load_averages()
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(told.peers or Path(folder), wanted, told.seconds, told.verbose)
    where = circumstances(load, time.monotonic() - start_s, results.repeats)
    text = f"# Transports between two processes\n\n{RECORDED}\n\n{report(results, where)}"
    print(text)
    told.output.write_text(text)


if __name__ == "__main__":
    main()
