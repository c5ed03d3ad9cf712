"""An iteration in the cost model's time; a backend says what is remote, and moves it."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from smartgen.engine.messages import Fetch, Rows
from smartgen.metrics.records import ActRow, IterationRow, Purpose
from smartgen.nodes.replies import Awaited, interference_s
from smartgen.nodes.timed_decode import S, TimedDecodeNode
from smartgen.nodes.timing import StepTimer
from smartgen.policy import Observation


@dataclass(slots=True, eq=False)
class TimedSplit:
    """A layer's selection: what is loaded, and what must be fetched from which peer."""

    layer: int
    local_entries: float
    rows: dict[int, list[Rows]] = field(default_factory=dict)
    awaited: Awaited | None = None
    fetch_id: int = 0

    @property
    def remote(self) -> bool:
        """Whether anything must be fetched."""
        return bool(self.rows)


class TimedStep(Generic[S]):
    """An iteration of a batch. Entries are counted over all KV heads."""

    def __init__(self, node: TimedDecodeNode[S]) -> None:
        experiment, batch = node.experiment, node.batch
        self._node, self._batch, self._runtime = node, batch, node.runtime
        self._entry_bytes = experiment.geometry.entry_bytes
        self._reached = batch.reached  # [L]
        self._selected = batch.selected(self._reached)  # [L]
        self._selected_entries = float(self._selected.sum())
        self._left = batch.incomplete
        self._awaited = [slot for slot in self._left if slot.landings.num_in_flight]
        self.start_s = self._runtime.now
        self.restart()

    def restart(self) -> None:
        """Begin from the start, with nothing done yet."""
        self._timer = StepTimer(self._node.experiment.cost, self.start_s)
        if self._left:
            self._timer.prepare(self._reached, len(self._batch))
            self._wanted: list[float] = self._selected.tolist()
        self._attended: dict[int, float] = {}  # where less than what is selected is attended
        self._remote_entries = self._local_entries = 0.0
        self._num_messages = 0
        self._starts_s: list[float] = []  # of the layers, where an observer wants to know

    def _take(self, act: str, layer: int | None, seconds: float) -> Awaitable[Any]:
        """Begin an act that takes so long."""
        runtime = self._runtime
        if self._node.recorder.wants_acts:
            self._keep_until(act, layer, runtime.now, runtime.now + seconds)
        return runtime.after(seconds)

    def _keep(self, act: str, layer: int, start_s: float) -> None:
        """Keep an act that is over now, if it took any time and acts are wanted."""
        if self._node.recorder.wants_acts and self._runtime.now > start_s:
            self._keep_until(act, layer, start_s, self._runtime.now)

    def _keep_until(self, act: str, layer: int | None, start_s: float, end_s: float) -> None:
        node = self._node
        row = ActRow(node.name, self._batch.iteration, layer, act, start_s, end_s)
        node.recorder.act(row)

    # -- what a backend adds

    def remote_rows(self, layer: int) -> list[tuple[int, Rows]]:
        """The layer's remote entries, by slot: the peer that has them, and which they are."""
        raise NotImplementedError

    def load_rows(self, layer: int) -> None:
        """Gather what of the layer is local."""

    def use_rows(self, layer: int) -> None:
        """Attend over what was loaded and fetched."""

    def move_all(self) -> None:
        """Select, gather and attend in every layer, nothing being remote."""

    def append_tokens(self) -> None:
        """Keep the entries that this iteration has generated."""

    # -- the whole iteration at once

    @property
    def remote(self) -> bool:
        """Whether anything is still remote or in flight."""
        return bool(self._left)

    @property
    def incomplete(self) -> list[int]:
        """Requests of which blocks are missing."""
        return [slot.request.request_id for slot in self._left]

    @property
    def lacks_first_layer(self) -> bool:
        """Whether blocks of layer 0 are missing for a request that takes its first step."""
        return any(
            self._batch.step_of(slot) == 1
            and slot.mask.lacks_first_layer
            and not slot.landings.flushed
            for slot in self._left
        )

    def observe(self, requests: Sequence[int]) -> Observation:
        """What the node has seen of its last iteration, and what of these requests is missing."""
        observer = self._node.observer
        assert observer is not None
        asked = frozenset(requests)
        here = [
            slot
            for slot in self._left
            if slot.request.request_id in asked and not slot.landings.num_in_flight
        ]
        return Observation(
            observer.layer_s,
            observer.busy_s,
            observer.block_s,
            tuple(slot.request.request_id for slot in here),
            tuple(slot.num_left for slot in here),
        )

    def perform(self, acts: Callable[[], Coroutine[Any, Any, None]]) -> Awaitable[None]:
        """Carry out the acts as they come."""
        return acts()

    def run_local(self) -> Awaitable[Any]:
        """The whole iteration in one go."""
        experiment, batch = self._node.experiment, self._batch
        self.move_all()
        if experiment.policy.selects:
            self._local_entries = self._selected_entries
            sizes = self._selected * self._entry_bytes
            parts = experiment.cost.local_step(sizes, self._reached, len(batch))
        else:
            parts = experiment.cost.gpu_step(
                int(self._reached.sum()) * self._entry_bytes,
                int(experiment.geometry.reach(batch.longest_tokens).sum()) * self._entry_bytes,
                len(batch),
                experiment.policy.codec,
            )
        return self._take("local step", None, self._timer.local(parts))

    # -- acts of a layer

    def project(self, layer: int) -> Awaitable[Any]:
        """Launches and projections."""
        now = self._runtime.now
        if self._node.observer is not None:
            self._starts_s.append(now)
        return self._take("project", layer, self._timer.project(now))

    def in_flight(self, layer: int) -> bool:
        """Whether planned pushes of the layer are still to come."""
        return any(slot.landings.in_flight(layer) for slot in self._awaited)

    async def landed(self, layer: int) -> None:
        """Wait for the layer's planned pushes."""
        start_s = self._runtime.now
        for slot in self._awaited:
            await slot.landings.layer(layer)
        self._timer.arrived(self._runtime.now)
        self._keep("landed", layer, start_s)

    def select(self, layer: int) -> Awaitable[Any]:
        """Selection over all cached tokens that the layer reaches."""
        return self._take("select", layer, self._timer.select(self._runtime.now, layer))

    def split(self, layer: int) -> TimedSplit:
        """Cut what the layer selects into local and remote, by the mask as it is now."""
        node = self._node
        if node.live and self._left:
            node.settle()
        split = TimedSplit(layer, self._wanted[layer])
        for peer, rows in self.remote_rows(layer):
            split.rows.setdefault(peer, []).append(rows)
            split.local_entries -= rows.entries
        # fractions of entries may round to less than nothing
        split.local_entries = max(0.0, split.local_entries)
        self._local_entries += split.local_entries
        if node.experiment.policy.lanes == "none":
            self._attended[layer] = split.local_entries
        self._log(split)
        return split

    def _log(self, split: TimedSplit) -> None:
        recorder = self._node.recorder
        if recorder.wants_decisions:
            remote = {row.request_id: row.entries for rows in split.rows.values() for row in rows}
            for slot in self._batch.slots:
                request_id, step = slot.request.request_id, self._batch.step_of(slot)
                entries = remote.get(request_id, 0.0)
                recorder.decide("split", request_id, step, split.layer, [entries])

    def load(self, split: TimedSplit) -> Awaitable[Any]:
        """The local lane."""
        layer = split.layer
        self.load_rows(layer)
        size = split.local_entries * self._entry_bytes
        return self._take("load", layer, self._timer.load(self._runtime.now, size, layer))

    def fetch(self, split: TimedSplit) -> list[tuple[int, Fetch]]:
        """One request for rows a prefill node."""
        replies = self._node.replies
        peers = {peer: rows for peer, rows in split.rows.items() if peer not in replies.lost}
        if not peers:
            return []
        fetch_id, split.awaited = replies.expect(set(peers))
        return self._fetches(split.layer, fetch_id, peers)

    def _fetches(
        self, layer: int, fetch_id: int, peers: Mapping[int, list[Rows]]
    ) -> list[tuple[int, Fetch]]:
        self._num_messages += len(peers)
        self._remote_entries += sum(row.entries for rows in peers.values() for row in rows)
        return [(peer, Fetch(fetch_id, layer, tuple(rows))) for peer, rows in peers.items()]

    async def fetched(self, split: TimedSplit) -> None:
        """Wait for the replies."""
        if split.awaited is not None:
            start_s = self._runtime.now
            await split.awaited.event.wait()
            now = self._runtime.now
            self._keep("fetch", split.layer, start_s)
            self._timer.replied(now, interference_s(split.awaited.alone, now))

    def attend(self, layer: int) -> Awaitable[Any]:
        """Attention over what the layer has selected."""
        self.use_rows(layer)
        size = self._attended.get(layer, self._wanted[layer]) * self._entry_bytes
        return self._take("attend", layer, self._timer.attend(self._runtime.now, size))

    def feed_forward(self, layer: int) -> Awaitable[Any]:
        """The layer's feed-forward."""
        return self._take("feed_forward", layer, self._timer.feed_forward(self._runtime.now, layer))

    def logits(self) -> Awaitable[Any]:
        """The language-model head."""
        now = self._runtime.now
        if self._node.observer is not None:
            self._starts_s.append(now)
        return self._take("logits", None, self._timer.head(now))

    def close(self) -> None:
        """Report the iteration."""
        node, now = self._node, self._runtime.now
        node.settle()
        if node.observer is not None:
            node.observer.iterated(self._starts_s)
        self.append_tokens()
        landed, node.landed_bytes = node.landed_bytes, dict.fromkeys(node.landed_bytes, 0.0)
        row = IterationRow(
            decode_node=node.name,
            iteration=self._batch.iteration,
            start_s=self._timer.start_s,
            end_s=now,
            batch_size=len(self._batch),
            cached_tokens=self._batch.cached_tokens,
            shares=self._timer.shares(now),
            selected_entries=self._selected_entries if node.experiment.policy.selects else 0.0,
            remote_entries=self._remote_entries,
            local_bytes=round(self._local_entries * self._entry_bytes),
            on_demand_bytes=round(landed[Purpose.ON_DEMAND]),
            speculative_bytes=round(landed[Purpose.SPECULATIVE]),
            messages=self._num_messages,
            remote_blocks_left=sum(slot.num_left for slot in self._left),
        )
        node.recorder.iterations.append(row)
        node.in_iteration = False
