"""A prefill node whose acts take the cost model's time; a backend adds what it moves."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from smartgen.cost import Flow
from smartgen.cost.shaper import Land, Posting, Shaper
from smartgen.engine.messages import Assign, Fetch
from smartgen.errors import RequestFailed
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Purpose, Recorder
from smartgen.nodes.channel import TimedRuntime
from smartgen.nodes.report import Parcel
from smartgen.nodes.room import Room
from smartgen.nodes.writers import Writers


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


_NO_BLOCKS = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Pages:
    """A request's KV at this node: block sizes in entries, what a layer takes, who wants it.

    posted counts the blocks of its plan that have been pushed; said_s is when its peer last gave a
    sign that it is wanted.
    """

    assign: Assign
    peer: int
    sizes: Int
    layer_s: float
    offload_s: float
    posted: int = 0
    said_s: float = 0.0


class TimedPrefillNode:
    """One GPU of a prefill host; its sends leave through the host's link."""

    def __init__(
        self,
        runtime: WaitingRuntime,
        experiment: Experiment,
        number: int,
        shaper: Shaper[Write],
        lands: Sequence[Land[Write]],
        recorder: Recorder,
    ) -> None:
        self.name = f"prefill{number}"
        self._runtime, self._experiment, self.recorder = runtime, experiment, recorder
        self._shaper, self._lands = shaper, lands
        self._number = number
        self._link = experiment.cluster.host_of(number)
        self._cost, self._geometry = experiment.cost, experiment.geometry
        self._writers = Writers(runtime)
        self._pages: dict[int, Pages] = {}
        self.drained = self._writers.drained
        self._room = Room(runtime, experiment.cluster.prefill_pool_tokens)
        self._dead = False
        # pushes must arrive in order, data before mask; replies need not wait for them
        self._pushes = [f"{self.name}/decode{peer}/push" for peer in range(len(lands))]
        self._replies = [f"{self.name}/decode{peer}/reply" for peer in range(len(lands))]
        self.queue_pairs = (*self._pushes, *self._replies)

    # -- what a backend adds

    def payload_of_blocks(self, pages: Pages, blocks: Int) -> Any:
        """What to move for these blocks; called when they are posted."""
        return None

    def payload_of_rows(self, fetch: Fetch) -> Any:
        """What to move for a fetch; called when the rows have been gathered."""
        return None

    # -- prefill

    async def reserve(self, assign: Assign, peer: int) -> None:
        """Wait for room, and take pages."""
        await self._room.take(assign.prompt_tokens)
        self.open(assign, peer)

    def open(self, assign: Assign, peer: int) -> None:
        """Take pages, which there is room for."""
        cost, geometry = self._cost, self._geometry
        prefill_s = cost.prefill_s(assign.prompt_tokens, assign.cached_tokens)
        layer_s = prefill_s / geometry.num_layers
        new_bytes = (assign.prompt_tokens - assign.cached_tokens) * geometry.entry_bytes
        self._pages[assign.request_id] = Pages(
            assign,
            peer,
            geometry.block_entries(assign.prompt_tokens),
            layer_s,
            cost.offload_s(new_bytes, layer_s),
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
        return self._runtime.after(self._pages[request_id].offload_s)

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

    def push(self, request_id: int, blocks: Int, layer: int | None) -> Posting[Write]:
        """Post blocks, and with a layer its metadata behind them."""
        pages, experiment = self._pages[request_id], self._experiment
        sizes = pages.sizes[blocks % self._geometry.blocks_per_layer]
        entry_bytes, codec = self._geometry.entry_bytes, experiment.policy.codec
        proactive = layer is not None
        pages.posted += len(blocks)
        pages.said_s = self._runtime.now
        unheld = (pages.assign.prompt_tokens - pages.assign.held_tokens) * entry_bytes
        parcel = Parcel(
            request_ids=(request_id,),
            slots=(pages.assign.slot,),
            purpose=Purpose.PROACTIVE if proactive else Purpose.SPECULATIVE,
            source=self.name,
            layer=layer,
            num_blocks=len(blocks),
            entries=(int(sizes.sum()),),
            bytes_per_entry=entry_bytes * self._cost.wire_ratio(codec),
            metadata_bytes=experiment.metadata_ratio * unheld if proactive else 0.0,
            messages=1 if codec != "none" else int(np.count_nonzero(sizes)),
        )
        pairs = 0 if codec != "none" else parcel.messages
        size = parcel.data_bytes + parcel.metadata_bytes + pairs * experiment.network.pair_bytes
        self._writers.begin(parcel.request_ids)
        payload = self.payload_of_blocks(pages, blocks)
        write = Write(parcel, self._number, blocks, payload=payload)
        pieces = 1 if proactive else len(blocks)
        return self._post(write, pages.peer, size, pieces, urgent=False)

    def posted(self, request_id: int) -> int:
        """How many blocks of the plan have been pushed."""
        return self._pages[request_id].posted

    def serve_fetch(self, fetch: Fetch, peer: int) -> None:
        """Gather the rows, then send them back in one flow."""
        request_ids, slots, entries = zip(
            *[(rows.request_id, rows.slot, rows.entries) for rows in fetch.rows], strict=True
        )
        parcel = Parcel(
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
        # from here on the requests count as written to: an abort waits for the reply
        self._writers.begin(parcel.request_ids)
        for request_id in request_ids:
            if request_id in self._pages:
                self._pages[request_id].said_s = self._runtime.now
        gather_s = self._cost.rpc_s + self._cost.gather_s(parcel.data_bytes)
        when_s = self._runtime.now + gather_s
        self._runtime.call_at(when_s, lambda _: self._send_back(fetch, peer, parcel))

    def _send_back(self, fetch: Fetch, peer: int, parcel: Parcel) -> None:
        if self._dead:
            return
        payload = self.payload_of_rows(fetch)
        write = Write(parcel, self._number, _NO_BLOCKS, fetch.fetch_id, payload)
        self._post(write, peer, parcel.data_bytes, 1, urgent=True)

    def _post(
        self, write: Write, peer: int, size: float, pieces: int, urgent: bool
    ) -> Posting[Write]:
        layer = -1 if write.parcel.layer is None else write.parcel.layer
        block = int(write.blocks[0]) if len(write.blocks) else -1
        key = (self._number, write.parcel.request_ids[0], layer, block)
        queue_pair = (self._replies if urgent else self._pushes)[peer]
        flow = Flow(key, self._link, f"decode{peer}", queue_pair, size, pieces, urgent)
        return self._shaper.post(flow, write, partial(self._landed, self._lands[peer]))

    def _landed(self, land: Land[Write], posting: Posting[Write], first: int, stop: int) -> None:
        land(posting, first, stop)
        if posting.landed:
            self._writers.end(posting.write.parcel.request_ids)

    def die(self) -> None:
        """Post nothing any more, not even what is being gathered."""
        self._dead = True

    def release(self, request_id: int) -> None:
        """Give the pages back."""
        pages = self._pages.pop(request_id, None)
        if pages is not None:
            self.recorder.request(request_id).prefill_released_s = self._runtime.now
            self._room.give(pages.assign.prompt_tokens)
