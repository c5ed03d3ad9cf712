"""A prefill process's sending side: postings ring a doorbell, and move once they are granted."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from smartgen.cost import Flow
from smartgen.cost.shaper import Land, Posted, Posting
from smartgen.emu.pool import Bytes
from smartgen.emu.processes.arena import Chain
from smartgen.emu.processes.driver import Driver
from smartgen.emu.processes.words import Doorbell, Withdrawn, Word
from smartgen.emu.transports.protocol import Completion, Device, PostRefused, Region, Segments
from smartgen.engine.messages import Fetch
from smartgen.kv.geometry import Int
from smartgen.nodes.timed_prefill import Write


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """What a push moves: bytes of the arena to the peer's, decided when it is granted."""

    chain: Callable[[], Chain]
    checksums: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a reply moves: rows one after the other, and where they go at the peer."""

    rows: Bytes  # [entries of all heads, row_bytes]
    lengths: Int  # bytes of every row of the index
    targets: Int  # where each begins in the peer's arena


def places_of(fetch: Fetch, row_bytes: int) -> tuple[Int, Int]:
    """Bytes of every row of a fetch, and where it goes at the decoding node; none that is empty."""
    lengths = np.concatenate([np.array(rows.lengths, dtype=np.int64) for rows in fetch.rows])
    targets = np.concatenate([np.frombuffer(rows.targets, dtype=np.int64) for rows in fetch.rows])
    return lengths[lengths > 0] * row_bytes, targets[lengths > 0]


def answer_to(fetch: Fetch, gathered: Sequence[Bytes], row_bytes: int) -> Answer:
    """The reply to a fetch."""
    return Answer(np.concatenate(gathered), *places_of(fetch, row_bytes))


class Scratch:
    """Registered memory for replies, taken and given back; a size is a power of two."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[int, list[Region]] = {}

    def take(self, num_bytes: int) -> Region:
        """Memory for so many bytes."""
        size = 1 << max(12, (num_bytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        return free.pop() if free else self._device.register(size)

    def give(self, region: Region) -> None:
        """It is used no more."""
        self._free[len(region.memory)].append(region)


class Backlog:
    """Postings on a queue pair that do not fit yet; nothing overtakes.

    refused(wr_id) is called for one that does not fit though nothing else is under way.
    """

    def __init__(self, refused: Callable[[int], None]) -> None:
        self._refused = refused
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._num_open = 0

    def add(self, wr_id: int, post: Callable[[], None]) -> None:
        """Post now, or as soon as there is room."""
        self._waiting.append((wr_id, post))
        self._post()

    def completed(self) -> None:
        """A posting has completed."""
        self._num_open -= 1
        self._post()

    def _post(self) -> None:
        while self._waiting:
            wr_id, post = self._waiting[0]
            try:
                post()
            except PostRefused:
                if self._num_open:  # when one of them completes there is room
                    return
                self._waiting = deque(w for w in self._waiting if w[0] != wr_id)
                self._refused(wr_id)
            else:
                self._num_open += 1
                self._waiting.popleft()


class Sender:
    """All that goes to one decoding process. shaped: wait for grants.

    lane: how rows of replies get into place. failed is called with the flow of a push that was
    refused, broken where the peer cannot be served any more.
    """

    def __init__(
        self,
        device: Device,
        arena: Region,
        peer_key: int,
        lane: str,
        shaped: bool,
        tell: Callable[[Word], None],
        failed: Callable[[Posting[Write]], None],
        broken: Callable[[str], None],
    ) -> None:
        self._arena, self._peer_key, self._lane = arena, peer_key, lane
        self._shaped, self._tell = shaped, tell
        self._failed, self._broken = failed, broken
        self._scratch = Scratch(device)
        self._postings: dict[int, Posting[Write]] = {}
        self._num_postings = 0
        self._sending: dict[int, tuple[Region, int]] = {}  # replies: memory, parts to complete
        self._pushes: Driver | None = None
        self._replies: Driver | None = None
        self._push_backlog = Backlog(self._push_refused)
        self._reply_backlog = Backlog(self._reply_refused)

    def connect(self, pushes: Driver, replies: Driver) -> None:
        """Send over these from now on."""
        self._pushes, self._replies = pushes, replies

    # -- Links, as the node wants them

    def post(self, flow: Flow, write: Write, land: Land[Write]) -> Posting[Write]:
        """Ring the doorbell; the bytes move when the link is granted."""
        self._num_postings += 1
        flow_id = self._num_postings
        posting = self._postings[flow_id] = Posting(flow, write, land)
        push = write.payload
        bell = Doorbell(
            flow_id,
            flow.key,
            flow.source,
            flow.queue_pair,
            flow.size,
            flow.pieces,
            flow.urgent,
            write.parcel,
            write.blocks.tobytes(),
            write.fetch_id,
            push.checksums if isinstance(push, Push) else b"",
        )
        self._tell(bell)
        if not self._shaped:
            self.granted(flow_id)
        return posting

    def settle(self) -> None:
        """What has landed is told."""

    def drop(self, queue_pairs: Collection[str]) -> list[Posting[Write]]:
        """Only a peer that is gone drops anything, and then all."""
        return []

    def alone(self, flow: Posted) -> list[tuple[str, float, float]]:
        """Nobody asks a sender."""
        return []

    # -- what the decoding process and the queue pairs say

    def granted(self, flow_id: int) -> None:
        """The link is free for a posting."""
        posting = self._postings.get(flow_id)
        if posting is None:
            return
        payload = posting.write.payload
        if isinstance(payload, Push):
            self._send_push(flow_id, payload)
        elif isinstance(payload, Answer):
            self._send_reply(flow_id, payload, posting.write.fetch_id or 0)

    def landed(self, flow_id: int) -> None:
        """A posting is at the decoding node."""
        posting = self._postings.pop(flow_id, None)
        if posting is not None:
            first, posting.landed_pieces = posting.landed_pieces, posting.flow.pieces
            posting.land(posting, first, posting.flow.pieces)

    def withdraw(self, flow_id: int) -> None:
        """A posting will not be sent; whoever waits for it to drain need not."""
        posting = self._postings.get(flow_id)
        if posting is not None:
            self._tell(Withdrawn(flow_id))
            self._failed(posting)
            self.landed(flow_id)

    def push_completed(self, _: Completion) -> None:
        """The peer has acknowledged a chain."""
        self._push_backlog.completed()

    def reply_completed(self, completion: Completion) -> None:
        """The peer has acknowledged a part of a reply."""
        region, parts = self._sending.pop(completion.wr_id)
        if parts > 1:
            self._sending[completion.wr_id] = region, parts - 1
        else:
            self._scratch.give(region)
        self._reply_backlog.completed()

    # -- lanes

    def _send_push(self, flow_id: int, push: Push) -> None:
        pushes = self._pushes
        assert pushes is not None
        parts = push.chain().parts(pushes.most_writes)
        for number, part in enumerate(parts, start=1):
            if flow_id not in self._postings:  # a part before it was refused
                return
            immediate = flow_id if number == len(parts) else None
            local = Segments(self._arena, part.sources, part.lengths)
            self._push_backlog.add(
                flow_id,
                lambda local=local, part=part, immediate=immediate: pushes.writes(  # type: ignore[misc]
                    flow_id, local, self._peer_key, part.targets, immediate
                ),
            )

    def _send_reply(self, flow_id: int, reply: Answer, fetch_id: int) -> None:
        replies = self._replies
        assert replies is not None
        region = self._scratch.take(reply.rows.size)
        region.memory[: reply.rows.size] = reply.rows.reshape(-1)
        ends = np.cumsum(reply.lengths)
        local = Segments(region, ends - reply.lengths, reply.lengths)
        groups = grouped(local, self._lane, replies.sges, replies.most_writes)
        self._sending[flow_id] = region, len(groups)
        done = 0
        for number, group in enumerate(groups, start=1):
            targets = reply.targets[done : done + len(group.lengths)]
            done += len(group.lengths)
            immediate = fetch_id & 0xFFFFFFFF if number == len(groups) else None
            self._reply_backlog.add(
                flow_id,
                lambda group=group, targets=targets, immediate=immediate: (  # type: ignore[misc]
                    replies.writes(flow_id, group, self._peer_key, targets, immediate)
                    if self._lane == "row_writes"
                    else replies.send(flow_id, group)
                ),
            )

    def _push_refused(self, flow_id: int) -> None:
        self.withdraw(flow_id)

    def _reply_refused(self, _: int) -> None:
        # the peer has posted receives for it, which nothing can take back
        self._broken("a reply to its fetch was refused by the queue pair")


def grouped(rows: Segments, lane: str, sges: int, most_writes: int) -> list[Segments]:
    """Rows as they are sent, a SEND or a chain each; both ends come to the same ones.

    scatter: at most sges rows a SEND; staging: all of them in one segment; row_writes: chains of at
    most so many WRITEs.
    """
    if lane == "staging":
        first, total = rows.offsets[:1], rows.lengths.sum(keepdims=True)
        return [Segments(rows.region, first, total)]
    most = sges if lane == "scatter" else most_writes
    return [
        Segments(rows.region, rows.offsets[i : i + most], rows.lengths[i : i + most])
        for i in range(0, len(rows.lengths), most)
    ]
