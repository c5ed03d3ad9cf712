"""The contestants of benchmarks/transports.py: the limits of a machine, our transports, the peers.

All waits are as their users would wait: ours, and the plain socket, sleep until there is
something to do; NIXL without a progress thread has to be polled; Mooncake has threads of its own.
"""

import mmap
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from transports_end import PUSH_BYTES, End, Job, Memory, Moves

CACHED_BYTES = 256 << 10  # rows copied by one call of numpy: they stay in a core's cache
IN_FLIGHT = 64  # pushes
BATCH = 128  # of Mooncake: larger ones are refused, or refused soon after
TIMEOUT_S = 20.0


def private_memory() -> Memory:
    """Memory of this process."""
    return np.zeros(PUSH_BYTES, np.uint8)


def copy_each(source: Memory, target: Memory, moves: Moves) -> None:
    """One copy for each slot."""
    size = moves.length
    for first, into in zip(moves.sources.tolist(), moves.targets.tolist(), strict=True):
        target[into * size : (into + 1) * size] = source[first * size : (first + 1) * size]


def copy_rows(source: Memory, target: Memory, moves: Moves) -> None:
    """Rows gathered and scattered as single elements, some that fit a core's cache at a time."""
    from_, to = source.view(f"V{moves.length}"), target.view(f"V{moves.length}")
    step = CACHED_BYTES // moves.length
    for first in range(0, len(moves.sources), step):
        part = slice(first, first + step)
        to[moves.targets[part]] = from_[moves.sources[part]]


class Quiet:
    """What most ends need not do."""

    memory: Memory

    def __init__(self, sends: bool) -> None:
        self.sends = sends
        self.memory = private_memory()

    def hello(self) -> str:
        return ""

    def meet(self, peer: str) -> None:
        pass

    def ready(self, job: Job) -> None:
        pass

    def push(self, moves: Moves, together: int) -> None:
        del together
        self.chain(moves)

    def chain(self, moves: Moves) -> None:
        raise NotImplementedError

    def serve(self, job: Job, moves: Moves, stopped: Callable[[], bool]) -> None:
        """A one-sided WRITE does not ask."""


class SharedMemory(Quiet):
    """The receiver's memory, mapped and written by the sender: the limit of shm."""

    def __init__(self, sends: bool) -> None:
        super().__init__(sends)
        if not sends:
            self.fd = os.memfd_create("transports")
            os.ftruncate(self.fd, PUSH_BYTES)
            self.memory = np.frombuffer(mmap.mmap(self.fd, PUSH_BYTES), np.uint8)
        self.target = self.memory

    def hello(self) -> str:
        return "" if self.sends else f"/proc/{os.getpid()}/fd/{self.fd}"

    def meet(self, peer: str) -> None:
        if self.sends:
            with Path(peer).open("r+b") as file:
                self.target = np.frombuffer(mmap.mmap(file.fileno(), PUSH_BYTES), np.uint8)

    def push(self, moves: Moves, together: int) -> None:
        del together
        copy_each(self.memory, self.target, moves)

    def chain(self, moves: Moves) -> None:
        copy_rows(self.memory, self.target, moves)


class OneProcess(Quiet):
    """Both memories belong to one process."""

    def __init__(self, sends: bool) -> None:
        super().__init__(sends)
        self.written = private_memory()

    def push(self, moves: Moves, together: int) -> None:
        del together
        copy_each(self.memory, self.written, moves)

    def chain(self, moves: Moves) -> None:
        copy_rows(self.memory, self.written, moves)


class PlainSocket(Quiet):
    """A blocking TCP socket whose two ends know what comes: the limit of tcp.

    Pushes: sendall from and recv_into to where they belong. Rows: gathered with numpy.take,
    sendall, recv_into and scattered by one assignment, a part that fits a core's cache at a time.
    At the end the receiver says one byte.
    """

    def __init__(self, sends: bool) -> None:
        super().__init__(sends)
        self.staging = np.ones(CACHED_BYTES, np.uint8)
        self.listener = None if sends else socket.create_server(("127.0.0.1", 0))

    def hello(self) -> str:
        return "" if self.listener is None else str(self.listener.getsockname()[1])

    def meet(self, peer: str) -> None:
        if self.listener is None:
            self.socket = socket.create_connection(("127.0.0.1", int(peer)))
        else:
            self.socket, _ = self.listener.accept()
            self.listener.close()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def push(self, moves: Moves, together: int) -> None:
        del together
        size = moves.length
        for first in moves.sources.tolist():
            self.socket.sendall(self.memory[first * size : (first + 1) * size])
        self.socket.recv(1)

    def chain(self, moves: Moves) -> None:
        rows, stage = self.memory.reshape(-1, moves.length), self.staging.reshape(-1, moves.length)
        for first in range(0, len(moves.sources), len(stage)):
            part = moves.sources[first : first + len(stage)]
            gathered = np.take(rows, part, 0, stage[: len(part)], mode="clip")
            self.socket.sendall(gathered)
        self.socket.recv(1)

    def serve(self, job: Job, moves: Moves, stopped: Callable[[], bool]) -> None:
        del stopped  # it ends when all is there
        size = moves.length
        if job.kind == "pushes":
            for into in moves.targets.tolist():
                self._fill(self.memory[into * size : (into + 1) * size].data)
            self.socket.send(b"!")
            return
        rows, stage = self.memory.view(f"V{size}"), self.staging.view(f"V{size}")
        step = 1 if job.kind == "single" else len(stage)
        for first in range(0, len(moves.targets), step):
            part = moves.targets[first : first + step]
            self._fill(self.staging[: len(part) * size].data)
            rows[part] = stage[: len(part)]
            if job.kind == "single" or first + step >= len(moves.targets):
                self.socket.send(b"!")

    def _fill(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            done += self.socket.recv_into(buffer[done:], 0, socket.MSG_WAITALL)


class Ours(Quiet):
    """A queue pair of smartgen.emu.transports."""

    TRANSPORT = "tcp"

    def __init__(self, sends: bool) -> None:
        from smartgen.emu.transports import open_device
        from smartgen.emu.transports.protocol import Limits, Segments

        self.segments = Segments
        self.sends = sends
        self.device = open_device(self.TRANSPORT, Limits(max_send_wr=1 << 15))
        self.region = self.device.register(PUSH_BYTES)
        self.memory = self.region.memory
        self.pair = self.device.queue_pair(dials=sends)
        self.poller = select.poll()
        self.key = -1

    def hello(self) -> str:
        return f"{self.pair.address.hex()} {self.region.key}"

    def meet(self, peer: str) -> None:
        address, key = peer.split(" ")
        self.key = int(key)
        self.pair.connect(bytes.fromhex(address), TIMEOUT_S)

    def push(self, moves: Moves, together: int) -> None:
        posted = done = 0
        while done < len(moves.sources):
            while posted < len(moves.sources) and posted - done < IN_FLIGHT:
                self._post(moves.part(posted, together))
                posted += together
            done += together * self._completed()

    def chain(self, moves: Moves) -> None:
        self._post(moves)
        while not self._completed():
            pass

    def serve(self, job: Job, moves: Moves, stopped: Callable[[], bool]) -> None:
        self.poller.register(0, select.POLLIN)
        while not stopped():
            self._completed()
        self.poller.unregister(0)

    def _post(self, moves: Moves) -> None:
        size = moves.length
        lengths = np.full(len(moves.sources), size)
        local = self.segments(self.region, moves.sources * size, lengths)
        self.pair.post_writes(0, local, self.key, moves.targets * size)

    def _completed(self) -> int:
        """How many requests have completed, after waiting if there is nothing to do."""
        found = self.pair.poll()
        if not found:
            writes = select.POLLOUT if self.pair.wants_write else 0
            self.poller.register(self.pair, select.POLLIN | writes)
            self.poller.poll()
            return 0
        for completion in found:
            if completion.status != "success":
                raise RuntimeError(f"a request ended as {completion.status}")
        return len(found)


class OursShm(Ours):
    """The same over shared memory."""

    TRANSPORT = "shm"


class Nixl(Quiet):
    """NIXL over UCX without a progress thread: prepared lists of all slots, handles by index."""

    def __init__(self, sends: bool) -> None:
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        super().__init__(sends)
        self.name = "sender" if sends else "receiver"
        self.agent = nixl_agent(self.name, nixl_agent_config(enable_prog_thread=False))
        self.registered = self.agent.register_memory(
            [(self.memory.ctypes.data, PUSH_BYTES, 0, "")], "DRAM"
        )
        self.slots: dict[tuple[int, int], list[object]] = {}

    def hello(self) -> str:
        return f"{self.agent.get_agent_metadata().hex()} {self.memory.ctypes.data}"

    def meet(self, peer: str) -> None:
        metadata, address = peer.split(" ")
        self.peer = self.agent.add_remote_agent(bytes.fromhex(metadata))
        self.addresses = {"NIXL_INIT_AGENT": self.memory.ctypes.data, self.peer: int(address)}

    def ready(self, job: Job) -> None:
        key = job.pool_bytes, job.length
        if key not in self.slots:
            starts = np.arange(job.pool_bytes // job.length, dtype=np.uint64) * np.uint64(
                job.length
            )
            made = []
            for agent, address in self.addresses.items():
                columns = (
                    starts + np.uint64(address),
                    np.full_like(starts, job.length),
                    np.zeros_like(starts),
                )
                made.append(self.agent.prep_xfer_dlist(agent, np.stack(columns, 1), "DRAM"))
            self.slots[key] = made
        self.local, self.remote = self.slots[key]

    def _start(self, moves: Moves) -> object:
        sources, targets = (array.astype(np.int32) for array in moves[:2])
        handle = self.agent.make_prepped_xfer("WRITE", self.local, sources, self.remote, targets)
        if self.agent.transfer(handle) == "ERR":
            raise RuntimeError("a transfer was refused")
        return handle

    def _done(self, handle: object) -> bool:
        state = self.agent.check_xfer_state(handle)
        if state == "ERR":
            raise RuntimeError("a transfer failed")
        if state == "DONE":
            self.agent.release_xfer_handle(handle)
        return bool(state == "DONE")

    def push(self, moves: Moves, together: int) -> None:
        flying: deque[object] = deque()
        posted = 0
        while flying or posted < len(moves.sources):
            while posted < len(moves.sources) and len(flying) * together < IN_FLIGHT:
                flying.append(self._start(moves.part(posted, together)))
                posted += together
            for _ in range(len(flying)):
                handle = flying.popleft()
                if not self._done(handle):
                    flying.append(handle)

    def chain(self, moves: Moves) -> None:
        handle = self._start(moves)
        while not self._done(handle):
            pass

    def serve(self, job: Job, moves: Moves, stopped: Callable[[], bool]) -> None:
        while not stopped():
            for _ in range(20):
                self.agent.get_new_notifs()


class Mooncake(Quiet):
    """Mooncake's transfer engine over TCP: batches, one after the other."""

    def __init__(self, sends: bool) -> None:
        from mooncake.engine import TransferEngine

        super().__init__(sends)
        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("it does not initialize")
        if self.engine.register_memory(self.memory.ctypes.data, PUSH_BYTES):
            raise RuntimeError("it does not register memory")

    def hello(self) -> str:
        return f"127.0.0.1:{self.engine.get_rpc_port()} {self.memory.ctypes.data}"

    def meet(self, peer: str) -> None:
        self.peer, address = peer.split(" ")
        self.address = int(address)

    def chain(self, moves: Moves) -> None:
        size = moves.length
        sources = (moves.sources * size + self.memory.ctypes.data).tolist()
        targets = (moves.targets * size + self.address).tolist()
        for first in range(0, len(sources), BATCH):
            from_, to = sources[first : first + BATCH], targets[first : first + BATCH]
            if self.engine.batch_transfer_sync_write(self.peer, from_, to, [size] * len(from_)):
                raise RuntimeError("a batch was refused, or failed")


ENDS: dict[str, Callable[[bool], End]] = {
    "one process": OneProcess,
    "shared memory": SharedMemory,
    "plain socket": PlainSocket,
    "tcp": Ours,
    "shm": OursShm,
    "nixl": Nixl,
    "nixl tcp": Nixl,
    "mooncake tcp": Mooncake,
}
