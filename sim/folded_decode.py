"""A decoding node that runs its iterations ahead of the clock: one event each.

An iteration is run at its start against the ledger of the node's receiving link. When something is
announced meanwhile that is posted before its end, it is taken back at once and run again; what
happened before the announcement comes out as before, so the new end is never in the past.
"""

from bisect import insort
from collections.abc import Sequence

from smartgen.cost.shaper import Links, Posting
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
from smartgen.sim.ahead import Acts, AheadRuntime, Undo
from smartgen.sim.foreseen import Ledgers, Receiver, Sent
from smartgen.sim.ledger import INFINITY, Ledger
from smartgen.sim.nodes import SimDecodeNode, SimStep
from smartgen.sim.runtime import Waitable


class ForeseenLandings(Landings):
    """Planned pushes of one slot, of which it is known when they land once they are announced."""

    def __init__(self, runtime: AheadRuntime, node: Receiver, num_layers: int) -> None:
        super().__init__(runtime, num_layers)
        self._node = node
        self.pushes: Sequence[Sent] = ()
        """By layer."""
        self.metadata_bytes = 0
        """What all of them carry together."""

    def land_in_order(self, layer: int) -> None:
        """A layer's push has landed; nobody has to be woken."""
        if layer != len(self.pushes) - self.num_in_flight:
            raise RuntimeError(f"the planned blocks of layer {layer} were delivered out of order")
        self.num_in_flight -= 1

    def in_flight(self, layer: int) -> bool:
        """Whether the layer's planned push is still to come."""
        return not self._node.has_landed(self.pushes[layer])

    async def layer(self, layer: int) -> None:
        """Wait for one layer."""
        await self._node.wait_for(self.pushes[layer])

    async def all(self) -> None:
        """Wait for all layers: they are pushed in order."""
        await self._node.wait_for(self.pushes[-1])


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
        self.ledger: Ledger[Sent] = self.links.open(self.name, self)
        # speculative pushes in the order in which they land; masks show the first of them whole
        self._flying: list[tuple[float, tuple[int, ...], Sent]] = []
        self._num_seen = 0
        self._replies: dict[int, list[Sent]] = {}
        self._num_fetches = 0
        self.running: FoldedStep | None = None
        self.num_run_again = 0

    def make_landings(self) -> Landings:
        """Books of a slot's planned pushes."""
        return ForeseenLandings(self.runtime, self, self.experiment.geometry.num_layers)

    def step(self) -> SimStep:
        """Make an iteration."""
        return FoldedStep(self)

    # -- what is sent, and when it lands

    def announce(self, slot: int, pushes: Sequence[Sent], metadata_bytes: int) -> None:
        """A prefill begins that will push this."""
        landings = self.slots[slot].landings
        assert isinstance(landings, ForeseenLandings)
        landings.pushes, landings.metadata_bytes = pushes, metadata_bytes
        self.ledger.add_all(pushes)
        if self.running is not None and self.ledger.announced_s <= self.running.end_s:
            self.running.run_again()

    def expect(self, push: Sent) -> None:
        """Something is pushed speculatively, ahead of the clock."""
        self.ledger.add(push)
        insort(self._flying, (push.posted_s, push.key, push), lo=self._num_seen)
        self.runtime.may_undo(_withdraw, push)

    def expect_reply(self, fetch_id: int, reply: Sent) -> None:
        """A reply is sent, ahead of the clock."""
        self.ledger.add(reply)
        self._replies.setdefault(fetch_id, []).append(reply)
        self.runtime.may_undo(_withdraw, reply)

    def lands_s(self, sent: Sent) -> float:
        """When something lands. It must have been posted by now."""
        if sent.end_s == INFINITY:
            self.ledger.serve(sent.posted_s)
        return sent.end_s + self._one_way_s

    def has_landed(self, sent: Sent) -> bool:
        """Whether something has landed by now, which may lie ahead of the clock."""
        return self.lands_s(sent) <= self.runtime.now

    async def wait_for(self, sent: Sent) -> None:
        """Wait until something has landed."""
        when_s = self.lands_s(sent)
        if when_s > self.runtime.now:
            await self.runtime.until(when_s)

    def observe_rate(self) -> float | None:
        """Bytes a second at which requests' planned pushes have arrived."""
        self.report()
        return None if self.observer is None else self.observer.rate

    def number_fetch(self) -> int:
        """A number for a new fetch."""
        self._num_fetches += 1
        return self._num_fetches

    def take_replies(self, fetch_id: int) -> list[Sent]:
        """What answers a fetch; all of it is posted, if ahead of the clock."""
        replies = self._replies.pop(fetch_id)
        self.ledger.serve(max(reply.posted_s for reply in replies))
        return replies

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
        flying, at = self._flying, self._num_seen
        while at < len(flying) and flying[at][2].started_s < now:
            push = flying[at][2]
            pieces = push.pieces_at(now, self._one_way_s)
            if pieces > push.landed_pieces:
                self._take_in(push, pieces)
            if push.end_s + self._one_way_s > now:
                break
            at += 1
        self._num_seen = at
        if at and self.runtime.ahead_s is None:
            del flying[:at]
            self._num_seen = 0

    def _take_in(self, push: Sent, pieces: int) -> None:
        slot = self.slots.get(push.key[3])
        if slot is None:
            return
        assert push.blocks is not None
        before, push.landed_pieces = push.landed_pieces, pieces
        blocks = push.blocks[before:pieces]
        if self.live:
            self.see(slot, blocks)
            self.runtime.may_undo(self._unsee, slot, blocks, push, before)
        else:
            slot.unseen.append(blocks)

    def _unsee(self, slot: Slot, blocks: Int, push: Sent, before: int) -> None:
        slot.mask.unland(blocks)
        push.landed_pieces = before

    def report(self) -> None:
        """Write down what has landed by now, but for what a running iteration may yet take back."""
        now = self.runtime.env.now
        self.ledger.serve(now)
        if self.running is None:
            landed = self.ledger.take(now, self._one_way_s)
        else:
            start_s = self.running.start_s
            landed = [
                sent
                for sent in self.ledger.ended(now, self._one_way_s)
                if sent.posted_s < start_s or sent.is_planned
            ]
        for sent in landed:
            if not sent.reported:
                sent.reported = True
                self._report(sent)

    def _report(self, sent: Sent) -> None:
        """Keep the books that _land_whole keeps, in short where no transfers are wanted."""
        if self.recorder.wants_transfers:
            posting = sent.posting()
            self._land_whole(posting, self.slots[posting.write.parcel.slots[0]])
            return
        self.meter.add(sent)
        if sent.fetch is not None:
            if self.observer is not None:
                self.observer.replied(sent)
            self._report_reply(sent.fetch, sent.data_bytes)
            return
        if sent.key[3] not in self.slots:
            raise RuntimeError(f"{sent.source} wrote into slot {sent.key[3]} after release")
        slot = self.slots[sent.key[3]]
        row = self.recorder.request(slot.request.request_id)
        landings, lands_s = slot.landings, sent.end_s + self._one_way_s
        if sent.blocks is not None:
            self.note_speculative(slot, sent.data_bytes, len(sent.blocks), lands_s, sent)
            row.add_bytes(Purpose.SPECULATIVE, sent.data_bytes)
        else:
            assert isinstance(landings, ForeseenLandings)
            landings.land_in_order(sent.key[2])
            self.note_planned(slot, lands_s, sent)
            if not landings.num_in_flight:
                row.proactive_bytes = sum(round(push.data_bytes) for push in landings.pushes)
                row.metadata_bytes = landings.metadata_bytes

    def _report_reply(self, fetch: Fetch, num_bytes: float) -> None:
        self.landed_bytes[Purpose.ON_DEMAND] += num_bytes
        for rows in fetch.rows:
            row = self.recorder.request(rows.request_id)
            row.add_bytes(Purpose.ON_DEMAND, rows.entries * self.experiment.geometry.entry_bytes)

    def replied(self, posting: Posting[Write]) -> None:
        """Whoever waits for a reply knew when it would come."""

    def take_back(self, from_s: float, undo: Undo) -> None:
        """Take back what an iteration has done ahead from a time on."""
        for act, arguments in reversed(undo):
            act(*arguments)
        undo.clear()
        self.ledger.withdraw(from_s, _is_withdrawn)
        self._num_seen = 0
        self._flying = [row for row in self._flying if not row[2].withdrawn]
        self._replies.clear()


def _withdraw(sent: Sent) -> None:
    sent.withdrawn = True


def _is_withdrawn(sent: Sent) -> bool:
    return sent.withdrawn


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
        self._node.ledger.announced_s = INFINITY
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
        start_s = self._runtime.now
        replies = node.take_replies(split.fetch_id)
        await self._runtime.until(max(node.lands_s(reply) for reply in replies))
        alone = [link for reply in replies for link in node.links.alone(reply)]
        now = self._runtime.now
        self._keep("fetch", split.layer, start_s)
        self._timer.replied(now, interference_s(alone, now))
