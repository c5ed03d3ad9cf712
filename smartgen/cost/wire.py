"""A network without a clock: post a flow, ask when the next one ends, advance to a time.

Bytes are conserved at both ends: at no time do the flows on a link exceed its rate, and every flow
is re-timed whenever another one on its links starts or ends, or the rate of one of them changes.

Disciplines, at each receiving link:
    fifo        in order of posting, a later flow gets what earlier ones leave of its links, which
                is nothing unless their senders are slower: a fetch queues behind earlier pushes;
    queue_pair  one flow at a time within a queue pair, max-min fair between queue pairs;
    priority    the same as fifo, but urgent flows (fetches) come first and preempt the others.
"""

from bisect import insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from heapq import merge

from smartgen.cost.variation import Course, mean_rates

INFINITY = float("inf")


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes posted on one queue pair, delivered in order, as ``pieces`` equal parts.

    key breaks ties between flows posted at the same instant: (node, request, layer, block, ...).
    size is in wire bytes; the cost of messages is part of it.
    """

    key: tuple[int, ...]
    source: str
    destination: str
    queue_pair: str
    size: float
    pieces: int = 1
    urgent: bool = False
    posted_s: float = 0.0
    started_s: float = INFINITY
    end_s: float = INFINITY
    _rank: int = 0
    _since_s: float = 0.0
    _remaining: float = 0.0
    _rate: float = 0.0
    _past: list[tuple[float, float, float]] | None = None  # earlier _since_s, _remaining, _rate

    def __lt__(self, other: "Flow") -> bool:
        return (self._rank, self.posted_s, self.key) < (other._rank, other.posted_s, other.key)

    def remaining(self, now: float) -> float:
        """Wire bytes not yet delivered at now, which must not lie before the last change."""
        return max(0.0, self._remaining - self._rate * (now - self._since_s))

    def landed_pieces(self, now: float, one_way_s: float = 0.0) -> int:
        """Pieces that have arrived in full at now, so long after they were delivered.

        Before the last change of rate, none are known, except on a wire whose rates vary.
        """
        if self.end_s + one_way_s <= now:  # as those compare who wait for the end
            return self.pieces
        sent_s = now - one_way_s
        if self.size == 0:
            return 0
        if sent_s < self._since_s:
            return whole_pieces(self._was_remaining(sent_s), self.size, self.pieces)
        return whole_pieces(self.remaining(sent_s), self.size, self.pieces)

    def _was_remaining(self, then: float) -> float:
        """Wire bytes not yet delivered before the last change, as far as that is known."""
        for since_s, remaining, rate in reversed(self._past or ()):
            if since_s <= then:
                return max(0.0, remaining - rate * (then - since_s))
        return self.size


def whole_pieces(left: float, size: float, pieces: int) -> int:
    """Pieces that have arrived in full while left of size wire bytes have not."""
    # a piece that lands at this very instant counts, whatever the last bit says
    return int((1 - left / size) * pieces + 1e-6)


class Wire:
    """Links and the flows on them. Times are seconds on any clock that does not go back.

    rates: bytes per second of every link, by name; a flow uses its source and its destination.
    courses: of the links whose rate varies, by what factor.
    """

    def __init__(
        self,
        discipline: str,
        rates: Mapping[str, float],
        courses: Mapping[str, Course] | None = None,
    ) -> None:
        self._discipline = discipline
        self.rates = dict(rates)
        """Nominal bytes per second of every link, by name."""
        self._courses = dict(courses or {})
        self._rates = dict(rates)  # as they are now, of links that are used
        self._change_s = INFINITY  # when the rate of a link that is used changes next
        self._queues: dict[tuple[str, str], list[Flow]] = {}
        self._active: list[Flow] = []
        self._full: set[str] = set()  # in order: receivers at which nothing more could move
        self._senders: set[str] = set()
        self._receivers: set[str] = set()
        self._senders_never_limit = True
        self.next_end_s = INFINITY
        """When the next flow ends, or a rate changes, if nothing else is posted."""

    def post(self, now: float, flow: Flow) -> None:
        """Add a flow; call advance(now, now) first, so that nothing that ended is still queued."""
        flow.posted_s = flow._since_s = now
        flow._remaining = flow.size
        if self._courses:
            flow._past = []
        flow._rank = 1 if self._discipline == "priority" and not flow.urgent else 0
        if flow.source not in self._senders or flow.destination not in self._receivers:
            self._meet(flow)
        queue = self._queues.setdefault(self._queue_of(flow), [])
        # posted at the same instant, the key decides, unless the other has begun to move
        begun = queue and queue[0].started_s < now and queue[0]._rank <= flow._rank
        insort(queue, flow, lo=1 if begun else 0)
        if queue[0] is flow or flow.destination not in self._full:
            self._replan(now)

    def _meet(self, flow: Flow) -> None:
        """Note new links, and whether a sender could ever be slower than all receivers together."""
        self._senders.add(flow.source)
        self._receivers.add(flow.destination)
        self._compare()

    def _compare(self) -> None:
        slowest = min((self._rates[link] for link in self._senders), default=INFINITY)
        self._senders_never_limit = slowest >= sum(self._rates[link] for link in self._receivers)

    def advance(self, now: float, posted_before_s: float = INFINITY) -> list[Flow]:
        """Let time pass; return the flows that ended, in order of their end.

        Flows posted at posted_before_s or later do not end, though they may have nothing to send:
        what else is posted at their instant may come first.
        """
        ended: list[Flow] = []
        while self.next_end_s <= now:
            at = self.next_end_s
            done = [f for f in self._active if f.end_s <= at and f.posted_s < posted_before_s]
            if not done and self._change_s > at:
                break
            for flow in done:
                self._queues[self._queue_of(flow)].remove(flow)
            self._active = [flow for flow in self._active if flow not in done]
            ended += done
            self._replan(at)
        return ended

    def drop(self, now: float, queue_pairs: Collection[str]) -> list[Flow]:
        """Remove every flow of these queue pairs, as flushing them does; return the flows."""
        dropped = []
        for queue in self._queues.values():
            dropped += [flow for flow in queue if flow.queue_pair in queue_pairs]
            queue[:] = [flow for flow in queue if flow.queue_pair not in queue_pairs]
        self._hold(now)
        self._replan(now)
        return dropped

    def withdraw(self, now: float, flow: Flow) -> None:
        """Remove one flow, if it has not ended."""
        for queue in self._queues.values():
            if flow in queue:
                queue.remove(flow)
        self._hold(now)
        self._replan(now)

    def _hold(self, now: float) -> None:
        """Note what active flows have moved so far."""
        for flow in self._active:
            if flow._past is not None:
                flow._past.append((flow._since_s, flow._remaining, flow._rate))
            flow._remaining, flow._since_s = flow.remaining(now), now

    def _queue_of(self, flow: Flow) -> tuple[str, str]:
        if self._discipline == "queue_pair":
            return flow.destination, flow.queue_pair
        return flow.destination, ""

    def mean_rates(self, first_s: float, last_s: float) -> Mapping[str, float]:
        """Bytes per second of every link, on average over that time."""
        if not self._courses:
            return self.rates
        return mean_rates(self.rates, self._courses, first_s, last_s)

    def _vary(self, now: float) -> None:
        """Take up the rates of now, and note when one of a link with flows changes next."""
        self._change_s = INFINITY
        busy = {queue[0].destination for queue in self._queues.values() if queue}
        if not self._senders.isdisjoint(self._courses):
            busy |= {flow.source for queue in self._queues.values() for flow in queue}
        for link, course in self._courses.items():
            factor, until_s = course.piece(now)
            self._rates[link] = self.rates[link] * factor
            if link in busy:
                self._change_s = min(self._change_s, until_s)
        self._compare()

    def _replan(self, now: float) -> None:
        if self._courses:
            self._vary(now)
        if self._discipline == "queue_pair":
            heads = [queue[0] for queue in self._queues.values() if queue]
            served = list(zip(heads, self._share(heads), strict=True))
        else:
            served = self._serve_in_order()
        heads = [flow for flow, _ in served]
        for flow in self._active:
            if flow not in heads:
                _retime(flow, now, 0.0)
        for flow, rate in served:
            _retime(flow, now, rate)
        self._active = heads
        self.next_end_s = min((flow.end_s for flow in heads), default=INFINITY)
        if self._change_s < self.next_end_s:
            self.next_end_s = self._change_s

    def _serve_in_order(self) -> list[tuple[Flow, float]]:
        """Flows in order of posting, each with what those before it leave of its two links.

        Where senders are at least as fast as all receivers, that is one flow at a time for each.
        """
        queues = [queue for queue in self._queues.values() if queue]
        open_links = {queue[0].destination for queue in queues}
        if self._senders_never_limit:
            self._full = open_links
            return [(queue[0], self._rates[queue[0].destination]) for queue in queues]
        left: dict[str, float] = {}
        self._full = set()
        served: list[tuple[Flow, float]] = []
        for flow in merge(*queues):
            receiver, sender = flow.destination, flow.source
            receiver_left = left.get(receiver, self._rates[receiver])
            sender_left = left.get(sender, self._rates[sender])
            rate = min(receiver_left, sender_left)
            if rate > 0:
                served.append((flow, rate))
                left[receiver], left[sender] = receiver_left - rate, sender_left - rate
                if left[receiver] <= 0:
                    self._full.add(receiver)
                    if self._full == open_links:
                        break
        return served

    def _share(self, flows: list[Flow]) -> list[float]:
        """Max-min fair rates: the most loaded link fixes its flows, and the rest share on."""
        if len(flows) == 1:
            return [min(self._rates[flows[0].source], self._rates[flows[0].destination])]
        rates = [0.0] * len(flows)
        left = dict(self._rates)
        open_flows = set(range(len(flows)))
        while open_flows:
            users: dict[str, list[int]] = {}
            for i in sorted(open_flows):
                for link in {flows[i].source, flows[i].destination}:
                    users.setdefault(link, []).append(i)
            share, link = min((left[link] / len(ids), link) for link, ids in users.items())
            for i in users[link]:
                rates[i] = share
                open_flows.discard(i)
                for used in {flows[i].source, flows[i].destination}:
                    left[used] = max(0.0, left[used] - share)
        return rates


def _retime(flow: Flow, now: float, rate: float) -> None:
    if rate == flow._rate:  # untouched flows keep their exact end
        return
    if flow._past is not None:
        flow._past.append((flow._since_s, flow._remaining, flow._rate))
    flow._remaining, flow._since_s, flow._rate = flow.remaining(now), now, rate
    if rate > 0:
        flow.started_s = min(flow.started_s, now)
        flow.end_s = now + flow._remaining / rate
    else:
        flow.end_s = INFINITY
        if flow._remaining == flow.size:  # displaced before it moved
            flow.started_s = INFINITY
