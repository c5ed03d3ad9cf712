"""Simulated nodes: the timed nodes at block resolution. Nothing moves but counts."""

from smartgen.engine.messages import Rows
from smartgen.nodes.slot import Slot
from smartgen.nodes.timed_decode import TimedDecodeNode
from smartgen.nodes.timed_prefill import TimedPrefillNode
from smartgen.nodes.timed_step import TimedStep


class SimPrefillNode(TimedPrefillNode):
    """A prefill node that knows how many entries its blocks have, and no more."""


class SimStep(TimedStep[Slot]):
    """An iteration whose remote entries are counted from a draw and a block mask."""

    def remote_rows(self, layer: int) -> list[tuple[int, Rows]]:
        """Draw what each request selects in the layer and count what of it is remote."""
        found = []
        for slot in self._left:
            if slot.mask.num_left and not slot.landings.flushed:
                entries = slot.draw.remote(self._batch.step_of(slot), layer, slot.mask)
                if entries > 0:
                    found.append((slot.peer, Rows(slot.request.request_id, slot.number, entries)))
        return found


class SimDecodeNode(TimedDecodeNode[Slot]):
    """A decoding node whose slots are masks over blocks."""

    def open(self, slot: Slot) -> Slot:
        """The books are all there is."""
        return slot

    def step(self) -> SimStep:
        """Make an iteration."""
        return SimStep(self)
