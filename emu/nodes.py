"""Emulated nodes: the timed nodes at token resolution, moving real bytes between two pools."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smartgen.cost.shaper import Land, Links
from smartgen.emu.pool import Bytes, Pool, metadata_pattern, metadata_token_bytes, pattern
from smartgen.emu.step import EmuStep, Reply
from smartgen.engine.messages import Assign, Fetch
from smartgen.experiment import Experiment
from smartgen.kv import LOCAL, PADDED, REMOTE, Geometry
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Recorder
from smartgen.nodes.meter import Meter
from smartgen.nodes.slot import Slot
from smartgen.nodes.timed_decode import TimedDecodeNode
from smartgen.nodes.timed_prefill import Pages, TimedPrefillNode, WaitingRuntime, Write
from smartgen.policy import Plan
from smartgen.workload import Request


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """What a push moves: registered regions of the prefill node, read when the NIC sends them."""

    entries: Bytes  # [L, tokens, heads, row_bytes]
    bounds: Int  # [L, M + 1], first token of each block
    metadata: Bytes  # [tokens, bytes], of the layer; nothing with a speculative push


_NOTHING: Bytes = np.empty((0, 0), dtype=np.uint8)


class EmuPrefillNode(TimedPrefillNode):
    """A prefill node that fills its pages with the pattern, layer by layer."""

    def __init__(
        self,
        runtime: WaitingRuntime,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        lands: Sequence[Land[Write]],
        recorder: Recorder,
    ) -> None:
        super().__init__(runtime, experiment, number, links, lands, recorder)
        self._moved = self._geometry  # the cache as it is moved
        self._entries: dict[int, Bytes] = {}
        self._metadata: dict[int, Bytes] = {}

    def open(self, assign: Assign, plan: Plan, peer: int) -> None:
        """Take pages."""
        super().open(assign, plan, peer)
        self._entries[assign.request_id] = self.make_entries(assign)
        self._metadata[assign.request_id] = self.make_metadata(assign)

    def make_entries(self, assign: Assign) -> Bytes:
        """A request's pages, [L, tokens, heads, row_bytes], all zero."""
        geometry = self._moved
        shape = (geometry.num_layers, assign.prompt_tokens, geometry.num_kv_heads)
        return np.zeros((*shape, geometry.row_bytes), dtype=np.uint8)

    def make_metadata(self, assign: Assign) -> Bytes:
        """Room for a request's metadata, [L, tokens, bytes of one token], all zero."""
        size = metadata_token_bytes(self._moved, self._experiment.metadata_ratio)
        return np.zeros((self._moved.num_layers, assign.prompt_tokens, size), dtype=np.uint8)

    def push(self, request_id: int, blocks: Int, layer: int | None) -> Any:
        """Make a layer's bytes once it is computed, then post."""
        if layer is not None:
            self.fill(request_id, layer)
        return super().push(request_id, blocks, layer)

    def fill(self, request_id: int, layer: int) -> None:
        """Write what a layer has computed into the request's pages, and its metadata."""
        entries, metadata = self._entries[request_id], self._metadata[request_id]
        first = int(self._moved.bounds(entries.shape[1])[layer, 0])
        tokens = np.arange(first, entries.shape[1], dtype=np.int64)
        entries[layer, first:] = pattern(self._moved, request_id, layer, tokens)
        metadata[layer, first:] = metadata_pattern(request_id, layer, tokens, metadata.shape[2])

    def payload_of_blocks(self, pages: Pages, blocks: Int, layer: int | None) -> Any:
        """The regions that the blocks and the layer's metadata are read from."""
        request_id = pages.assign.request_id
        bounds = self._geometry.bounds(pages.assign.prompt_tokens)
        metadata = _NOTHING if layer is None else self._metadata[request_id][layer]
        return Blocks(self._entries[request_id], bounds, metadata)

    def payload_of_rows(self, fetch: Fetch) -> Any:
        """For each request, its rows one after the other, [entries of all heads, row_bytes].

        A fetch may cross the word that a request's lease is over: of its wiped pages come zeros,
        which nobody attends to.
        """
        gathered = []
        for rows in fetch.rows:
            tokens = np.frombuffer(rows.index, dtype=np.int64)
            heads = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
            entries = self._entries.get(rows.request_id)
            if entries is None:
                wiped = np.zeros((len(tokens), self._moved.row_bytes), dtype=np.uint8)
                gathered.append(wiped)
            else:
                gathered.append(entries[fetch.layer, tokens, heads])
        return gathered

    def release(self, request_id: int) -> None:
        """Give the pages back, wiped, so that a late read would show."""
        for region in (
            self._entries.pop(request_id, _NOTHING),
            *self._metadata.pop(request_id, ()),
        ):
            region[:] = 0
        super().release(request_id)


@dataclass(slots=True, eq=False)
class EmuSlot(Slot):
    """A slot with its pages and its mask; tokens are those of the prompt, then generated ones."""

    pages: Int = field(kw_only=True)  # [tokens], rows of the pool
    status: NDArray[np.int8] = field(kw_only=True)  # [L, tokens], the mask


class EmuDecodeNode(TimedDecodeNode[EmuSlot]):
    """A decoding node with a pool, masks in the layout that prefill nodes write, and checks.

    Every row that is attended is compared with the pattern: a byte that came from the wrong place,
    too late, or through a page that was reused too soon ends the run.
    """

    def __init__(
        self,
        runtime: WaitingRuntime,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        meter: Meter,
        recorder: Recorder,
    ) -> None:
        super().__init__(runtime, experiment, number, links, meter, recorder)
        self.moved = self.moved_geometry()
        """The cache as it is moved."""
        num_tokens = pool_tokens(experiment)
        self.pool = self.make_pool(num_tokens)
        self.metadata = self.make_metadata(num_tokens)
        """Selector metadata by row of the pool, [L, rows, bytes of one token]."""
        self.attending: dict[int, Reply] = {}
        """What is in GPU memory for each layer."""
        self.num_checked_rows = 0
        self.checks = True
        """Whether everything that comes is compared with what it must be."""

    def moved_geometry(self) -> Geometry:
        """The cache as it is moved."""
        return self.experiment.geometry

    def make_pool(self, num_tokens: int) -> Pool:
        """Memory for so many tokens."""
        return Pool(self.moved, num_tokens)

    def make_metadata(self, num_tokens: int) -> Bytes:
        """Memory for the metadata of so many tokens."""
        size = metadata_token_bytes(self.moved, self.experiment.metadata_ratio)
        return np.zeros((self.moved.num_layers, num_tokens, size), dtype=np.uint8)

    def gather_into(self, layer: int, shape: tuple[int, int]) -> Bytes:
        """GPU memory for a layer's rows, [rows, k, row_bytes]."""
        return np.zeros((*shape, self.moved.row_bytes), dtype=np.uint8)

    def targets(self, entries: Bytes, rows: range) -> bytes:
        """Where these rows of such memory are registered, int64 each; nothing is, here."""
        return b""

    def open(self, slot: Slot) -> EmuSlot:
        """Take pages; nothing is here yet but room."""
        num_tokens, prompt_tokens = _tokens(slot.request), slot.request.prompt_tokens
        geometry = self.moved
        status = np.full((geometry.num_layers, num_tokens), PADDED, dtype=np.int8)
        for row, first in zip(status, geometry.bounds(prompt_tokens)[:, 0], strict=True):
            row[first:prompt_tokens] = REMOTE
        pages = self.pool.take(num_tokens)
        opened = EmuSlot(
            slot.number,
            slot.request,
            slot.peer,
            slot.mask,
            slot.draw,
            slot.landings,
            slot.num_undelivered,
            pages=pages,
            status=status,
        )
        self._hold(opened)
        return opened

    def _hold(self, slot: EmuSlot) -> None:
        """What is held of the prompt is copied within this node, and is local from the start.

        That is whole blocks of entries, but metadata of all tokens that are held.
        """
        request = slot.request
        if not request.held_tokens:
            return
        bounds = self.moved.bounds(request.prompt_tokens)
        is_held = self.moved.is_held(request.prompt_tokens, request.held_tokens)
        for layer, blocks in enumerate(is_held.reshape(self.moved.num_layers, -1)):
            if blocks.any():
                tokens = np.arange(bounds[layer, 0], bounds[layer, 1:][blocks][-1])
                entries = pattern(self.moved, request.request_id, layer, tokens)
                self.pool.entries[layer, slot.pages[tokens]] = entries
                slot.status[layer, tokens] = LOCAL
            held = np.arange(bounds[layer, 0], request.held_tokens, dtype=np.int64)
            metadata = self._right_metadata(slot, layer, held)
            self.metadata[layer, slot.pages[held]] = metadata

    def release(self, slot: int) -> None:
        """Give the pages back to the pool."""
        self.pool.give(self.slots[slot].pages)
        super().release(slot)

    def store(self, slot: EmuSlot, write: Write, blocks: Int) -> None:
        """Blocks have come; planned ones also write their mask values."""
        self.copy_in(slot, write, blocks)
        if write.parcel.layer is not None:
            self.take_in(slot, blocks)
            self.check_metadata(slot, write.parcel.layer)

    def copy_in(self, slot: EmuSlot, write: Write, blocks: Int) -> None:
        """Copy blocks from the prefill node's region."""
        payload: Blocks = write.payload
        for layer, first, stop in self.ranges(payload.bounds, blocks):
            self.pool.entries[layer, slot.pages[first:stop]] = payload.entries[layer, first:stop]
        layer_sent = write.parcel.layer
        if layer_sent is not None:
            first = max(slot.request.held_tokens, int(payload.bounds[layer_sent, 0]))
            pages = slot.pages[first : slot.request.prompt_tokens]
            self.metadata[layer_sent, pages] = payload.metadata[first:]

    def take_in(self, slot: EmuSlot, blocks: Int) -> None:
        """The mask WRITE of blocks."""
        bounds = self.moved.bounds(slot.request.prompt_tokens)
        for layer, first, stop in self.ranges(bounds, blocks):
            slot.status[layer, first:stop] = LOCAL

    def check_metadata(self, slot: EmuSlot, layer: int) -> None:
        """Compare a layer's metadata, which are here, with what the prefill node made."""
        if not self.checks:
            return
        first = int(self.moved.bounds(slot.request.prompt_tokens)[layer, 0])
        tokens = np.arange(first, slot.request.prompt_tokens, dtype=np.int64)
        here = self.metadata[layer, slot.pages[tokens]]
        wrong = (here != self._right_metadata(slot, layer, tokens)).any(axis=1)
        if wrong.any():
            raise RuntimeError(
                f"request {slot.request.request_id}, layer {layer}: wrong metadata arrived of "
                f"{np.count_nonzero(wrong)} of {len(tokens)} tokens, first of token "
                f"{tokens[wrong][0]}"
            )

    def _right_metadata(self, slot: EmuSlot, layer: int, tokens: Int) -> Bytes:
        size = self.metadata.shape[2]
        return metadata_pattern(slot.request.request_id, layer, tokens, size)

    def see(self, slot: EmuSlot, blocks: Int) -> None:
        """The mask takes in speculative blocks."""
        super().see(slot, blocks)
        self.take_in(slot, blocks)

    def store_rows(self, write: Write) -> None:
        """Rows of a reply go to the start of the rows that wait for them."""
        assert write.parcel.layer is not None
        waiting = self.attending[write.parcel.layer]
        for slot, rows in zip(write.parcel.slots, write.payload, strict=True):
            waiting.receive(slot, rows)

    def step(self) -> EmuStep:
        """Make an iteration."""
        return EmuStep(self)

    def ranges(self, bounds: Int, blocks: Int) -> list[tuple[int, int, int]]:
        """Layer, first token and last but one of blocks."""
        per_layer = self.moved.blocks_per_layer
        layers, within = np.divmod(blocks, per_layer)
        firsts, stops = bounds[layers, within], bounds[layers, within + 1]
        return list(zip(layers.tolist(), firsts.tolist(), stops.tolist(), strict=True))


def digest(geometry: Geometry, entries: Bytes) -> bytes:
    """A hash of what is cached of a request's prompt, [L, tokens, heads, row_bytes]."""
    found = hashlib.blake2b(digest_size=16)
    firsts = geometry.bounds(entries.shape[1])[:, 0]
    for layer, first in zip(entries, firsts, strict=True):
        found.update(layer[first:].tobytes())
    return found.digest()


def pool_tokens(experiment: Experiment) -> int:
    """Room of a decoding node, in tokens: its capacity, or all requests at once."""
    capacity = experiment.cluster.decode_pool_tokens
    return sum(map(_tokens, experiment.requests)) if capacity is None else capacity


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.output_tokens
