"""A decoding node whose acts take the cost model's time; a backend adds its pool and its steps."""

from collections.abc import Awaitable, Sequence
from typing import Any, Generic, TypeVar

from smartgen.cost.shaper import Links, Posting
from smartgen.engine.protocols import Step
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Purpose, Recorder, TokenSpan
from smartgen.nodes.batch import Batch
from smartgen.nodes.landings import Landings
from smartgen.nodes.meter import Meter
from smartgen.nodes.observer import Carried, Observer
from smartgen.nodes.replies import Replies
from smartgen.nodes.report import report_transfer
from smartgen.nodes.room import Room
from smartgen.nodes.slot import Slot
from smartgen.nodes.timed_prefill import WaitingRuntime, Write
from smartgen.policy import Plan
from smartgen.workload import Request

S = TypeVar("S", bound=Slot)


class TimedDecodeNode(Generic[S]):
    """One GPU with the pool of its host, which pushes and replies land in."""

    def __init__(
        self,
        runtime: WaitingRuntime,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        meter: Meter,
        recorder: Recorder,
    ) -> None:
        self.name = f"decode{number}"
        self.runtime, self.experiment, self.links = runtime, experiment, links
        self.recorder, self.meter = recorder, meter
        self.live = experiment.mask_update == "live"
        self.slots: dict[int, S] = {}
        self.replies = Replies(runtime)
        self.landed_bytes = dict.fromkeys((Purpose.ON_DEMAND, Purpose.SPECULATIVE), 0.0)
        """Bytes that have landed since the last iteration was reported, by purpose."""
        self.batch: Batch[S] = Batch(experiment.geometry, experiment.workload.grows)
        self._room = Room(runtime, experiment.cluster.decode_pool_tokens)
        self.in_iteration = False
        self.observer = _observer(experiment) if experiment.policy.observes else None
        self._num_slots = 0

    # -- what a backend adds

    def open(self, slot: Slot) -> S:
        """Make a slot of this backend from its books."""
        raise NotImplementedError

    def make_landings(self) -> Landings:
        """Books of a slot's planned pushes."""
        return Landings(self.runtime, self.experiment.geometry.num_layers)

    def store(self, slot: S, write: Write, blocks: Int) -> None:
        """Blocks of a push have arrived."""

    def settle(self) -> None:
        """Let everything land that has arrived by now."""
        self.links.settle()

    def store_rows(self, write: Write) -> None:
        """The rows of a reply have arrived."""

    def see(self, slot: S, blocks: Int) -> None:
        """The mask takes in speculative blocks."""
        slot.mask.land(blocks)

    def step(self) -> Step[Any]:
        """Make an iteration of the batch."""
        raise NotImplementedError

    def observe_rate(self) -> float | None:
        """Bytes a second at which requests' planned pushes have arrived."""
        self.settle()
        return None if self.observer is None else self.observer.rate

    # -- the pool

    async def reserve(self, request: Request, peer: int, plan: Plan) -> int:
        """Wait for room, and address a slot."""
        row = self.recorder.request(request.request_id)
        row.decode_node = self.name
        row.planned_blocks, row.total_blocks = plan.num_planned, len(plan.order)
        row.cached_tokens, row.held_tokens = request.cached_tokens, request.held_tokens
        await self._room.take(request.prompt_tokens + request.output_tokens)
        row.reserved_s = self.runtime.now
        number, self._num_slots = self._num_slots, self._num_slots + 1
        experiment = self.experiment
        books = Slot(
            number,
            request,
            peer,
            experiment.mask(plan),
            experiment.draw(request.request_id, request.prompt_tokens),
            self.make_landings(),
            len(plan.left),
        )
        self.slots[number] = self.open(books)
        return number

    def handed_over(self, slot: int, first_token: int) -> None:
        """A request's first token; without a model nobody computes with it."""

    def flush(self, slot: int) -> None:
        """End every wait for the slot's planned pushes, and for its next token."""
        self.slots[slot].landings.flush()
        self.slots[slot].awaits_token = not self.in_iteration

    def complete(self, slot: int) -> bool:
        """Whether everything has landed, and the mask shows it."""
        return self.slots[slot].complete

    def lose(self, peer: int) -> None:
        """A prefill node is gone: nobody waits for its replies any longer."""
        self.replies.lose(peer)

    def release(self, slot: int) -> None:
        """Give the slot's pages back."""
        request = self.slots.pop(slot).request
        if self.observer is not None:
            self.observer.forget(slot)
        self._room.give(request.prompt_tokens + request.output_tokens)
        self.recorder.request(request.request_id).released_s = self.runtime.now

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
        now = posting.flow.end_s + self.experiment.network.one_way_s
        write, parcel = posting.write, posting.write.parcel
        report_transfer(self.recorder, parcel, posting.flow, now, self.name, "landed")
        self.meter.add(posting.flow)
        if write.fetch_id is not None:
            if self.observer is not None:
                self.observer.replied(posting.flow)
            self.landed_bytes[Purpose.ON_DEMAND] += parcel.data_bytes
            self.store_rows(write)
            self.replied(posting)
            return
        if parcel.purpose == Purpose.PROACTIVE:
            assert parcel.layer is not None
            self.store(slot, write, write.blocks)
            slot.landings.land(parcel.layer)
            self.note_planned(slot, now, posting.flow)
        else:
            self.note_speculative(slot, parcel.data_bytes, parcel.num_blocks, now, posting.flow)

    def note_planned(self, slot: S, landed_s: float, flow: Carried) -> None:
        """A planned push has landed, and the landings know."""
        if self.observer is not None:
            self.observer.planned(slot.number, flow, not slot.landings.num_in_flight)
        if not slot.landings.num_in_flight:
            row = self.recorder.request(slot.request.request_id)
            row.plan_delivered_s = landed_s
            self._note_all(slot, landed_s)

    def note_speculative(
        self, slot: S, num_bytes: float, num_blocks: int, landed_s: float, flow: Carried
    ) -> None:
        """A speculative push has landed whole."""
        if self.observer is not None:
            self.observer.pushed(num_blocks, flow)
        self.landed_bytes[Purpose.SPECULATIVE] += num_bytes
        slot.num_undelivered -= num_blocks
        self._note_all(slot, landed_s)

    def _note_all(self, slot: S, landed_s: float) -> None:
        if not slot.num_undelivered + slot.landings.num_in_flight:
            self.recorder.request(slot.request.request_id).all_delivered_s = landed_s

    def replied(self, posting: Posting[Write]) -> None:
        """A reply is here."""
        write = posting.write
        assert write.fetch_id is not None
        self.replies.come(write.fetch_id, write.peer, self.links.alone(posting.flow))

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

    async def instant_over(self) -> None:
        """Wait until everything else that happens at this instant has happened."""
        over = self.runtime.event()
        self.runtime.call_last(self.runtime.now, lambda _: over.set())
        await over.wait()

    def admit(self, slots: Sequence[int]) -> Awaitable[Any]:
        """Take the time of the handover."""
        geometry, policy = self.experiment.geometry, self.experiment.policy
        tokens = [self.slots[slot].request.prompt_tokens for slot in slots]
        size = float(sum(map(geometry.entries, tokens)) * geometry.entry_bytes)
        return self.runtime.after(self.experiment.cost.admit_s(size, policy.codec))

    def join(self, slots: Sequence[int]) -> None:
        """Take requests into the batch."""
        self.batch.join([self.slots[slot] for slot in slots])
        for slot in slots:
            request_id = self.slots[slot].request.request_id
            self.recorder.request(request_id).joined_s = self.runtime.now

    def leave(self, slot: int) -> None:
        """Take a request out; its tokens are those of the iterations that it saw to their end."""
        left = self.batch.leave(slot)
        if left is not None:
            last = self.batch.iteration if left.awaits_token else self.batch.iteration - 1
            span = TokenSpan(left.request.request_id, left.first_iteration, last)
            self.recorder.spans.append(span)

    def begin(self) -> Step[Any]:
        """Start an iteration; masks take in what has landed meanwhile."""
        self.settle()
        for slot in self.batch.incomplete:
            for blocks in slot.unseen:
                self.see(slot, blocks)
            slot.unseen.clear()
        self.batch.advance()
        self.in_iteration = True
        return self.step()


def _observer(experiment: Experiment) -> Observer:
    """An observer that expects blocks of a mean prompt at the network's own rate."""
    network, geometry = experiment.network, experiment.geometry
    tokens = [request.prompt_tokens for request in experiment.requests]
    size = geometry.entry_bytes * sum(map(geometry.entries, tokens)) / len(tokens)
    block_s = size / geometry.num_blocks / network.receiver_bytes_per_s + network.pair_us * 1e-6
    return Observer(network.one_way_s, block_s)
