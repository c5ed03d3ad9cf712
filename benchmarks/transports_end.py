"""One end of one contestant, in a process of its own, for benchmarks/transports.py.

    python transports_end.py NAME sender|receiver

It is told what to do by lines of JSON, each a method of Worker and what it is given. It needs
numpy and what its contestant needs, and runs in the contestant's own virtual environment.
"""

import json
import os
import select
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Memory = NDArray[np.uint8]

PUSH_BYTES = 256 << 20  # moved by one measurement of pushes; also the size of both memories
ROW_BYTES = 32 << 20  # the pool that scattered rows come from, and that they go to
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Job(NamedTuple):
    """What is moved: count pieces of length bytes, from slots of one pool to slots of the other.

    kind: pushes, several in flight, each a WRITE; chain, all of them one chain; single, a chain for
    each, one after the other. A request has `together` pushes where the contestant has requests.
    """

    kind: str
    length: int
    count: int
    seed: int = 0
    together: int = 1

    @property
    def num_bytes(self) -> int:
        """All that is moved."""
        return self.length * self.count

    @property
    def pool_bytes(self) -> int:
        """Size of either pool."""
        return PUSH_BYTES if self.kind == "pushes" else ROW_BYTES


class Moves(NamedTuple):
    """Slots of length bytes: sources[i] goes to targets[i], no target occurs twice."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    length: int

    def part(self, first: int, count: int) -> "Moves":
        """Some of them."""
        some = slice(first, first + count)
        return Moves(self.sources[some], self.targets[some], self.length)


class End(Protocol):
    """A contestant's sender, or its receiver; memory is what is read, or written."""

    memory: Memory

    def hello(self) -> str:
        """What the other end must be given."""

    def meet(self, peer: str) -> None:
        """Connect; a receiver does so first."""

    def ready(self, job: Job) -> None:
        """Prepare what does not depend on which slots are moved (sender)."""

    def push(self, moves: Moves, together: int) -> None:
        """Move every slot, so many by one request; return when all are there (sender)."""

    def chain(self, moves: Moves) -> None:
        """Move all slots at once; return when all are there (sender)."""

    def serve(self, job: Job, moves: Moves, stopped: Callable[[], bool]) -> None:
        """Do what a receiver must, until all is there or it is stopped."""


class Plan(NamedTuple):
    """A job, and which slots it moves; equal in both processes."""

    job: Job
    moves: Moves


@cache
def plan_of(*told: Any) -> Plan:
    """A job, given by its fields, and slots drawn by its seed."""
    job = Job(*told)
    random = np.random.default_rng([job.seed, job.length])
    slots = job.pool_bytes // job.length
    sources = random.permutation(slots)[: job.count]
    return Plan(job, Moves(sources, random.permutation(slots)[: job.count], job.length))


def fill(memory: Memory) -> None:
    """Give memory contents in which no two words are equal, and none is zero."""
    words = memory.view(np.uint64)
    np.multiply(np.arange(1, len(words) + 1, dtype=np.uint64), _ODD, out=words)


def right(plan: Plan, source: Memory, written: Memory) -> bool:
    """Whether every byte of the receiver's pool is what it must be: zero where nothing went."""
    length, slots = plan.job.length, plan.job.pool_bytes // plan.job.length
    source_of = np.full(slots, -1)
    source_of[plan.moves.targets] = plan.moves.sources
    from_, to = (memory.view(np.uint64).reshape(-1, length // 8) for memory in (source, written))
    step = max(1, (1 << 20) // length)
    for first in range(0, slots, step):
        part = source_of[first : first + step]
        wanted = from_[part]
        wanted[part < 0] = 0
        if not np.array_equal(wanted, to[first : first + len(part)]):
            return False
    return True


def timed(end: End, plan: Plan) -> list[float]:
    """Seconds of the whole job, or of each of its pieces where they go one after the other."""
    job, moves = plan
    end.ready(job)
    step = 1 if job.kind == "single" else job.count
    seconds = []
    for first in range(0, job.count, step):
        part = moves.part(first, step)
        start_s = time.perf_counter()
        if job.kind == "pushes":
            end.push(part, job.together)
        else:
            end.chain(part)
        seconds.append(time.perf_counter() - start_s)
    return seconds


def stdin_readable() -> bool:
    """Whether this process is told something."""
    return bool(select.select([0], [], [], 0)[0])


class Worker:
    """Answers what it is told."""

    def __init__(self, name: str, sends: bool) -> None:
        from transports_ends import ENDS  # what an end needs is there from now on, not before

        self.end: End = ENDS[name](sends)
        self.written = getattr(self.end, "written", self.end.memory)
        self.written[:] = 1  # every page is there before anything is measured
        self.source = self.end.memory if sends else np.empty(PUSH_BYTES, np.uint8)
        fill(self.source)

    def hello(self) -> str:
        """What the other end must be told."""
        return self.end.hello()

    def meet(self, peer: str) -> None:
        """Connect."""
        self.end.meet(peer)

    def clear(self, *job: Any) -> None:
        """Zero the receiver's pool, so that nothing of an earlier job can pass for this one's."""
        self.written[: plan_of(*job).job.pool_bytes] = 0

    def serve(self, *job: Any) -> None:
        """Be a receiver."""
        self.end.serve(*plan_of(*job), stdin_readable)

    def move(self, *job: Any) -> list[float]:
        """Be a sender."""
        return timed(self.end, plan_of(*job))

    def check(self, *job: Any) -> bool:
        """Whether all has arrived, at the receiver."""
        return right(plan_of(*job), self.source, self.written)


def main() -> None:
    """Answer lines until there are no more; what libraries print goes to standard error.

    A receiver says that it serves before it does; if that fails, it fails what it is told next.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker: Worker | None = None
    failed: str | None = None
    for line in iter(sys.stdin.buffer.raw.readline, b""):  # unbuffered: select sees all of it
        do, *given = json.loads(line)
        said = None
        if do == "serve":
            answers.write('{"said": null}\n')
        try:
            worker = worker or Worker(sys.argv[1], sys.argv[2] == "sender")
            said = getattr(worker, do)(*given)
        except Exception as error:
            traceback.print_exc()
            failed = failed or f"{type(error).__name__}: {error}"
        if do != "serve":
            answers.write(json.dumps({"failed": failed} if failed else {"said": said}) + "\n")


if __name__ == "__main__":
    main()
