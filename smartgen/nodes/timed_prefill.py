"""A prefill node whose acts take the cost model's time; a backend adds what it moves."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from smartgen.cost import Flow
from smartgen.cost.shaper import Land, Links, Posting
from smartgen.engine.messages import Assign, Fetch
from smartgen.engine.protocols import Delivery
from smartgen.errors import RequestFailed
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Purpose, Recorder
from smartgen.nodes.channel import TimedRuntime
from smartgen.nodes.report import Parcel
from smartgen.nodes.room import Room
from smartgen.nodes.writers import Writers
from smartgen.policy import Plan


class WaitingRuntime(TimedRuntime, Protocol):
    """A runtime on which acts can take time."""

    def after(self, seconds: float) -> Awaitable[Any]:
        """Something that started now and is over so many seconds from now."""


class Write(msgspec.Struct, frozen=True, eq=False):
    """A WRITE, or the reply to a fetch. payload is what a backend moves; null where only counts."""

    parcel: Parcel
    peer: int
    blocks: Int
    fetch_id: int | None = None
    payload: Any = None


NO_BLOCKS = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Pages:
    """A request's KV at this node: block sizes in entries, what a layer takes, who wants it.

    planned: entries and blocks that are not empty of each layer's planned push. posted counts the
    blocks of its plan that have been pushed; said_s is when its peer last gave a sign that it is
    wanted.
    """

    assign: Assign
    plan: Plan
    peer: int
    sizes: Int  # [L * M]
    planned: tuple[list[int], list[int]]  # [L], [L]
    layer_s: float
    offload_s: list[float]  # [L]
    metadata_bytes: list[float]  # [L]
    posted: int = 0
    said_s: float = 0.0


class TimedPrefillNode:
    """One GPU of a prefill host; its sends leave through the host's link."""

    def __init__(
        self,
        runtime: WaitingRuntime,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        lands: Sequence[Land[Write]],
        recorder: Recorder,
    ) -> None:
        self.name = f"prefill{number}"
        self._runtime, self._experiment, self.recorder = runtime, experiment, recorder
        self._links = links
        self._landed_at = [partial(self._landed, land) for land in lands]
        codec = experiment.policy.codec
        self._pairs = codec == "none"  # each block is followed by its mask values
        self._pair_bytes = experiment.network.pair_bytes if self._pairs else 0.0
        self.wire_entry_bytes = experiment.geometry.entry_bytes * experiment.cost.wire_ratio(codec)
        self._number = number
        self._link = experiment.cluster.host_of(number)
        self._cost, self._geometry = experiment.cost, experiment.geometry
        self._writers = Writers(runtime)
        self._pages: dict[int, Pages] = {}
        self._room = Room(runtime, experiment.cluster.prefill_pool_tokens)
        self._dead = False
        # pushes must arrive in order, data before mask; replies need not wait for them
        self._pushes = [f"{self.name}/decode{peer}/push" for peer in range(len(lands))]
        self._replies = [f"{self.name}/decode{peer}/reply" for peer in range(len(lands))]
        self.queue_pairs = (*self._pushes, *self._replies)

    # -- what a backend adds

    def payload_of_blocks(self, pages: Pages, blocks: Int, layer: int | None) -> Any:
        """What to move for these blocks, and the layer's metadata; called when they are posted."""
        return None

    def payload_of_rows(self, fetch: Fetch) -> Any:
        """What to move for a fetch; called when the rows have been gathered."""
        return None

    # -- prefill

    async def reserve(self, assign: Assign, plan: Plan, peer: int) -> None:
        """Wait for room, and take pages."""
        await self._room.take(assign.prompt_tokens)
        self.open(assign, plan, peer)

    def open(self, assign: Assign, plan: Plan, peer: int) -> None:
        """Take pages, which there is room for."""
        cost, geometry = self._cost, self._geometry
        prefill_s = cost.prefill_s(assign.prompt_tokens, assign.cached_tokens)
        layer_s = prefill_s / geometry.num_layers
        new = geometry.layer_tokens(assign.prompt_tokens - assign.cached_tokens)
        # metadata of what the decoding node holds is there, too
        unheld = geometry.layer_tokens(assign.prompt_tokens - assign.held_tokens)
        sizes = geometry.sizes(assign.prompt_tokens)
        self._pages[assign.request_id] = Pages(
            assign,
            plan,
            peer,
            sizes,
            plan.sum_by_layer(sizes),
            layer_s,
            cost.offload_s(new * geometry.entry_bytes, layer_s).tolist(),
            (self._experiment.metadata_ratio * unheld * geometry.entry_bytes).tolist(),
        )
        row = self.recorder.request(assign.request_id)
        row.prefill_node, row.prefill_start_s = self.name, self._runtime.now

    def perform(
        self, request_id: int, acts: Callable[[], Coroutine[Any, Any, None]]
    ) -> Awaitable[None]:
        """Carry out the acts of a prefill as they come."""
        return acts()

    def compute_layer(self, request_id: int, layer: int) -> Awaitable[Any]:
        """Take a layer's share of the prefill."""
        return self._runtime.after(self._pages[request_id].layer_s)

    def offload(self, request_id: int, layer: int) -> Awaitable[Any]:
        """Take what the copy adds to the computation it hides behind."""
        return self._runtime.after(self._pages[request_id].offload_s[layer])

    def first_token(self, request_id: int) -> int:
        """Note the time; without a model, tokens are all 0."""
        now = self._runtime.now
        self.recorder.request(request_id).first_token_s = now
        self._pages[request_id].said_s = now
        return 0

    async def leased(self, request_id: int) -> None:
        """Wait while the last word on the request is no longer ago than a lease lasts."""
        lease_s = self._experiment.cluster.prefill_lease_s
        while lease_s is not None and request_id in self._pages:
            over_s = self._pages[request_id].said_s + lease_s
            if over_s <= self._runtime.now:
                raise RequestFailed(f"{self.name} had no word of it for {lease_s} s")
            await self._runtime.after(over_s - self._runtime.now)

    # -- pushes and fetches

    def push(self, request_id: int, blocks: Int, layer: int | None) -> Delivery:
        """Post blocks, and with a layer its metadata behind them."""
        pages = self._pages[request_id]
        pages.posted += len(blocks)
        pages.said_s = self._runtime.now
        entries, full = self._counts(pages, blocks, layer)
        parcel = self.parcel(pages, len(blocks), entries, full, layer)
        self._writers.begin(parcel.request_ids)
        payload = self.payload_of_blocks(pages, blocks, layer)
        write = Write(parcel, self._number, blocks, payload=payload)
        size = self.wire_bytes(pages, entries, full, layer)
        pieces = len(blocks) if layer is None else 1
        return self._post(write, pages.peer, size, pieces, urgent=False)

    def _counts(self, pages: Pages, blocks: Int, layer: int | None) -> tuple[int, int]:
        """Entries of blocks, and how many are not empty."""
        if layer is not None and blocks is pages.plan.by_layer[layer]:
            return pages.planned[0][layer], pages.planned[1][layer]
        sizes = pages.sizes[blocks]
        return int(sizes.sum()), int(np.count_nonzero(sizes))

    def wire_bytes(self, pages: Pages, entries: int, full: int, layer: int | None) -> float:
        """What a push takes on the wire, its metadata and the cost of its messages included."""
        metadata_bytes = 0.0 if layer is None else pages.metadata_bytes[layer]
        return entries * self.wire_entry_bytes + metadata_bytes + full * self._pair_bytes

    def parcel(
        self, pages: Pages, num_blocks: int, entries: int, full: int, layer: int | None
    ) -> Parcel:
        """What a push carries; full of its blocks are not empty."""
        return Parcel(
            request_ids=(pages.assign.request_id,),
            slots=(pages.assign.slot,),
            purpose=Purpose.SPECULATIVE if layer is None else Purpose.PROACTIVE,
            source=self.name,
            layer=layer,
            num_blocks=num_blocks,
            entries=(entries,),
            bytes_per_entry=self.wire_entry_bytes,
            metadata_bytes=0.0 if layer is None else pages.metadata_bytes[layer],
            messages=full if self._pairs else 1,
        )

    def posted(self, request_id: int) -> int:
        """How many blocks of the plan have been pushed."""
        return self._pages[request_id].posted

    def serve_fetch(self, fetch: Fetch, peer: int) -> None:
        """Gather the rows, then send them back in one flow."""
        parcel = self.reply_parcel(fetch)
        # from here on the requests count as written to: an abort waits for the reply
        self._writers.begin(parcel.request_ids)
        for request_id in parcel.request_ids:
            if request_id in self._pages:
                self._pages[request_id].said_s = self._runtime.now
        when_s = self._runtime.now + self.gather_s(parcel.data_bytes)
        self._runtime.call_at(when_s, lambda _: self._send_back(fetch, peer, parcel))

    def gather_s(self, num_bytes: float) -> float:
        """From a fetch that is heard to its reply that is posted."""
        return self._cost.rpc_s + self._cost.gather_s(num_bytes)

    def reply_parcel(self, fetch: Fetch) -> Parcel:
        """What the reply to a fetch carries."""
        request_ids, slots, entries = zip(
            *[(rows.request_id, rows.slot, rows.entries) for rows in fetch.rows], strict=True
        )
        return Parcel(
            request_ids=request_ids,
            slots=slots,
            purpose=Purpose.ON_DEMAND,
            source=self.name,
            layer=fetch.layer,
            num_blocks=0,
            entries=entries,
            bytes_per_entry=self._geometry.entry_bytes,
            metadata_bytes=0.0,
            messages=1,
        )

    def _send_back(self, fetch: Fetch, peer: int, parcel: Parcel) -> None:
        if self._dead:
            return
        payload = self.payload_of_rows(fetch)
        write = Write(parcel, self._number, NO_BLOCKS, fetch.fetch_id, payload)
        self._post(write, peer, parcel.data_bytes, 1, urgent=True)

    def _post(
        self, write: Write, peer: int, size: float, pieces: int, urgent: bool
    ) -> Posting[Write]:
        layer = -1 if write.parcel.layer is None else write.parcel.layer
        block = int(write.blocks[0]) if len(write.blocks) else -1
        key = (self._number, write.parcel.request_ids[0], layer, block)
        queue_pair = (self._replies if urgent else self._pushes)[peer]
        flow = Flow(key, self._link, f"decode{peer}", queue_pair, size, pieces, urgent)
        return self._links.post(flow, write, self._landed_at[peer])

    def _landed(self, land: Land[Write], posting: Posting[Write], first: int, stop: int) -> None:
        land(posting, first, stop)
        if posting.landed:
            self._writers.end(posting.write.parcel.request_ids)

    def drained(self, request_id: int) -> Awaitable[Any]:
        """Wait until no write for the request is under way."""
        return self._writers.drained(request_id)

    def die(self) -> None:
        """Post nothing any more, not even what is being gathered."""
        self._dead = True

    def release(self, request_id: int) -> None:
        """Give the pages back."""
        pages = self._pages.pop(request_id, None)
        if pages is not None:
            self.recorder.request(request_id).prefill_released_s = self._runtime.now
            self._room.give(pages.assign.prompt_tokens)
