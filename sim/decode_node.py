"""The simulated decoding node: its pool of slots, and what lands in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from smartgen.cost.shaper import Posting, Shaper
from smartgen.experiment import Experiment
from smartgen.kv import BlockMask
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Purpose, Recorder
from smartgen.nodes.landings import Landings
from smartgen.nodes.report import batch_bytes, report_transfer
from smartgen.nodes.room import Room
from smartgen.policy import Plan
from smartgen.selection import Draw
from smartgen.sim.prefill_node import SimWrite
from smartgen.sim.runtime import SimEvent, SimRuntime, Wait
from smartgen.sim.step import SimStep
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
        """Blocks that have not landed."""
        return self.mask.num_left - sum(len(blocks) for blocks in self.unseen)

    @property
    def complete(self) -> bool:
        """Whether the mask shows everything local and nothing planned is on its way."""
        return self.mask.num_left == 0 and self.landings.num_in_flight == 0


@dataclass(slots=True, eq=False)
class Pending:
    """Replies that are awaited: from whom, and how long the last one waited on the network."""

    sources: set[int]
    event: SimEvent
    waited_s: float = 0.0


class SimDecodeNode:
    """One GPU with the pool of its host."""

    name = "decode0"

    def __init__(
        self,
        runtime: SimRuntime,
        experiment: Experiment,
        shaper: Shaper[SimWrite],
        recorder: Recorder,
    ) -> None:
        self.runtime, self.experiment, self.shaper = runtime, experiment, shaper
        self.recorder = recorder
        self.live = experiment.mask_update == "live"
        self.slots: dict[int, Slot] = {}
        self.landed_bytes = dict.fromkeys((Purpose.ON_DEMAND, Purpose.SPECULATIVE), 0.0)
        """Bytes that have landed since the last iteration was reported, by purpose."""
        self.lost: set[int] = set()
        """Prefill nodes that are gone."""
        self._fetches: dict[int, Pending] = {}
        self._room = Room(runtime, experiment.cluster.decode_pool_tokens)
        self._num_slots = self._num_fetches = self._num_iterations = 0

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
        self.slots[number] = Slot(
            number,
            request,
            peer,
            BlockMask(experiment.geometry, planned, experiment.cost.dense_layers),
            experiment.draw(request.request_id, request.prompt_tokens),
            Landings(self.runtime, experiment.geometry.num_layers),
        )
        return number

    def flush(self, slot: int) -> None:
        """End every wait for the slot's planned pushes."""
        self.slots[slot].landings.flush()

    def release(self, slot: int) -> None:
        """Give the slot's pages back."""
        request = self.slots.pop(slot).request
        self._room.give(request.prompt_tokens + request.output_tokens)

    def finish(self, request_id: int, status: str) -> None:
        """Note a request's outcome."""
        row = self.recorder.request(request_id)
        row.status, row.finish_s = status, self.runtime.now

    # -- what lands

    def land(self, posting: Posting[SimWrite], first: int, stop: int) -> None:
        """Pieces of a write have arrived; a one-sided write cannot be refused."""
        write = posting.write
        for number in write.parcel.slots:
            if number not in self.slots:
                raise RuntimeError(f"{write.parcel.source} wrote into slot {number} after release")
        slot = self.slots[write.parcel.slots[0]]
        if write.parcel.purpose == Purpose.SPECULATIVE:
            slot.unseen.append(write.blocks[first:stop])
            if self.live:
                self._see(slot)
        if posting.landed:
            self._land_whole(posting, slot)

    def _land_whole(self, posting: Posting[SimWrite], slot: Slot) -> None:
        now, parcel = self.runtime.now, posting.write.parcel
        report_transfer(self.recorder, parcel, posting.flow, now, self.name, "landed")
        row = self.recorder.request(slot.request.request_id)
        if parcel.purpose == Purpose.PROACTIVE:
            assert parcel.layer is not None
            slot.landings.land(parcel.layer)
            if not slot.landings.num_in_flight:
                row.plan_delivered_s = now
        else:
            self.landed_bytes[parcel.purpose] += parcel.data_bytes
        if posting.write.fetch_id is not None:
            self._reply(posting.write.fetch_id, posting.write.peer, posting.waited_s)
        if row.all_delivered_s is None and not slot.num_left + slot.landings.num_in_flight:
            row.all_delivered_s = now

    def drop(self, dropped: Sequence[Posting[SimWrite]]) -> None:
        """A queue pair was flushed: its replies will not come, its blocks neither."""
        for posting in dropped:
            parcel = posting.write.parcel
            now = self.runtime.now
            report_transfer(self.recorder, parcel, posting.flow, now, self.name, "flushed")

    def lose(self, peer: int) -> None:
        """A prefill node is gone: nobody waits for its replies any longer."""
        self.lost.add(peer)
        for fetch_id, pending in list(self._fetches.items()):
            if peer in pending.sources:
                self._reply(fetch_id, peer, 0.0)

    @staticmethod
    def _see(slot: Slot) -> None:
        for blocks in slot.unseen:
            slot.mask.land(blocks)
        slot.unseen.clear()

    def expect(self, peers: set[int]) -> tuple[int, Pending]:
        """Prepare for one reply from each of these peers, under one fetch number."""
        self._num_fetches += 1
        pending = self._fetches[self._num_fetches] = Pending(peers, self.runtime.event())
        return self._num_fetches, pending

    def _reply(self, fetch_id: int, peer: int, waited_s: float) -> None:
        pending = self._fetches[fetch_id]
        pending.sources.remove(peer)
        pending.waited_s = waited_s
        if not pending.sources:
            del self._fetches[fetch_id]
            pending.event.set()

    # -- waiting and decoding

    async def planned(self, slot: int) -> None:
        """Wait for all planned pushes."""
        await self.slots[slot].landings.all()

    async def planned_layer(self, slot: int, layer: int) -> None:
        """Wait for one layer's planned push."""
        if slot in self.slots:
            await self.slots[slot].landings.layer(layer)

    def admit(self, slots: Sequence[int]) -> Wait:
        """Take the time of the handover."""
        geometry, policy = self.experiment.geometry, self.experiment.policy
        tokens = [self.slots[slot].request.prompt_tokens for slot in slots]
        size = batch_bytes(tokens, geometry.entry_bytes, geometry.num_layers)
        return self.runtime.after(self.experiment.cost.admit_s(size, policy.codec))

    def begin(self, slots: Sequence[int], steps: Sequence[int]) -> SimStep:
        """Start an iteration; masks take in what has landed meanwhile."""
        self.shaper.settle()
        batch = [self.slots[slot] for slot in slots]
        for slot in batch:
            self._see(slot)
        self._num_iterations += 1
        return SimStep(self, batch, steps, self._num_iterations)
