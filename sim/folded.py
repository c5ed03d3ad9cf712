"""Simulated nodes that run their acts ahead of the clock: one event a prefill, one an iteration.

A prefill announces all its pushes when it starts. An iteration is run at its start against the
ledger of the node's receiving link; when its end has come and something was announced meanwhile
that is posted before the end, it is taken back and run again. On a link that serves first in,
first out that can only make it longer, so the end never comes too late.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from smartgen.cost.shaper import Land, Links, Posting
from smartgen.engine.messages import Fetch
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Purpose, Recorder
from smartgen.nodes.landings import Landings
from smartgen.nodes.meter import Meter
from smartgen.nodes.replies import interference_s
from smartgen.nodes.slot import Slot
from smartgen.nodes.timed_prefill import Write
from smartgen.nodes.timed_step import TimedSplit
from smartgen.sim.ahead import AheadRuntime
from smartgen.sim.foreseen import Foreseen, ForeseenLandings, Ledgers
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
        self._last: dict[int, Foreseen] = {}  # push of each request

    def perform(self, request_id: int, acts: Acts) -> Any:
        """Run the prefill ahead; wait for its end."""
        runtime = self._runtime
        end_s = runtime.run_ahead(acts(), [], runtime.now)
        receiver = self._last[request_id].receiver
        assert isinstance(receiver, FoldedDecodeNode)
        receiver.hear()
        return runtime.until(end_s)

    def push(self, request_id: int, blocks: Int, layer: int | None) -> Posting[Write]:
        """Post blocks; ahead of the clock, so that it can be taken back."""
        pages = self._pages[request_id]
        before = self._last.get(request_id)
        if layer is None and before is not None:
            self._runtime.may_undo(self._take_back, request_id, pages.posted, before)
        posting = super().push(request_id, blocks, layer)
        assert isinstance(posting, Foreseen)
        self._last[request_id] = posting
        return posting

    def _take_back(self, request_id: int, posted: int, last: Foreseen) -> None:
        self._pages[request_id].posted = posted
        self._last[request_id] = last

    async def drained(self, request_id: int) -> None:
        """Wait until no push for the request is under way; a reply never outlasts its iteration."""
        last = self._last.pop(request_id, None)
        if last is not None:
            assert isinstance(last.receiver, FoldedDecodeNode)
            await last.receiver.wait_for(last)
            last.receiver.report()


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
        """Something was posted to this node, or announced."""
        write = posting.write
        if write.fetch_id is not None:
            self._replies.setdefault(write.fetch_id, []).append(posting)
        elif write.parcel.purpose == Purpose.SPECULATIVE:
            self._flying.append(posting)
        else:
            landings = self.slots[write.parcel.slots[0]].landings
            assert isinstance(landings, ForeseenLandings)
            landings.expect(posting)
        self.runtime.may_undo(_withdraw, posting)

    def lands_s(self, posting: Foreseen) -> float:
        """When a posting lands. It must have been posted by now."""
        flow = posting.flow
        if flow.end_s == float("inf"):
            self.ledger.serve(flow.posted_s)
        return flow.end_s + self._one_way_s

    async def wait_for(self, posting: Foreseen) -> None:
        """Wait until a posting has landed."""
        when_s = self.lands_s(posting)
        if when_s > self.runtime.now:
            await self.runtime.until(when_s)

    def hear(self) -> None:
        """Something was announced."""
        if self.running is not None and self.ledger.announced_s <= self.running.end_s:
            self.running.run_again()

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
                if posting.flow.posted_s < start_s
                or posting.write.parcel.purpose == Purpose.PROACTIVE
            ]
        for posting in postings:
            assert isinstance(posting, Foreseen)
            if not posting.reported:
                posting.reported = True
                self._report(posting)

    def _report(self, posting: Foreseen) -> None:
        parcel = posting.write.parcel
        for number in parcel.slots:
            if number not in self.slots:
                raise RuntimeError(f"{parcel.source} wrote into slot {number} after release")
        self._land_whole(posting, self.slots[parcel.slots[0]])

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


def _is_withdrawn(posting: Posting[Write]) -> bool:
    assert isinstance(posting, Foreseen)
    return posting.withdrawn


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
        await self._runtime.until(max(node.lands_s(posting) for posting in postings))
        alone = [link for posting in postings for link in node.links.alone(posting.flow)]
        now = self._runtime.now
        self._timer.replied(now, interference_s(alone, now))
