"""A prefill node that runs a prefill ahead of the clock: one event, and all pushes announced."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smartgen.cost.shaper import Land, Links
from smartgen.engine.messages import Fetch
from smartgen.engine.protocols import Delivery
from smartgen.experiment import Experiment
from smartgen.kv.geometry import Int
from smartgen.metrics.records import Recorder
from smartgen.nodes.timed_prefill import NO_BLOCKS, Pages, Write
from smartgen.sim.ahead import Acts, AheadRuntime
from smartgen.sim.foreseen import Ledgers, Sent
from smartgen.sim.nodes import SimPrefillNode


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
        self._receivers = [links.receivers[name] for name in self._destinations]
        self._entry_bytes = experiment.geometry.entry_bytes
        self._announced: list[Sent] = []
        self._last: dict[int, tuple[int, Sent]] = {}  # push of each request, and to which peer
        self._sums: dict[int, tuple[list[int], list[int]]] = {}  # of _cumulated, by request

    def perform(self, request_id: int, acts: Acts) -> Any:
        """Run the prefill ahead, and wait for its end; tell what it pushes."""
        runtime, pages = self._runtime, self._pages[request_id]
        end_s = runtime.run_ahead(acts(), [], runtime.now)
        pushes, self._announced = self._announced, []
        self._last[request_id] = (pages.peer, pushes[-1])
        metadata_bytes = sum(round(size) for size in pages.metadata_bytes)
        self._receivers[pages.peer].announce(pages.assign.slot, pushes, metadata_bytes)
        return runtime.until(end_s)

    def push(self, request_id: int, blocks: Int, layer: int | None) -> Delivery:
        """Send blocks ahead of the clock, so that it can be taken back."""
        pages = self._pages[request_id]
        if layer is None:
            return self._speculate(request_id, pages, blocks)
        entries, full = pages.planned[0][layer], pages.planned[1][layer]
        push = Sent(
            (self._number, request_id, layer, pages.assign.slot),
            self._link,
            self._destinations[pages.peer],
            self.wire_bytes(pages, entries, full, layer),
            entries * self.wire_entry_bytes,
            self._runtime.now,
            self._receivers[pages.peer],
            partial(self._write, pages, blocks, entries, full, layer),
        )
        pages.posted += len(blocks)
        self._announced.append(push)
        return push

    def _speculate(self, request_id: int, pages: Pages, blocks: Int) -> Sent:
        first, stop = pages.posted, pages.posted + len(blocks)
        before, full = self._cumulated(request_id, pages)
        entries, full_blocks = before[stop] - before[first], full[stop] - full[first]
        push = Sent(
            (self._number, request_id, -1, pages.assign.slot),
            self._link,
            self._destinations[pages.peer],
            self.wire_bytes(pages, entries, full_blocks, None),
            entries * self.wire_entry_bytes,
            self._runtime.now,
            self._receivers[pages.peer],
            partial(self._write, pages, blocks, entries, full_blocks, None),
            blocks,
        )
        self._runtime.may_undo(self._take_back, request_id, first, self._last[request_id])
        pages.posted = stop
        self._last[request_id] = (pages.peer, push)
        self._receivers[pages.peer].expect(push)
        return push

    def _cumulated(self, request_id: int, pages: Pages) -> tuple[list[int], list[int]]:
        """Entries of the plan's first k blocks, and how many are not empty, for every k."""
        known = self._sums.get(request_id)
        if known is None:
            sizes = pages.sizes[pages.plan.order]
            known = self._sums[request_id] = _sums(sizes), _sums(sizes > 0)
        return known

    def _write(
        self, pages: Pages, blocks: Int, entries: int, full: int, layer: int | None
    ) -> Write:
        parcel = self.parcel(pages, len(blocks), entries, full, layer)
        return Write(parcel, self._number, blocks)

    def _take_back(self, request_id: int, posted: int, last: tuple[int, Sent]) -> None:
        self._pages[request_id].posted = posted
        self._last[request_id] = last

    def serve_fetch(self, fetch: Fetch, peer: int) -> None:
        """Send the rows when they are gathered."""
        entries = 0.0
        for rows in fetch.rows:
            entries += rows.entries
        num_bytes = entries * self._entry_bytes
        reply = Sent(
            (self._number, fetch.rows[0].request_id, fetch.layer, -1),
            self._link,
            self._destinations[peer],
            num_bytes,
            num_bytes,
            self._runtime.now + self.gather_s(num_bytes),
            self._receivers[peer],
            partial(self._reply, fetch),
            fetch=fetch,
        )
        self._receivers[peer].expect_reply(fetch.fetch_id, reply)

    def _reply(self, fetch: Fetch) -> Write:
        return Write(self.reply_parcel(fetch), self._number, NO_BLOCKS, fetch.fetch_id)

    async def drained(self, request_id: int) -> None:
        """Wait until no push for the request is under way; a reply never outlasts its iteration."""
        if request_id in self._last:
            peer, sent = self._last.pop(request_id)
            await self._receivers[peer].wait_for(sent)
            self._receivers[peer].report()
            self._sums.pop(request_id, None)


def _sums(values: NDArray[np.generic]) -> list[int]:
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums.tolist()
