"""One emulated decoding iteration: indices, masks and rows of real bytes; the cost model's time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from smartgen.emu.pool import Bytes, pattern
from smartgen.engine.messages import Rows
from smartgen.kv import LOCAL, PADDED, split_index
from smartgen.kv.geometry import Int
from smartgen.nodes.timed_step import TimedStep
from smartgen.selection import BlockDraw

if TYPE_CHECKING:
    from smartgen.emu.nodes import EmuDecodeNode, EmuSlot


@dataclass(slots=True, eq=False)
class Reply:
    """A layer's rows in GPU memory, remote entries first in each; heads of a slot are adjacent."""

    slots: list[EmuSlot]
    index: Int  # [rows, k]
    num_remote: Int  # [rows]
    num_local: Int  # [rows]
    entries: Bytes  # [rows, k, row_bytes]
    num_heads: int
    received: set[int] = field(default_factory=set)

    def rows_of(self, slot: int) -> range:
        """The rows of a slot."""
        at = [s.number for s in self.slots].index(slot)
        return range(at * self.num_heads, (at + 1) * self.num_heads)

    def num_remote_of(self, slot: int) -> int:
        """Remote entries of a slot, over all its rows."""
        rows = self.rows_of(slot)
        return int(self.num_remote[rows.start : rows.stop].sum())

    def in_place(self, slot: int) -> None:
        """The remote entries of a slot are where they belong."""
        if slot in self.received:
            raise RuntimeError(f"the rows of slot {slot} were delivered twice")
        self.received.add(slot)

    def receive(self, slot: int, rows: Bytes) -> None:
        """Scatter fetched entries over the starts of a slot's rows."""
        self.in_place(slot)
        start = 0
        for row in self.rows_of(slot):
            stop = start + int(self.num_remote[row])
            self.entries[row, : self.num_remote[row]] = rows[start:stop]
            start = stop


class Row(NamedTuple):
    """What one KV head of a request attends in a layer."""

    slot: EmuSlot
    head: int
    tokens: Int  # [k]
    entries: Bytes  # [k, row_bytes]


class EmuStep(TimedStep["EmuSlot"]):
    """An iteration that gathers, splits, receives and checks."""

    _node: EmuDecodeNode

    def __init__(self, node: EmuDecodeNode) -> None:
        super().__init__(node)
        self._geometry = node.moved
        self._slots = node.batch.slots
        self._generated = [node.batch.generated(slot) for slot in self._slots]

    # -- selection and split

    def remote_rows(self, layer: int) -> list[tuple[int, Rows]]:
        """Expand the draws into an index, look it up in the masks, order remote entries first."""
        num_heads = self._geometry.num_kv_heads
        index, mask = self.index(layer), self._mask(layer)
        padded = np.full((len(index), max(len(row) for row in index)), mask.shape[1] - 1)
        for row, tokens in enumerate(index):
            padded[row, : len(tokens)] = tokens
        cut = split_index(padded.astype(np.int64), mask, num_heads)
        drops = self._node.experiment.policy.lanes == "none"
        entries = self._node.gather_into(layer, cut.index.shape)
        self._node.attending[layer] = Reply(
            list(self._slots), cut.index, cut.num_remote, cut.num_local, entries, num_heads
        )
        found = []
        for at, slot in enumerate(self._slots):
            rows = range(at * num_heads, (at + 1) * num_heads)
            lengths = tuple(int(cut.num_remote[row]) for row in rows)
            if sum(lengths):
                tokens = np.concatenate([cut.index[row, : cut.num_remote[row]] for row in rows])
                wanted = Rows(slot.request.request_id, slot.number, sum(lengths) / num_heads)
                if not drops:
                    targets = self._node.targets(entries, rows)
                    wanted = replace(
                        wanted, lengths=lengths, index=tokens.tobytes(), targets=targets
                    )
                found.append((slot.peer, wanted))
        return found

    def index(self, layer: int) -> list[Int]:
        """Selected tokens of every row: each head takes its own tokens of a block cut short."""
        rows = []
        for slot, new in zip(self._slots, self._generated, strict=True):
            draw, prompt_tokens = slot.draw, slot.request.prompt_tokens
            step = self._batch.step_of(slot)
            assert isinstance(draw, BlockDraw)
            counts = draw.counts(step)[layer]
            selected = int(draw.selected_at(new)[layer]) - int(draw.selected[layer])
            recent = np.arange(prompt_tokens + new - selected, prompt_tokens + new)
            rng = np.random.default_rng(
                [self._node.experiment.seed, 4, slot.request.request_id, step, layer]
            )
            reached = prompt_tokens - int(self._geometry.reach(prompt_tokens)[layer])
            bounds = np.maximum(self._geometry.bounds(prompt_tokens)[layer], reached)
            tokens = expand(counts, bounds, self._geometry.num_kv_heads, rng)
            rows += [np.concatenate([row, recent]) for row in tokens]
        return rows

    def _mask(self, layer: int) -> NDArray[np.int8]:
        """Masks of the batch, [batch, tokens + 1]; the last column is what padding points at."""
        width = max(slot.status.shape[1] for slot in self._slots) + 1
        mask = np.full((len(self._slots), width), PADDED, dtype=np.int8)
        for row, slot in zip(mask, self._slots, strict=True):
            row[: slot.status.shape[1]] = slot.status[layer]
            if slot.landings.flushed:  # nobody is asked for a request that is gone
                row[: slot.request.prompt_tokens] = LOCAL
        return mask

    # -- lanes and attention

    def move_all(self) -> None:
        """Select, gather and check every layer."""
        for layer in range(self._geometry.num_layers):
            if self._node.experiment.policy.selects:
                self.remote_rows(layer)
                self.load_rows(layer)
            self.use_rows(layer)

    def load_rows(self, layer: int) -> None:
        """Gather local entries behind where the remote ones belong."""
        attending = self._node.attending[layer]
        for at, slot in enumerate(attending.slots):
            for head in range(attending.num_heads):
                row = at * attending.num_heads + head
                first = attending.num_remote[row]
                stop = first + attending.num_local[row]
                pages = slot.pages[attending.index[row, first:stop]]
                rows = self._node.pool.entries[layer, pages, head]
                attending.entries[row, first:stop] = rows

    def use_rows(self, layer: int) -> None:
        """Check every attended row against what the prefill node computed."""
        for row in self.attended(layer):
            if self._node.checks:
                self._check(row, layer)

    def attended(self, layer: int) -> Iterator[Row]:
        """The rows that a layer attends, slot by slot and head by head; the layer is then over.

        Where nothing was selected (nothing ever is, or a layer came whole with the handover), these
        are all entries there are. Requests that are gone have none.
        """
        attending = self._node.attending.pop(layer, None)
        for slot in self._slots:
            if slot.landings.flushed:
                continue
            if attending is not None and slot in attending.slots:
                yield from self._brought(attending, slot)
                continue
            tokens = np.flatnonzero(slot.status[layer] != PADDED)
            for head in range(self._geometry.num_kv_heads):
                entries = self._node.pool.entries[layer, slot.pages[tokens], head]
                yield Row(slot, head, tokens, entries)

    def _brought(self, attending: Reply, slot: EmuSlot) -> Iterator[Row]:
        drops = self._node.experiment.policy.lanes == "none"
        for head, row in enumerate(attending.rows_of(slot.number)):
            first = int(attending.num_remote[row]) if drops else 0
            stop = int(attending.num_remote[row] + attending.num_local[row])
            tokens = attending.index[row, first:stop]
            yield Row(slot, head, tokens, attending.entries[row, first:stop])

    def _check(self, row: Row, layer: int) -> None:
        slot, head, tokens, entries = row
        heads = np.full(tokens.shape, head, dtype=np.int64)
        right = pattern(self._geometry, slot.request.request_id, layer, tokens, heads)
        wrong = np.flatnonzero((entries != right).any(axis=-1))
        if len(wrong):
            raise RuntimeError(
                f"request {slot.request.request_id}, layer {layer}, head {head}: {len(wrong)} of "
                f"{len(tokens)} attended rows hold wrong bytes, first at token {tokens[wrong[0]]}"
            )
        self._node.num_checked_rows += len(tokens)

    def append_tokens(self) -> None:
        """Write the generated entry of every request, in every layer; it is local at once."""
        if not self._node.experiment.workload.grows:
            return
        for slot, new in zip(self._slots, self._generated, strict=True):
            token = slot.request.prompt_tokens + new
            for layer in range(self._geometry.num_layers):
                entry = pattern(self._geometry, slot.request.request_id, layer, np.array([token]))
                self._node.pool.entries[layer, slot.pages[token]] = entry[0]
                slot.status[layer, token] = LOCAL


def expand(counts: Int, bounds: Int, num_rows: int, rng: np.random.Generator) -> Int:
    """Tokens of rows, [num_rows, k]: so many of each block as counts says.

    Of a block cut short each row takes neighbours, from a place that is drawn by rng, around its
    end if need be: which ones they are is nobody's business, only that rows differ.
    """
    taken = np.flatnonzero(counts)
    counts, firsts, sizes = counts[taken], bounds[taken], np.diff(bounds)[taken]
    block = np.repeat(np.arange(len(taken)), counts)  # [k]
    within = np.arange(len(block)) - (np.cumsum(counts) - counts)[block]
    places = rng.integers(0, np.iinfo(np.int32).max, (num_rows, len(taken))) % sizes
    return firsts[block] + (places[:, block] + within) % sizes[block]
