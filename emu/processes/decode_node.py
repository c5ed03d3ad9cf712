"""A decoding node whose pool, masks and buffers are registered memory that peers write into."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from smartgen.cost.shaper import Posting
from smartgen.emu.nodes import EmuDecodeNode, EmuSlot, digest
from smartgen.emu.pool import Bytes, Pool
from smartgen.emu.processes.arena import Layout, checksums_of, extents_of
from smartgen.emu.processes.arrivals import Arrivals, Coming, Tell
from smartgen.emu.processes.layouts import BUFFERS, num_buffers
from smartgen.emu.processes.receiver import Receiver
from smartgen.emu.processes.words import Address
from smartgen.emu.runtime import EmuRuntime
from smartgen.emu.settings import Settings
from smartgen.emu.step import EmuStep
from smartgen.emu.transports.protocol import Memory
from smartgen.engine.messages import Fetch, Rows
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Geometry, Int
from smartgen.metrics.records import Recorder
from smartgen.nodes.meter import Meter
from smartgen.nodes.slot import Slot
from smartgen.nodes.timed_prefill import Write
from smartgen.policy import Plan
from smartgen.workload import Request


class ProcessStep(EmuStep):
    """An iteration that posts receives before it asks for rows."""

    _node: "ProcessDecodeNode"

    def _fetches(
        self, layer: int, fetch_id: int, peers: Mapping[int, list[Rows]]
    ) -> list[tuple[int, Fetch]]:
        fetches = super()._fetches(layer, fetch_id, peers)
        for peer, fetch in fetches:
            self._node.receivers[peer].expect(fetch, self._node.moved.row_bytes)
        return fetches


class ProcessDecodeNode(EmuDecodeNode):
    """Bytes are in place when they count as landed; the mask is what peers have written.

    A lost peer that may still be alive can write into shared memory at any time: what it was told
    to write to stays in quarantine for good. failed is told of a request whose bytes are wrong, and
    why.
    """

    def __init__(
        self,
        runtime: EmuRuntime,
        experiment: Experiment,
        arrivals: Arrivals,
        meter: Meter,
        recorder: Recorder,
        layout: Layout,
        memory: Memory,
        settings: Settings,
        tell: Tell,
        receivers: Mapping[int, Receiver],
        failed: Callable[[int, str], None],
    ) -> None:
        self._layout, self._memory, self._tell = layout, memory, tell
        self._buffer_bytes = layout.gather_bytes // num_buffers(experiment, settings)
        super().__init__(runtime, experiment, 0, arrivals, meter, recorder)
        self._written = layout.mask(memory).view(np.int8)
        gathered = memory[layout.gather_at :][: self._buffer_bytes * BUFFERS]
        self._buffers = np.split(gathered, BUFFERS)
        self._num_gathers = 0
        self.receivers, self._failed = receivers, failed
        """By peer, who posts receives for its replies."""
        self._quarantined: set[int] = set()
        self.suspects: set[int] = set()
        """Lost peers that may still write."""
        self.digests: dict[int, bytes] = {}
        """Of the prompt of every request that was all here when it ended."""
        self.checks = settings.check
        self._corrupt: set[int] = set()

    # -- memory

    def moved_geometry(self) -> Geometry:
        """The cache as it is moved."""
        return self._layout.geometry

    def make_pool(self, num_tokens: int) -> Pool:
        """The arena's entries."""
        return Pool(self.moved, num_tokens, self._layout.entries(self._memory))

    def make_metadata(self, num_tokens: int) -> Bytes:
        """The arena's."""
        return self._layout.metadata(self._memory)

    def gather_into(self, layer: int, shape: tuple[int, int]) -> Bytes:
        """One buffer after the other: a layer's rows are attended before its turn comes again."""
        self._num_gathers += 1
        buffer = self._buffers[self._num_gathers % BUFFERS]
        size = shape[0] * shape[1] * self.moved.row_bytes
        if self.checks:  # what nobody writes must not be right from last time
            buffer[:size] = 0xFF
        return buffer[:size].reshape(*shape, self.moved.row_bytes)

    def targets(self, entries: Bytes, rows: range) -> bytes:
        """Offsets within the arena."""
        at = entries.ctypes.data - self._memory.ctypes.data
        return (at + np.arange(rows.start, rows.stop) * entries.strides[0]).tobytes()

    async def reserve(self, request: Request, peer: int, plan: Plan) -> int:
        """Wait for room; the peer is told where it may write before it is told to."""
        number = await super().reserve(request, peer, plan)
        self._tell(peer, Address(number, extents_of(self.slots[number].pages)))
        return number

    def open(self, slot: Slot) -> EmuSlot:
        """Take pages; their mask says what is here, which is what is held, if anything."""
        opened = super().open(slot)
        self._written[:, opened.pages] = opened.status
        return opened

    def release(self, slot: int) -> None:
        """Give the pages back, unless somebody may still write into them."""
        held = self.slots[slot]
        if held.complete and self.checks and slot not in self._corrupt:
            prompt = held.pages[: held.request.prompt_tokens]
            self.digests[held.request.request_id] = digest(self.moved, self.pool.entries[:, prompt])
        if held.peer in self.suspects and not held.complete:
            del self.slots[slot]
            self._quarantined.add(slot)
            self._room.lose(held.request.prompt_tokens + held.request.output_tokens)
            return
        super().release(slot)

    # -- what lands

    def copy_in(self, slot: EmuSlot, write: Write, blocks: Int) -> None:
        """The bytes are here; compare their checksums, if there are any."""
        coming: Coming = write.payload
        if not coming.checksums:
            return
        told = np.frombuffer(coming.checksums, dtype=np.uint32)[np.isin(write.blocks, blocks)]
        bounds = self.moved.bounds(slot.request.prompt_tokens)
        layers, within = np.divmod(blocks, self.moved.blocks_per_layer)
        firsts, stops = bounds[layers, within], bounds[layers, within + 1]
        found = np.frombuffer(
            checksums_of(self.pool.entries, layers, firsts, stops, slot.pages), dtype=np.uint32
        )
        wrong = np.flatnonzero(told != found)
        if len(wrong):
            reason = f"block {blocks[wrong[0]]} is not what its checksum says"
            self._corrupt.add(slot.number)
            self._failed(slot.request.request_id, reason)

    def take_in(self, slot: EmuSlot, blocks: Int) -> None:
        """Look at what the peer has written into the mask."""
        bounds = self.moved.bounds(slot.request.prompt_tokens)
        for layer, first, stop in self.ranges(bounds, blocks):
            slot.status[layer, first:stop] = self._written[layer, slot.pages[first:stop]]

    def store_rows(self, write: Write) -> None:
        """Rows of a reply are where they belong, or in the staging memory."""
        assert write.parcel.layer is not None and write.fetch_id is not None
        waiting = self.attending[write.parcel.layer]
        staged = self.receivers[write.peer].staged(write.fetch_id)
        for slot in write.parcel.slots:
            if staged is None:
                waiting.in_place(slot)
            else:
                size = waiting.num_remote_of(slot) * self.moved.row_bytes
                waiting.receive(slot, staged[:size].reshape(-1, self.moved.row_bytes))
                staged = staged[size:]

    def land(self, posting: Posting[Write], first: int, stop: int) -> None:
        """Pieces have arrived; what lands for a slot in quarantine is nobody's."""
        if self._quarantined.isdisjoint(posting.write.parcel.slots):
            super().land(posting, first, stop)

    def step(self) -> ProcessStep:
        """Make an iteration."""
        return ProcessStep(self)

    def lost(self, peer: int, dropped: Sequence[Posting[Write]], may_write: bool) -> None:
        """A peer is gone, and with it what it had posted."""
        self.drop(dropped)
        if may_write:
            self.suspects.add(peer)
