"""One simulated decoding iteration: counts at block resolution, durations from the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smartgen.engine.messages import Fetch, Rows
from smartgen.metrics.records import IterationRow, Purpose, TokenRow
from smartgen.nodes.timing import StepTimer
from smartgen.sim.runtime import Wait

if TYPE_CHECKING:
    from smartgen.sim.decode_node import Pending, SimDecodeNode, Slot


@dataclass(slots=True, eq=False)
class SimSplit:
    """A layer's selection: what must be fetched from whom, and what is loaded."""

    layer: int
    local_entries: float
    rows: dict[int, list[Rows]] = field(default_factory=dict)
    pending: Pending | None = None

    @property
    def remote(self) -> bool:
        """Whether anything must be fetched."""
        return bool(self.rows)


class SimStep:
    """An iteration of a batch. Entries are counted over all KV heads."""

    def __init__(
        self, node: SimDecodeNode, slots: Sequence[Slot], steps: Sequence[int], number: int
    ) -> None:
        experiment = node.experiment
        self._node, self._slots, self._steps, self._number = node, slots, steps, number
        self._runtime = node.runtime
        self._entry_bytes = experiment.geometry.entry_bytes
        grows = experiment.workload.grows
        generated = [step - 1 if grows else 0 for step in steps]
        self._cached = [
            slot.request.prompt_tokens + new for slot, new in zip(slots, generated, strict=True)
        ]
        selected = sum(
            slot.draw.selected_at(new) for slot, new in zip(slots, generated, strict=True)
        )
        self._selected: list[float] = selected.tolist()  # type: ignore[union-attr]  # [L]
        self._attended = list(self._selected)
        self._left = [slot for slot in slots if not slot.complete]
        self._timer = StepTimer(experiment.cost, self._runtime.now, sum(self._cached))
        self._remote_entries = self._local_entries = 0.0
        self._num_messages = 0

    @property
    def remote(self) -> bool:
        """Whether anything is still remote or in flight."""
        return bool(self._left)

    @property
    def incomplete(self) -> list[int]:
        """Requests of which blocks are missing."""
        return [slot.request.request_id for slot in self._left]

    def run_local(self) -> Wait:
        """The whole iteration in one go."""
        experiment = self._node.experiment
        if experiment.policy.selects:
            sizes = [entries * self._entry_bytes for entries in self._selected]
            self._local_entries = sum(self._selected)
            parts = experiment.cost.local_step(sizes, sum(self._cached))
        else:
            layer_bytes = self._entry_bytes * experiment.geometry.num_layers
            sizes = [tokens * layer_bytes for tokens in self._cached]
            parts = experiment.cost.gpu_step(sum(sizes), max(sizes), experiment.policy.codec)
        return self._runtime.after(self._timer.local(parts))

    # -- acts of a layer

    def project(self, layer: int) -> Wait:
        """Launches and projections."""
        return self._runtime.after(self._timer.project(self._runtime.now))

    def in_flight(self, layer: int) -> bool:
        """Whether planned pushes of the layer are still to come."""
        return any(slot.landings.in_flight(layer) for slot in self._left)

    async def landed(self, layer: int) -> None:
        """Wait for the layer's planned pushes."""
        for slot in self._left:
            await slot.landings.layer(layer)
        self._timer.arrived(self._runtime.now)

    def select(self, layer: int) -> Wait:
        """Selection over all cached tokens."""
        return self._runtime.after(self._timer.select(self._runtime.now))

    def split(self, layer: int) -> SimSplit:
        """Draw what the layer selects and count what of it is remote."""
        node = self._node
        if node.live and self._left:
            node.shaper.settle()
        split = SimSplit(layer, self._selected[layer])
        for slot, step in zip(self._slots, self._steps, strict=True):
            if slot.mask.left[layer] == 0 or slot.landings.flushed:
                remote = 0.0
            else:
                remote = slot.draw.remote(step, layer, slot.mask)
            if remote > 0:
                rows = Rows(slot.request.request_id, slot.number, remote)
                split.rows.setdefault(slot.peer, []).append(rows)
                split.local_entries -= remote
            node.recorder.decide("split", slot.request.request_id, step, layer, remote)
        split.local_entries = max(0.0, split.local_entries)  # fractions may round below nothing
        self._local_entries += split.local_entries
        if node.experiment.policy.lanes == "none":
            self._attended[layer] = split.local_entries
        return split

    def load(self, split: SimSplit) -> Wait:
        """The local lane."""
        size = split.local_entries * self._entry_bytes
        return self._runtime.after(self._timer.load(self._runtime.now, size, split.layer))

    def fetch(self, split: SimSplit) -> list[tuple[int, Fetch]]:
        """One request for rows a prefill node."""
        peers = {peer: rows for peer, rows in split.rows.items() if peer not in self._node.lost}
        if not peers:
            return []
        fetch_id, split.pending = self._node.expect(set(peers))
        self._num_messages += len(peers)
        self._remote_entries += sum(row.entries for rows in peers.values() for row in rows)
        return [
            (peer, Fetch(fetch_id, split.layer, tuple(rows))) for peer, rows in peers.items()
        ]

    async def fetched(self, split: SimSplit) -> None:
        """Wait for the replies."""
        if split.pending is not None:
            await split.pending.event
            self._timer.replied(self._runtime.now, split.pending.waited_s)

    def attend(self, layer: int) -> Wait:
        """Attention over what the layer has selected."""
        size = self._attended[layer] * self._entry_bytes
        return self._runtime.after(self._timer.attend(self._runtime.now, size))

    def feed_forward(self, layer: int) -> Wait:
        """The layer's feed-forward."""
        return self._runtime.after(self._timer.feed_forward(self._runtime.now))

    def logits(self) -> Wait:
        """The language-model head."""
        return self._runtime.after(self._timer.head(self._runtime.now))

    def close(self) -> None:
        """Report the iteration and its tokens."""
        node, now = self._node, self._runtime.now
        landed, node.landed_bytes = node.landed_bytes, dict.fromkeys(node.landed_bytes, 0.0)
        row = IterationRow(
            decode_node=node.name,
            iteration=self._number,
            start_s=self._timer.start_s,
            end_s=now,
            batch_size=len(self._slots),
            cached_tokens=sum(self._cached),
            shares=self._timer.shares(now),
            selected_entries=sum(self._selected),
            remote_entries=self._remote_entries,
            local_bytes=round(self._local_entries * self._entry_bytes),
            on_demand_bytes=round(landed[Purpose.ON_DEMAND]),
            speculative_bytes=round(landed[Purpose.SPECULATIVE]),
            messages=self._num_messages,
            remote_blocks_left=sum(slot.num_left for slot in self._slots),
        )
        node.recorder.iterations.append(row)
        for slot, step in zip(self._slots, self._steps, strict=True):
            token = TokenRow(slot.request.request_id, step + 1, now, self._number, None)
            node.recorder.tokens.append(token)


