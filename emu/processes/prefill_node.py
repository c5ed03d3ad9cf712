"""A prefill node whose pages are registered memory, and whose postings leave the process."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from smartgen.cost.shaper import Posting
from smartgen.emu.nodes import EmuPrefillNode, digest
from smartgen.emu.pool import Bytes
from smartgen.emu.processes.arena import Chain, Layout, Road, checksums_of, join, rows_of
from smartgen.emu.processes.sender import Answer, Push, Sender, answer_to
from smartgen.emu.runtime import EmuRuntime
from smartgen.emu.settings import Settings
from smartgen.emu.transports.protocol import Memory
from smartgen.engine.messages import Assign, Fetch
from smartgen.engine.protocols import Event
from smartgen.errors import RequestFailed
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Recorder
from smartgen.nodes import timed_prefill
from smartgen.nodes.timed_prefill import Write


class ProcessPrefillNode(EmuPrefillNode):
    """Writes into the arena of the decoding process; a request whose push is refused fails."""

    def __init__(
        self,
        runtime: EmuRuntime,
        experiment: Experiment,
        number: int,
        sender: Sender,
        recorder: Recorder,
        here: Layout,
        there: Layout,
        memory: Memory,
        settings: Settings,
    ) -> None:
        super().__init__(runtime, experiment, number, sender, [_nothing], recorder)
        self._moved = here.geometry
        self._here, self._there = here, there
        self._checksum, self._digests = settings.checksum, settings.check
        self._all_entries = here.entries(memory)
        self._all_metadata = here.metadata(memory)
        self._num_rows = 0  # pages are taken one after the other, and not again
        self._first_rows: dict[int, int] = {}  # by request, where its pages are here
        self._slots: dict[int, Int] = {}  # by slot, its pages there
        self._failing: dict[int, Event] = {}
        self.digests: dict[int, bytes] = {}
        """Of every request's pages, as they were when they were given back."""
        self._reasons: dict[int, str] = {}

    # -- what the decoding process says

    def address(self, slot: int, extents: Sequence[tuple[int, int]]) -> None:
        """Where a slot's pages are."""
        self._slots[slot] = rows_of(extents)

    def fail(self, request_id: int, reason: str) -> None:
        """A request cannot be finished; its prefill, or the watch over it, finds out."""
        self._reasons.setdefault(request_id, reason)
        self._failed(request_id).set()

    # -- the life of pages

    def make_entries(self, assign: Assign) -> Bytes:
        """Pages of the arena, in one run."""
        first = self._first_rows[assign.request_id] = self._num_rows
        self._num_rows += assign.prompt_tokens
        return self._all_entries[:, first : self._num_rows]

    def make_metadata(self, assign: Assign) -> Bytes:
        """The arena's, of the same rows."""
        first = self._first_rows[assign.request_id]
        return self._all_metadata[:, first : first + assign.prompt_tokens]

    def release(self, request_id: int) -> None:
        """Give the pages back, wiped."""
        if request_id in self._entries and self._digests:
            self.digests[request_id] = digest(self._moved, self._entries[request_id])
        super().release(request_id)
        self._first_rows.pop(request_id, None)
        self._failing.pop(request_id, None)
        self._reasons.pop(request_id, None)

    async def compute_layer(self, request_id: int, layer: int) -> None:
        """Compute it, unless a push of an earlier one was refused."""
        await super().compute_layer(request_id, layer)
        if request_id in self._reasons:
            raise RequestFailed(self._reasons[request_id])

    async def leased(self, request_id: int) -> None:
        """Wait while the lease lasts and nothing fails."""
        await self._runtime.gather(super().leased(request_id), self._wait_failed(request_id))

    async def _wait_failed(self, request_id: int) -> None:
        await self._failed(request_id).wait()
        raise RequestFailed(self._reasons[request_id])

    def _failed(self, request_id: int) -> Event:
        if request_id not in self._failing:
            self._failing[request_id] = self._runtime.event()
        return self._failing[request_id]

    # -- what is moved

    def payload_of_blocks(self, pages: timed_prefill.Pages, blocks: Int, layer: int | None) -> Push:
        """A chain of WRITEs, block by block, then the layer's metadata."""
        bounds = self._moved.bounds(pages.assign.prompt_tokens)
        layers, within = np.divmod(blocks, self._moved.blocks_per_layer)
        firsts, stops = bounds[layers, within], bounds[layers, within + 1]
        checksums = b""
        if self._checksum:
            entries = self._entries[pages.assign.request_id]
            checksums = checksums_of(entries, layers, firsts, stops)
        chain = partial(self._chain, pages.assign, layers, firsts, stops, layer)
        return Push(chain, checksums)

    def _chain(
        self, assign: Assign, layers: Int, firsts: Int, stops: Int, layer: int | None
    ) -> Chain:
        rows = self._slots[assign.slot]
        road = Road(self._here, self._there, self._first_rows[assign.request_id], rows)
        chain = road.blocks(layers, firsts, stops)
        if layer is None:
            return chain
        first = max(assign.held_tokens, int(self._moved.bounds(assign.prompt_tokens)[layer, 0]))
        return join(chain, road.metadata(layer, first, assign.prompt_tokens))

    def payload_of_rows(self, fetch: Fetch) -> Answer:
        """Rows one after the other, and where they go."""
        return answer_to(fetch, super().payload_of_rows(fetch), self._moved.row_bytes)


def _nothing(posting: Posting[Write], first: int, stop: int) -> None:
    """What has landed is the decoding process's to note."""
