"""Simulated nodes that run their acts ahead of the clock: one event a prefill, one an iteration.

A prefill announces all its pushes when it starts. An iteration is run at its start against the
ledger of the node's receiving link; when its end has come and something was announced meanwhile
that is posted before the end, it is taken back and run again. On a link that serves first in,
first out that can only make it longer, so the end never comes too late.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from smartgen.cost.shaper import Land, Links, Posting
from smartgen.engine.messages import Fetch
from smartgen.engine.protocols import Delivery
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Recorder
from smartgen.nodes.landings import Landings
from smartgen.nodes.meter import Meter
from smartgen.nodes.replies import interference_s
from smartgen.nodes.slot import Slot
from smartgen.nodes.timed_prefill import Pages, Write
from smartgen.nodes.timed_step import TimedSplit
from smartgen.sim.ahead import AheadRuntime
from smartgen.sim.foreseen import Foreseen, ForeseenLandings, Ledgers, PlannedPush
from smartgen.sim.ledger import INFINITY, Movable
from smartgen.sim.nodes import SimDecodeNode, SimPrefillNode, SimStep
from smartgen.sim.runtime import Waitable

Acts = Callable[[], Coroutine[Any, Any, None]]
Undo = list[tuple[Callable[..., None], tuple[Any, ...]]]


class FoldedPrefillNode(SimPrefillNode):
    """A prefill node whose pushes are all announced when a prefill starts."""

    _runtime: AheadRuntime

    def __init__(
        self,
        runtime: AheadRuntime,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        lands: Sequence[Land[Write]],
        recorder: Recorder,
    ) -> None:
        super().__init__(runtime, experiment, number, links, lands, recorder)
        assert isinstance(links, Ledgers)
        self._destinations = [f"decode{peer}" for peer in range(len(lands))]
        self._nodes = [links.receivers[name] for name in self._destinations]
        self._announced: list[PlannedPush] = []
        self._last: dict[int, tuple[int, Movable]] = {}  # push of each request, and to which peer

    def perform(self, request_id: int, acts: Acts) -> Any:
        """Run the prefill ahead, and wait for its end; tell what it pushes."""
        runtime, pages = self._runtime, self._pages[request_id]
        self._write_of = partial(self._planned_write, pages)
        end_s = runtime.run_ahead(acts(), [], runtime.now)
        pushes, self._announced = self._announced, []
        self._last[request_id] = (pages.peer, pushes[-1])
        carried = [round(entries * self.wire_entry_bytes) for entries in pages.planned[0]]
        metadata = [round(size) for size in pages.metadata_bytes]
        self._node(pages.peer).announce(pages.assign.slot, pushes, sum(carried), sum(metadata))
        return runtime.until(end_s)

    def _node(self, peer: int) -> "FoldedDecodeNode":
        node = self._nodes[peer]
        assert isinstance(node, FoldedDecodeNode)
        return node

    def push(self, request_id: int, blocks: Int, layer: int | None) -> Delivery:
        """Post blocks ahead of the clock, so that it can be taken back."""
        pages, runtime = self._pages[request_id], self._runtime
        if layer is None:
            runtime.may_undo(self._take_back, request_id, pages.posted, self._last[request_id])
            posting = super().push(request_id, blocks, layer)
            assert isinstance(posting, Foreseen)
            self._last[request_id] = (pages.peer, posting.flow)
            return posting
        pages.posted += len(blocks)
        push = PlannedPush(
            (self._number, request_id, layer, -1),
            self._link,
            self._destinations[pages.peer],
            self.wire_bytes(pages, pages.planned[0][layer], pages.planned[1][layer], layer),
            runtime.now,
            pages.assign.slot,
            self._nodes[pages.peer],
            self._write_of,
        )
        self._announced.append(push)
        return push

    def _planned_write(self, pages: Pages, layer: int) -> Write:
        blocks, planned = pages.plan.by_layer[layer], pages.planned
        parcel = self.parcel(pages, len(blocks), planned[0][layer], planned[1][layer], layer)
        return Write(parcel, self._number, blocks)

    def _take_back(self, request_id: int, posted: int, last: tuple[int, Movable]) -> None:
        self._pages[request_id].posted = posted
        self._last[request_id] = last

    async def drained(self, request_id: int) -> None:
        """Wait until no push for the request is under way; a reply never outlasts its iteration."""
        if request_id in self._last:
            peer, flow = self._last.pop(request_id)
            await self._nodes[peer].wait_for(flow)
            self._nodes[peer].report()


class FoldedDecodeNode(SimDecodeNode):
    """A decoding node that runs its iterations ahead against the ledger of its link."""

    runtime: AheadRuntime

    def __init__(
        self,
        runtime: AheadRuntime,
        experiment: Experiment,
        number: int,
        links: Links[Write],
        meter: Meter,
        recorder: Recorder,
    ) -> None:
        super().__init__(runtime, experiment, number, links, meter, recorder)
        self._one_way_s = experiment.network.one_way_s
        assert isinstance(self.links, Ledgers)
        self.ledger = self.links.open(self.name, self)
        self._flying: list[Foreseen] = []  # speculative pushes that no mask shows whole
        self._replies: dict[int, list[Foreseen]] = {}
        self._num_fetches = 0
        self.running: FoldedStep | None = None
        self.num_run_again = 0

    def make_landings(self) -> Landings:
        """Books of a slot's planned pushes."""
        return ForeseenLandings(self.runtime, self, self.experiment.geometry.num_layers)

    def step(self) -> SimStep:
        """Make an iteration."""
        return FoldedStep(self)

    # -- what is posted, and when it lands

    def expect(self, posting: Foreseen) -> None:
        """Something was posted to this node, ahead of the clock."""
        fetch_id = posting.write.fetch_id
        if fetch_id is None:
            self._flying.append(posting)
        else:
            self._replies.setdefault(fetch_id, []).append(posting)
        self.runtime.may_undo(_withdraw, posting)

    def announce(
        self, slot: int, pushes: Sequence[PlannedPush], proactive_bytes: int, metadata_bytes: int
    ) -> None:
        """A prefill begins that will push this, so many bytes of KV and of metadata in all."""
        landings = self.slots[slot].landings
        assert isinstance(landings, ForeseenLandings)
        landings.expect(pushes, proactive_bytes, metadata_bytes)
        self.ledger.add_all((push, push) for push in pushes)
        if self.running is not None and self.ledger.announced_s <= self.running.end_s:
            self.running.run_again()

    def lands_s(self, flow: Movable) -> float:
        """When a flow lands. It must have been posted by now."""
        if flow.end_s == INFINITY:
            self.ledger.serve(flow.posted_s)
        return flow.end_s + self._one_way_s

    def has_landed(self, flow: Movable) -> bool:
        """Whether a flow has landed by now, which may lie ahead of the clock."""
        return self.lands_s(flow) <= self.runtime.now

    async def wait_for(self, flow: Movable) -> None:
        """Wait until a flow has landed."""
        when_s = self.lands_s(flow)
        if when_s > self.runtime.now:
            await self.runtime.until(when_s)

    def number_fetch(self) -> int:
        """A number for a new fetch."""
        self._num_fetches += 1
        return self._num_fetches

    def take_replies(self, fetch_id: int) -> list[Foreseen]:
        """The postings that answer a fetch, with their ends."""
        postings = self._replies.pop(fetch_id)
        self.ledger.serve(max(posting.flow.posted_s for posting in postings))
        return postings

    # -- books and masks

    async def planned(self, slot: int) -> None:
        """Wait for all planned pushes."""
        await super().planned(slot)
        self.report()

    def complete(self, slot: int) -> bool:
        """Whether everything has landed, and the mask shows it."""
        if self.running is None:
            self.settle()
        return super().complete(slot)

    def settle(self) -> None:
        """Let masks take in all pieces that have arrived by now, which may lie ahead."""
        now = self.runtime.now
        if self.runtime.ahead_s is None:
            self.report()
        else:
            self.ledger.serve(now)
        for posting in self._flying:
            flow = posting.flow
            if flow.started_s < now:
                self._take_in(posting, flow.landed_pieces(now - self._one_way_s))
        if self._flying and self.runtime.ahead_s is None:
            self._flying = [posting for posting in self._flying if self._flies(posting)]

    def _flies(self, posting: Foreseen) -> bool:
        """Whether a mask has still to take in some of it."""
        is_seen = posting.landed_pieces == posting.flow.pieces
        return not is_seen and posting.write.parcel.slots[0] in self.slots

    def _take_in(self, posting: Foreseen, pieces: int) -> None:
        before = posting.landed_pieces
        slot = self.slots.get(posting.write.parcel.slots[0])
        if pieces <= before or slot is None:
            return
        blocks = posting.write.blocks[before:pieces]
        posting.landed_pieces = pieces
        if self.live:
            self.see(slot, blocks)
            self.runtime.may_undo(self._unsee, slot, blocks, posting, before)
        else:
            slot.unseen.append(blocks)

    def _unsee(self, slot: Slot, blocks: Int, posting: Foreseen, before: int) -> None:
        slot.mask.unland(blocks)
        posting.landed_pieces = before

    def report(self) -> None:
        """Write down what has landed by now, but for what a running iteration may yet take back."""
        now = self.runtime.env.now
        self.ledger.serve(now)
        arrived_s = now - self._one_way_s
        if self.running is None:
            postings = self.ledger.take(arrived_s)
        else:
            start_s = self.running.start_s
            postings = [
                posting
                for posting in self.ledger.ended(arrived_s)
                if isinstance(posting, PlannedPush) or posting.flow.posted_s < start_s
            ]
        for posting in postings:
            if not posting.reported:
                posting.reported = True
                if isinstance(posting, PlannedPush):
                    self._land_planned(posting)
                else:
                    self._land(posting)

    def _land(self, posting: Posting[Write]) -> None:
        parcel = posting.write.parcel
        for number in parcel.slots:
            if number not in self.slots:
                raise RuntimeError(f"{parcel.source} wrote into slot {number} after release")
        self._land_whole(posting, self.slots[parcel.slots[0]])

    def _land_planned(self, push: PlannedPush) -> None:
        """The same in short: of a plan's many pushes, books are kept when the last has landed."""
        if self.recorder.wants_transfers:
            self._land(push.posting())
            return
        self.meter.add(push)
        slot = self.slots[push.slot]
        landings = slot.landings
        assert isinstance(landings, ForeseenLandings)
        landings.land_in_order(push.layer)
        if landings.num_in_flight:
            return
        row = self.recorder.request(slot.request.request_id)
        row.plan_delivered_s = push.end_s + self._one_way_s
        row.proactive_bytes, row.metadata_bytes = landings.proactive_bytes, landings.metadata_bytes
        if not slot.num_undelivered:
            row.all_delivered_s = row.plan_delivered_s

    def replied(self, posting: Posting[Write]) -> None:
        """Whoever waits for a reply knew when it would come."""

    def take_back(self, from_s: float, undo: Undo) -> None:
        """Take back what an iteration has done ahead from a time on."""
        for act, arguments in reversed(undo):
            act(*arguments)
        undo.clear()
        self.ledger.withdraw(from_s, _is_withdrawn)
        self._flying = [posting for posting in self._flying if not posting.withdrawn]
        self._replies.clear()


def _withdraw(posting: Foreseen) -> None:
    posting.withdrawn = True


def _is_withdrawn(posting: Foreseen | PlannedPush) -> bool:
    return isinstance(posting, Foreseen) and posting.withdrawn


class FoldedStep(SimStep):
    """An iteration that is run ahead, and again when something is announced meanwhile."""

    _node: FoldedDecodeNode
    _runtime: AheadRuntime

    def __init__(self, node: FoldedDecodeNode) -> None:
        super().__init__(node)
        self._undo: Undo = []
        self._acts: Acts | None = None
        self._over = Waitable()
        self.end_s = self.start_s

    async def perform(self, acts: Acts) -> None:
        """Run the acts ahead, and wait for their end."""
        if not self.remote:  # nothing on the network matters, and the whole course is one act
            await acts()
            return
        self._acts, self._node.running = acts, self
        self._run_ahead()
        await self._over
        self._node.running = None
        self._undo.clear()

    def _run_ahead(self) -> None:
        assert self._acts is not None
        self.restart()
        self.end_s = self._runtime.run_ahead(self._acts(), self._undo, self.start_s)
        self._node.ledger.announced_s = float("inf")
        self._runtime.call_at(self.end_s, self._end)

    def _end(self, when_s: float) -> None:
        if when_s == self.end_s and not self._over.done:
            self._over.finish()

    def run_again(self) -> None:
        """Take back all of it and run it again, to another end."""
        self._node.take_back(self.start_s, self._undo)
        self._node.num_run_again += 1
        self._run_ahead()

    def fetch(self, split: TimedSplit) -> list[tuple[int, Fetch]]:
        """One request for rows a prefill node."""
        split.fetch_id = self._node.number_fetch()
        return self._fetches(split.layer, split.fetch_id, split.rows)

    async def fetched(self, split: TimedSplit) -> None:
        """Wait for the replies: all are posted, if ahead of the clock."""
        node = self._node
        postings = node.take_replies(split.fetch_id)
        await self._runtime.until(max(node.lands_s(posting.flow) for posting in postings))
        alone = [link for posting in postings for link in node.links.alone(posting.flow)]
        now = self._runtime.now
        self._timer.replied(now, interference_s(alone, now))
