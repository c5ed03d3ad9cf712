"""The decoding node's program: assigns requests, takes over their decoding, lets them go."""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from smartgen.engine.idleness import Idleness
from smartgen.engine.messages import (
    Abort,
    Assign,
    Drained,
    Failed,
    Fetch,
    Handover,
    Message,
    PeerLost,
    Release,
)
from smartgen.engine.pipeline import Pipeline
from smartgen.engine.protocols import Channel, DecodeNode, Runtime, Step
from smartgen.errors import RequestFailed
from smartgen.metrics.records import Recorder
from smartgen.policy import Plan, Policy
from smartgen.workload import Request

PlansOf = Callable[[Sequence[Request], float | None], Sequence[Plan]]
"""The plans of requests that arrive together, and of an observed rate, if there is one; pure."""

WAITING, ASSIGNED, READY, RUNNING, GONE = "waiting", "assigned", "ready", "running", "gone"


class Front(Protocol):
    """Who hands out requests, and wants to know how they fare."""

    def handed_over(self, request_id: int) -> None:
        """A request's prefill is done."""

    def over(self, request_id: int, whole: bool) -> None:
        """A request is at its end; whole: all of its prompt's cache is at the decoding node."""

    def lost(self, peer: int) -> None:
        """A prefill node is gone."""


@dataclass(slots=True, eq=False)
class _Serving:
    """A request as the decoding node sees it; slot is set once the pool had room."""

    request: Request
    plan: Plan
    peer: int
    epoch: int
    slot: int | None = None
    state: str = WAITING
    first_iteration: int = 0
    released: bool = False  # its prefill node was told that it is not needed any more
    drained: bool = False  # and has said that it writes no more, or cannot

    @property
    def request_id(self) -> int:
        return self.request.request_id


def _epoch(serving: _Serving) -> int:
    return serving.epoch


class DecodeRole:
    """One decoding node and the channels to all prefill nodes.

    Requests join at an iteration's boundary, first come first served, most to a batch. Together:
    an empty batch starts only when every assigned request is ready or gone, which is what makes a
    closed batch closed; who still waits for room in the pool is not assigned.
    """

    def __init__(
        self,
        runtime: Runtime,
        node: DecodeNode,
        channels: Sequence[Channel],
        front: Front,
        policy: Policy,
        plans_of: PlansOf,
        looks_ahead: bool,
        num_layers: int,
        together: bool,
        most: int | None,
        recorder: Recorder,
    ) -> None:
        self._runtime, self._node, self._channels = runtime, node, channels
        self._front, self._policy, self._plans_of = front, policy, plans_of
        self._recorder, self._together, self._most = recorder, together, most
        self._lost: set[int] = set()
        self._idleness = Idleness(policy, channels, self._lost.__contains__, recorder)
        self._pipeline = Pipeline(
            runtime, num_layers, looks_ahead, policy.lanes, self._idleness.announce, self._send_to
        )
        self._serving: dict[int, _Serving] = {}
        self._ready: list[_Serving] = []
        self._batch: dict[int, _Serving] = {}  # by request, in order of joining
        self._incomplete: list[_Serving] = []  # of the batch, those whose prefill node is needed
        self._gone: list[_Serving] = []  # of the batch, those that have ended
        self._last: dict[int, list[_Serving]] = {}  # who makes the last token in an iteration
        self._num_accepted = self._num_reserving = self._num_assigned = 0
        self._iteration = 0
        self._ended = False
        self._changed = runtime.event()
        self._scope = runtime.scope()

    async def run(self) -> None:
        """Serve everything that is accepted; ends when all of it is over and no more will come."""
        for peer, channel in enumerate(self._channels):
            channel.listen(partial(self._hear, peer))
        self._scope.spawn(self._decode())
        try:
            await self._scope.join()
        finally:
            self._scope.cancel()

    # -- arrival, assignment, departure

    def accept(self, requests: Sequence[Request], peers: Sequence[int]) -> None:
        """Serve requests that arrive together; peers[i] is the prefill node of requests[i]."""
        group, rate = [], None
        if self._policy.budget_source == "observed":
            rate = self._node.observe_rate()
        for request, peer, plan in zip(
            requests, peers, self._plans_of(requests, rate), strict=True
        ):
            self._num_accepted += 1
            serving = _Serving(request, plan, peer, epoch=self._num_accepted)
            self._serving[request.request_id] = serving
            if rate is not None:
                self._recorder.decide("rate", request.request_id, 0, 0, [rate])
            self._recorder.decide("plan", request.request_id, 0, 0, [plan.num_planned])
            group.append(serving)
        self._num_reserving += 1
        self._scope.spawn(self._assign(group))

    def leave(self, request_id: int) -> None:
        """A request's client leaves."""
        if request_id in self._serving:  # else it has finished already
            self._drop(self._serving[request_id], "aborted")

    def fail(self, request_id: int) -> None:
        """What has come for a request is wrong."""
        if request_id in self._serving:
            self._drop(self._serving[request_id], "failed")

    def no_more(self) -> None:
        """Nothing more will arrive."""
        self._ended = True
        self._notice()

    async def _assign(self, group: Iterable[_Serving]) -> None:
        for serving in group:
            request = serving.request
            try:
                serving.slot = await self._node.reserve(request, serving.peer, serving.plan)
            except RequestFailed:  # there can be no room for it any more
                self._drop(serving, "failed")
                del self._serving[request.request_id]
                continue
            if serving.peer in self._lost:
                self._drop(serving, "failed")
            if serving.state == GONE:  # nobody was told to write here
                self._drain(serving)
                continue
            message = Assign(
                request.request_id,
                serving.epoch,
                serving.slot,
                request.prompt_tokens,
                request.cached_tokens,
                request.held_tokens,
                request.output_tokens,
                serving.plan.num_planned,
            )
            self._channels[serving.peer].send(message)
            self._turn(serving, ASSIGNED)
        self._num_reserving -= 1
        self._notice()

    def _turn(self, serving: _Serving, state: str) -> None:
        """Change a request's state, and the counts that go with it."""
        self._num_assigned += (state == ASSIGNED) - (serving.state == ASSIGNED)
        if state == READY:
            insort(self._ready, serving, key=_epoch)
        elif serving.state == READY:
            self._ready.remove(serving)
        elif serving.state == RUNNING:
            self._gone.append(serving)
        serving.state = state

    def _drop(self, serving: _Serving, status: str) -> None:
        """A request ends early: nobody waits for its writers, but its pages do."""
        if serving.state == GONE:
            return
        self._turn(serving, GONE)
        self._end(serving, status)
        if serving.slot is not None:
            self._node.flush(serving.slot)
            if serving.peer in self._lost:  # whose queue pairs are flushed: nothing can follow
                serving.drained = True
            elif not serving.released:
                self._channels[serving.peer].send(Abort(serving.request_id, serving.epoch))
        self._free(serving)

    def _finish(self, serving: _Serving) -> None:
        self._turn(serving, GONE)
        self._end(serving, "finished")
        # speculative pushes may still be on their way: pages go when they have drained
        self._release(serving)
        self._free(serving)

    def _end(self, serving: _Serving, status: str) -> None:
        self._node.finish(serving.request_id, status)
        slot = serving.slot
        whole = slot is not None and status == "finished" and self._node.complete(slot)
        self._front.over(serving.request_id, whole)

    def _release(self, serving: _Serving) -> None:
        """Tell the prefill node, once, that it is not needed any more."""
        if serving.peer in self._lost:
            serving.drained = True
        elif not serving.released:
            self._channels[serving.peer].send(Release(serving.request_id, serving.epoch))
        serving.released = True

    # -- what prefill nodes say

    def _hear(self, peer: int, message: Message) -> None:
        if isinstance(message, PeerLost):
            self._lose(peer)
            return
        if not isinstance(message, Handover | Drained | Failed):
            return
        serving = self._serving.get(message.request_id)
        if serving is None or serving.epoch != message.epoch:
            return  # a late word on a request that is gone
        match message:
            case Handover() if serving.state == ASSIGNED:
                assert serving.slot is not None
                self._node.handed_over(serving.slot, message.first_token)
                self._front.handed_over(serving.request_id)
                self._scope.spawn(self._make_ready(serving))
            case Failed():
                self._drop(serving, "failed")
                self._drain(serving)
            case Drained():
                self._drain(serving)

    async def _make_ready(self, serving: _Serving) -> None:
        if serving.state != ASSIGNED or serving.slot is None:  # it has ended meanwhile
            return
        if serving.request.output_tokens == 1:  # the first token was the last
            self._finish(serving)
        elif self._policy.decode_start == "plan":
            await self._node.planned(serving.slot)
        if serving.state == ASSIGNED:
            self._turn(serving, READY)
        self._notice()
        if serving.state == READY and not len(serving.plan.left):
            await self._node.planned(serving.slot)  # after which nothing is missing
            if self._is_whole(serving):
                self._release(serving)

    def _drain(self, serving: _Serving) -> None:
        serving.drained = True
        self._free(serving)

    def _lose(self, peer: int) -> None:
        """A prefill node is gone. Its queue pair is flushed, so none of its writes can follow."""
        self._lost.add(peer)
        self._front.lost(peer)
        self._node.lose(peer)
        for serving in list(self._serving.values()):
            if serving.peer != peer:
                continue
            if self._is_whole(serving):
                self._drain(serving)
                continue
            self._drop(serving, "failed")
            serving.drained = serving.slot is not None  # also if it was gone before
            self._free(serving)

    def _is_whole(self, serving: _Serving) -> bool:
        """Whether a request that is decoding, or about to, needs its prefill node no more."""
        decoding = serving.state in (READY, RUNNING) and serving.slot is not None
        return decoding and self._node.complete(serving.slot)  # type: ignore[arg-type]

    def _free(self, serving: _Serving) -> None:
        """Release what is gone and drained, unless the running iteration still reads it."""
        request_id = serving.request_id
        if serving.state == GONE and serving.drained and request_id not in self._batch:
            assert serving.slot is not None
            if self._serving.pop(request_id, None) is not None:
                self._node.release(serving.slot)
        self._notice()

    # -- decoding

    def _notice(self) -> None:
        self._changed.set()

    async def _joining(self) -> list[_Serving]:
        """The requests that join now; waits while the batch is empty and more may come."""
        while True:
            waits = self._together and not self._batch and self._num_assigned
            if self._ready and not waits:
                room = None if self._most is None else max(0, self._most - len(self._batch))
                return self._ready[:room]
            if self._batch:
                return []
            if self._ended and not self._num_reserving and not self._num_assigned:
                return []
            self._changed = self._runtime.event()
            await self._changed.wait()
            if self._ready:  # who is ready at the same instant joins with them, in every world
                await self._node.instant_over()

    async def _decode(self) -> None:
        while True:
            joined = await self._joining()
            if joined:
                await self._join(joined)
            elif not self._batch:
                break
            self._let_go()
            if self._batch:
                await self._iterate()
                self._let_go()
        await self._drain_all()
        self._scope.cancel()

    async def _join(self, joined: list[_Serving]) -> None:
        slots = [serving.slot for serving in joined if serving.slot is not None]
        for serving in joined:
            self._turn(serving, RUNNING)
            self._batch[serving.request_id] = serving
        await self._node.admit(slots)
        for serving, slot in zip(joined, slots, strict=True):
            # the first layer is loaded with the handover; the others wait their turn
            await self._node.planned_layer(slot, 0)
            serving.first_iteration = self._iteration + 1
            last = self._iteration + serving.request.output_tokens - 1
            self._last.setdefault(last, []).append(serving)
        self._node.join([slot for slot, s in zip(slots, joined, strict=True) if s.state == RUNNING])
        self._incomplete += [serving for serving in joined if serving.state == RUNNING]
        self._release_whole()

    def _let_go(self) -> None:
        """Take out of the batch who has ended since it was put together."""
        gone, self._gone = self._gone, []
        for serving in gone:
            del self._batch[serving.request_id]
            assert serving.slot is not None
            self._node.leave(serving.slot)
            self._free(serving)

    async def _iterate(self) -> None:
        self._iteration += 1
        step = self._node.begin()
        if step.remote:
            self._idleness.begin(step, self._batch, self._iteration)
        await step.perform(partial(self._acts, step))
        step.close()
        for serving in self._last.pop(self._iteration, ()):
            if serving.state == RUNNING:
                self._finish(serving)
        self._release_whole()

    async def _acts(self, step: Step[Any]) -> None:
        if step.remote:
            await self._pipeline.run(step)
            await step.logits()
        else:
            await step.run_local()

    def _release_whole(self) -> None:
        """Prefill nodes need not keep what is here."""
        left = []
        for serving in self._incomplete:
            if self._is_whole(serving):
                self._release(serving)
            elif serving.state == RUNNING:
                left.append(serving)
        self._incomplete = left

    def _send_to(self, peer: int, fetch: Fetch) -> None:
        self._channels[peer].send(fetch)

    async def _drain_all(self) -> None:
        """Let every writer drain before the run ends: what was posted lands, or is flushed."""
        while any(serving.slot is not None for serving in self._serving.values()):
            self._changed = self._runtime.event()
            await self._changed.wait()
