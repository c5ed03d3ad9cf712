"""A decoding node whose acts take the cost model's time; a backend adds its pool and its steps."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from smartgen.cost.shaper import Posting, Shaper
from smartgen.engine.protocols import Step
from smartgen.experiment import Experiment
from smartgen.kv import BlockMask
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Purpose, Recorder
from smartgen.nodes.landings import Landings
from smartgen.nodes.replies import Replies
from smartgen.nodes.report import report_transfer
from smartgen.nodes.room import Room
from smartgen.nodes.timed_prefill import WaitingRuntime, Write
from smartgen.policy import Plan
from smartgen.selection import Draw
from smartgen.workload import Request


@dataclass(slots=True, eq=False)
class Slot:
    """A request's pages. unseen: landed blocks that the mask takes in at the next iteration."""

    number: int
    request: Request
    peer: int
    mask: BlockMask
    draw: Draw
    landings: Landings
    unseen: list[Int] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Blocks that have not landed; planned ones count as landed."""
        return self.mask.num_left - sum(len(blocks) for blocks in self.unseen)

    @property
    def complete(self) -> bool:
        """Whether the mask shows everything local and nothing planned is on its way."""
        return self.mask.num_left == 0 and self.landings.num_in_flight == 0


S = TypeVar("S", bound=Slot)


class TimedDecodeNode(Generic[S]):
    """One GPU with the pool of its host, which pushes and replies land in."""

    name = "decode0"

    def __init__(
        self,
        runtime: WaitingRuntime,
        experiment: Experiment,
        shaper: Shaper[Write],
        recorder: Recorder,
    ) -> None:
        self.runtime, self.experiment, self.shaper = runtime, experiment, shaper
        self.recorder = recorder
        self.live = experiment.mask_update == "live"
        self.slots: dict[int, S] = {}
        self.replies = Replies(runtime)
        self.landed_bytes = dict.fromkeys((Purpose.ON_DEMAND, Purpose.SPECULATIVE), 0.0)
        """Bytes that have landed since the last iteration was reported, by purpose."""
        self._room = Room(runtime, experiment.cluster.decode_pool_tokens)
        self._num_slots = self._num_iterations = 0

    # -- what a backend adds

    def open(self, slot: Slot) -> S:
        """Make a slot of this backend from its books."""
        raise NotImplementedError

    def store(self, slot: S, write: Write, blocks: Int) -> None:
        """Blocks of a push have arrived."""

    def store_rows(self, write: Write) -> None:
        """The rows of a reply have arrived."""

    def see(self, slot: S, blocks: Int) -> None:
        """The mask takes in speculative blocks."""
        slot.mask.land(blocks)

    def step(self, batch: Sequence[S], steps: Sequence[int], number: int) -> Step[Any]:
        """Make an iteration."""
        raise NotImplementedError

    # -- the pool

    async def reserve(self, request: Request, peer: int, plan: Plan) -> int:
        """Wait for room, and address a slot."""
        row = self.recorder.request(request.request_id)
        row.decode_node = self.name
        row.planned_blocks, row.total_blocks = plan.num_planned, len(plan.order)
        await self._room.take(request.prompt_tokens + request.output_tokens)
        number, self._num_slots = self._num_slots, self._num_slots + 1
        experiment = self.experiment
        planned = plan.order[: plan.num_planned]
        books = Slot(
            number,
            request,
            peer,
            BlockMask(experiment.geometry, planned, experiment.cost.dense_layers),
            experiment.draw(request.request_id, request.prompt_tokens),
            Landings(self.runtime, experiment.geometry.num_layers),
        )
        self.slots[number] = self.open(books)
        return number

    def flush(self, slot: int) -> None:
        """End every wait for the slot's planned pushes."""
        self.slots[slot].landings.flush()

    def complete(self, slot: int) -> bool:
        """Whether everything has landed, and the mask shows it."""
        return self.slots[slot].complete

    def lose(self, peer: int) -> None:
        """A prefill node is gone: nobody waits for its replies any longer."""
        self.replies.lose(peer)

    def release(self, slot: int) -> None:
        """Give the slot's pages back."""
        request = self.slots.pop(slot).request
        self._room.give(request.prompt_tokens + request.output_tokens)

    def finish(self, request_id: int, status: str) -> None:
        """Note a request's outcome."""
        row = self.recorder.request(request_id)
        row.status, row.finish_s = status, self.runtime.now

    # -- what lands

    def land(self, posting: Posting[Write], first: int, stop: int) -> None:
        """Pieces of a write have arrived; a one-sided write cannot be refused."""
        write = posting.write
        for number in write.parcel.slots:
            if number not in self.slots:
                raise RuntimeError(f"{write.parcel.source} wrote into slot {number} after release")
        slot = self.slots[write.parcel.slots[0]]
        if write.parcel.purpose == Purpose.SPECULATIVE:
            blocks = write.blocks[first:stop]
            self.store(slot, write, blocks)
            if self.live:
                self.see(slot, blocks)
            else:
                slot.unseen.append(blocks)
        if posting.landed:
            self._land_whole(posting, slot)

    def _land_whole(self, posting: Posting[Write], slot: S) -> None:
        now, write = self.runtime.now, posting.write
        parcel = write.parcel
        report_transfer(self.recorder, parcel, posting.flow, now, self.name, "landed")
        if write.fetch_id is not None:
            self.landed_bytes[Purpose.ON_DEMAND] += parcel.data_bytes
            self.store_rows(write)
            self.replies.come(write.fetch_id, write.peer, self.shaper.alone(posting.flow))
            return
        row = self.recorder.request(slot.request.request_id)
        if parcel.purpose == Purpose.PROACTIVE:
            assert parcel.layer is not None
            self.store(slot, write, write.blocks)
            slot.landings.land(parcel.layer)
            if not slot.landings.num_in_flight:
                row.plan_delivered_s = now
        else:
            self.landed_bytes[Purpose.SPECULATIVE] += parcel.data_bytes
        if row.all_delivered_s is None and not slot.num_left + slot.landings.num_in_flight:
            row.all_delivered_s = now

    def drop(self, dropped: Sequence[Posting[Write]]) -> None:
        """A queue pair was flushed: what had not landed never will."""
        for posting in dropped:
            parcel, now = posting.write.parcel, self.runtime.now
            report_transfer(self.recorder, parcel, posting.flow, now, self.name, "flushed")

    # -- waiting and decoding

    async def planned(self, slot: int) -> None:
        """Wait for all planned pushes."""
        await self.slots[slot].landings.all()

    async def planned_layer(self, slot: int, layer: int) -> None:
        """Wait for one layer's planned push."""
        if slot in self.slots:
            await self.slots[slot].landings.layer(layer)

    def admit(self, slots: Sequence[int]) -> Awaitable[Any]:
        """Take the time of the handover."""
        geometry, policy = self.experiment.geometry, self.experiment.policy
        tokens = [self.slots[slot].request.prompt_tokens for slot in slots]
        size = float(sum(map(geometry.entries, tokens)) * geometry.entry_bytes)
        return self.runtime.after(self.experiment.cost.admit_s(size, policy.codec))

    def begin(self, slots: Sequence[int], steps: Sequence[int]) -> Step[Any]:
        """Start an iteration; masks take in what has landed meanwhile."""
        self.shaper.settle()
        batch = [self.slots[slot] for slot in slots]
        for slot in batch:
            for blocks in slot.unseen:
                self.see(slot, blocks)
            slot.unseen.clear()
        self._num_iterations += 1
        return self.step(batch, steps, self._num_iterations)
