"""The network as the decoding process sees it: what is on its way, and when it counts as landed.

Prefill processes ring a doorbell for every posting. A Wire plans them; as one's turn comes its
sender is granted the link and moves the bytes, and when its time on the link is over it lands. If
the bytes are not here by then, it lands when they are, and later than planned.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from smartgen.cluster import links, varying_links
from smartgen.cost import Flow, Wire
from smartgen.cost.shaper import Land, Posted, Posting, Shaper, alone
from smartgen.emu.processes.words import Doorbell, Grant, Landed, Word
from smartgen.emu.runtime import EmuRuntime
from smartgen.experiment import Experiment
from smartgen.nodes.timed_prefill import Write

Tell = Callable[[int, Word], None]
"""Say something to a prefill process."""


@dataclass(slots=True, eq=False)
class Coming:
    """A posting of a prefill process; due: pieces whose time has come, [first, stop)."""

    peer: int
    flow_id: int
    checksums: bytes
    here: bool = False
    due: tuple[int, int] | None = None


class _Clock:
    """A clock for the Wire that does not go back, though doorbells are heard a little late."""

    def __init__(self, runtime: EmuRuntime) -> None:
        self._runtime, self._last_s = runtime, 0.0
        self.call_at = runtime.call_at

    @property
    def now(self) -> float:
        self._last_s = max(self._last_s, self._runtime.now)
        return self._last_s


class _Granting(Shaper[Write]):
    """A shaper that says when a posting's turn has come."""

    def __init__(
        self, clock: _Clock, wire: Wire, one_way_s: float, grant: Callable[[Coming], None]
    ) -> None:
        super().__init__(clock, wire, one_way_s)
        self._grant = grant
        self._waiting: dict[Flow, Coming] = {}

    def post(self, flow: Flow, write: Write, land: Land[Write]) -> Posting[Write]:
        self._waiting[flow] = write.payload
        return super().post(flow, write, land)

    def _arm(self) -> None:
        super()._arm()
        begun = [flow for flow in self._waiting if flow.started_s < float("inf")]
        for flow in begun:
            self._grant(self._waiting.pop(flow))

    def forget(self, flow: Flow) -> None:
        """Grant it no more."""
        self._waiting.pop(flow, None)


class Arrivals:
    """Postings of all prefill processes, by peer and number.

    shaped: planned on a Wire; else a posting lands as its bytes come. land hands a posting to the
    node, as a Shaper would.
    """

    def __init__(
        self,
        runtime: EmuRuntime,
        experiment: Experiment,
        shaped: bool,
        land: Land[Write],
        tell: Tell,
    ) -> None:
        self._runtime, self._land, self._tell = runtime, land, tell
        network, cluster = experiment.network, experiment.cluster
        self._rates = links(network, cluster)
        self._one_way_s = network.one_way_s
        wire = Wire(network.discipline, self._rates, varying_links(network, cluster))
        self._clock = _Clock(runtime)
        self._shaper = (
            _Granting(self._clock, wire, self._one_way_s, self._grant) if shaped else None
        )
        self._postings: dict[tuple[int, int], Posting[Write]] = {}
        self._fetches: dict[tuple[int, int], int] = {}
        self._early: set[tuple[int, int, bool]] = set()
        self.late_s: list[float] = []
        """Of every posting that landed later than planned, by how much."""

    # -- what prefill processes and queue pairs say

    def ring(self, peer: int, bell: Doorbell) -> None:
        """A posting."""
        flow = Flow(
            bell.key,
            bell.link,
            "decode0",
            bell.queue_pair,
            bell.size,
            bell.pieces,
            bell.urgent,
        )
        coming = Coming(peer, bell.flow_id, bell.checksums)
        blocks = np.frombuffer(bell.blocks, dtype=np.int64)
        write = Write(bell.parcel, peer, blocks, bell.fetch_id, coming)
        if bell.fetch_id is not None:
            self._fetches[peer, bell.fetch_id] = bell.flow_id
        if self._shaper is not None:
            posting = self._shaper.post(flow, write, self._due)
        else:
            flow.posted_s = flow.started_s = self._runtime.now
            posting = Posting(flow, write, self._due)
        if not posting.landed:
            self._postings[peer, bell.flow_id] = posting
        number = bell.flow_id if bell.fetch_id is None else bell.fetch_id
        known = (peer, number, bell.fetch_id is not None)
        if known in self._early:
            self._early.discard(known)
            self._come(peer, bell.flow_id)

    def pushed(self, peer: int, flow_id: int) -> None:
        """The bytes of a push are here."""
        if (peer, flow_id) in self._postings:
            self._come(peer, flow_id)
        else:  # it has overtaken its doorbell
            self._early.add((peer, flow_id, False))

    def replied(self, peer: int, fetch_id: int) -> None:
        """The rows of a fetch are here."""
        flow_id = self._fetches.pop((peer, fetch_id), None)
        if flow_id is None:
            self._early.add((peer, fetch_id, True))
        else:
            self._come(peer, flow_id)

    def withdrawn(self, peer: int, flow_id: int) -> None:
        """A posting's bytes will never come; those behind it move up."""
        posting = self._postings.pop((peer, flow_id), None)
        if posting is not None and self._shaper is not None:
            self._shaper.forget(posting.flow)
            self._shaper.withdraw(posting)

    # -- Links, as the node wants them

    def post(self, flow: Flow, write: Write, land: Land[Write]) -> Posting[Write]:
        """The decoding process posts nothing."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let everything land whose time has come."""
        if self._shaper is not None:
            self._shaper.settle()

    def drop(self, queue_pairs: Collection[str]) -> list[Posting[Write]]:
        """Forget what comes over these queue pairs; returns it."""
        if self._shaper is not None:
            self._shaper.drop(queue_pairs)
        dropped = [p for p in self._postings.values() if p.flow.queue_pair in queue_pairs]
        for posting in dropped:
            coming: Coming = posting.write.payload
            del self._postings[coming.peer, coming.flow_id]
            if self._shaper is not None:
                self._shaper.forget(posting.flow)
        return dropped

    def alone(self, flow: Posted) -> list[tuple[str, float, float]]:
        """When a flow was posted on each of its links, and for how long it keeps it busy."""
        if self._shaper is not None:
            return self._shaper.alone(flow)
        return alone(flow, self._rates, self._one_way_s)

    # -- planned and here

    def _grant(self, coming: Coming) -> None:
        self._tell(coming.peer, Grant(coming.flow_id))

    def _due(self, posting: Posting[Write], first: int, stop: int) -> None:
        """The time of some pieces has come."""
        coming: Coming = posting.write.payload
        coming.due = (first if coming.due is None else coming.due[0], stop)
        if coming.here:
            self._hand_over(posting)

    def _come(self, peer: int, flow_id: int) -> None:
        """All bytes of a posting are here."""
        posting = self._postings[peer, flow_id]
        coming: Coming = posting.write.payload
        coming.here = True
        if self._shaper is None or coming.due is not None:  # as late as it really is
            self._runtime.call_at(self._runtime.real_s, lambda _: self._come_late(posting))

    def _come_late(self, posting: Posting[Write]) -> None:
        """Its bytes are here only now, or nobody has planned when it should land."""
        coming: Coming = posting.write.payload
        if (coming.peer, coming.flow_id) not in self._postings:
            return  # dropped meanwhile
        if self._shaper is None:
            posting.landed_pieces, coming.due = posting.flow.pieces, (0, posting.flow.pieces)
            posting.flow.end_s = self._runtime.now
        elif posting.landed:
            planned_s = posting.flow.end_s
            posting.flow.end_s = max(planned_s, self._runtime.now - self._one_way_s)
            self.late_s.append(posting.flow.end_s - planned_s)
        if coming.due is not None:
            self._hand_over(posting)

    def _hand_over(self, posting: Posting[Write]) -> None:
        coming: Coming = posting.write.payload
        assert coming.due is not None
        first, stop = coming.due
        coming.due = None
        if posting.landed:
            self._postings.pop((coming.peer, coming.flow_id), None)
            self._tell(coming.peer, Landed(coming.flow_id))
        self._land(posting, first, stop)
