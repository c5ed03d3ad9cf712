"""The decoding node's program: assigns requests, takes over their decoding, lets them go."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from smartgen.engine.messages import (
    Abort,
    Assign,
    Drained,
    Failed,
    Fetch,
    Handover,
    Idle,
    Message,
    PeerLost,
    Release,
)
from smartgen.engine.pipeline import Pipeline
from smartgen.engine.protocols import Arrivals, Channel, DecodeNode, Departures, Runtime, Step
from smartgen.metrics.records import Recorder
from smartgen.policy import Plan, Policy
from smartgen.workload import Request

PlansOf = Callable[[Sequence[Request]], Sequence[Plan]]
"""The plans of requests that arrive together; pure."""

WAITING, ASSIGNED, READY, RUNNING, GONE = "waiting", "assigned", "ready", "running", "gone"


@dataclass(slots=True, eq=False)
class _Serving:
    """A request as the decoding node sees it; slot is set once the pool had room."""

    request: Request
    plan: Plan
    peer: int
    epoch: int
    slot: int | None = None
    state: str = WAITING
    steps: int = 0
    drained: bool = False


class DecodeRole:
    """One decoding node and the channels to its prefill nodes.

    Requests join at an iteration's boundary. An empty batch starts only when every assigned
    request is ready or gone, which is what makes a closed batch closed; who still waits for room
    in the pool is not assigned.
    """

    def __init__(
        self,
        runtime: Runtime,
        node: DecodeNode,
        channels: Sequence[Channel],
        policy: Policy,
        plans_of: PlansOf,
        looks_ahead: bool,
        num_layers: int,
        recorder: Recorder,
    ) -> None:
        self._runtime, self._node, self._channels = runtime, node, channels
        self._policy, self._plans_of, self._recorder = policy, plans_of, recorder
        self._pipeline = Pipeline(
            runtime, num_layers, looks_ahead, policy.lanes, self._announce, self._send_to
        )
        self._serving: dict[int, _Serving] = {}
        self._batch: list[_Serving] = []
        self._lost: set[int] = set()
        self._num_arrived = 0
        self._num_reserving = 0
        self._arrivals_ended = False
        self._changed = runtime.event()
        self._idle_groups: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        self._scope = runtime.scope()

    async def run(self, arrivals: Arrivals, departures: Departures) -> None:
        """Serve everything that arrives; ends when all of it is finished or gone."""
        for peer, channel in enumerate(self._channels):
            channel.listen(partial(self._hear, peer))
        self._scope.spawn(self._arrive(arrivals))
        self._scope.spawn(self._depart(departures))
        self._scope.spawn(self._decode())
        try:
            await self._scope.join()
        finally:
            self._scope.cancel()

    # -- arrival, assignment, departure

    async def _arrive(self, arrivals: Arrivals) -> None:
        async for requests in arrivals:
            self._assign_together(requests)
        self._arrivals_ended = True
        self._notice()

    async def _depart(self, departures: Departures) -> None:
        async for request_id in departures:
            if request_id in self._serving:  # else it has finished already
                self._drop(self._serving[request_id], "aborted")

    def _assign_together(self, requests: Sequence[Request]) -> None:
        plans = self._plans_of(requests)
        for request, plan in zip(requests, plans, strict=True):
            peer = self._next_peer()
            serving = _Serving(request, plan, peer, epoch=self._num_arrived)
            self._serving[request.request_id] = serving
            self._recorder.decide("plan", request.request_id, 0, 0, [plan.num_planned])
        self._num_reserving += 1
        self._scope.spawn(self._assign([self._serving[r.request_id] for r in requests]))

    def _next_peer(self) -> int:
        """Round robin over the prefill nodes that are not lost (over all, if none is left)."""
        alive = [p for p in range(len(self._channels)) if p not in self._lost]
        peers = alive or list(range(len(self._channels)))
        self._num_arrived += 1
        return peers[(self._num_arrived - 1) % len(peers)]

    async def _assign(self, group: Iterable[_Serving]) -> None:
        for serving in group:
            request = serving.request
            serving.slot = await self._node.reserve(request, serving.peer, serving.plan)
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
                request.output_tokens,
                serving.plan.num_planned,
            )
            self._channels[serving.peer].send(message)
            serving.state = ASSIGNED
        self._num_reserving -= 1
        self._notice()

    def _drop(self, serving: _Serving, status: str) -> None:
        """A request ends early: nobody waits for its writers, but its pages do."""
        if serving.state == GONE:
            return
        serving.state = GONE
        self._node.finish(serving.request.request_id, status)
        if serving.slot is not None:
            self._node.flush(serving.slot)
            if serving.peer in self._lost:  # whose queue pairs are flushed: nothing can follow
                serving.drained = True
            else:
                request_id = serving.request.request_id
                self._channels[serving.peer].send(Abort(request_id, serving.epoch))
        self._free()

    def _finish(self, serving: _Serving) -> None:
        serving.state = GONE
        self._node.finish(serving.request.request_id, "finished")
        # speculative pushes may still be on their way: pages go when they have drained
        if serving.peer in self._lost:
            self._drain(serving)
        else:
            message = Release(serving.request.request_id, serving.epoch)
            self._channels[serving.peer].send(message)

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
                self._scope.spawn(self._make_ready(serving))
            case Failed():
                self._drop(serving, "failed")
                self._drain(serving)
            case Drained():
                self._drain(serving)

    async def _make_ready(self, serving: _Serving) -> None:
        assert serving.slot is not None
        if serving.request.output_tokens == 1:  # the first token was the last
            self._finish(serving)
        elif self._policy.decode_start == "plan":
            await self._node.planned(serving.slot)
        if serving.state == ASSIGNED:
            serving.state = READY
        self._notice()

    def _drain(self, serving: _Serving) -> None:
        serving.drained = True
        self._free()

    def _lose(self, peer: int) -> None:
        """A prefill node is gone. Its queue pair is flushed, so none of its writes can follow."""
        self._lost.add(peer)
        self._node.lose(peer)
        for serving in list(self._serving.values()):
            if serving.peer == peer and not self._is_whole(serving):
                self._drop(serving, "failed")
                serving.drained = serving.slot is not None  # also if it was gone before
        self._free()

    def _is_whole(self, serving: _Serving) -> bool:
        """Whether a request that is decoding, or about to, needs its prefill node no more."""
        decoding = serving.state in (READY, RUNNING) and serving.slot is not None
        return decoding and self._node.complete(serving.slot)  # type: ignore[arg-type]

    def _free(self) -> None:
        """Release what is gone and drained, unless the running iteration still reads it."""
        for serving in list(self._serving.values()):
            if serving.state == GONE and serving.drained and serving not in self._batch:
                assert serving.slot is not None
                self._node.release(serving.slot)
                del self._serving[serving.request.request_id]
        self._notice()

    # -- decoding

    def _notice(self) -> None:
        self._changed.set()

    async def _joining(self) -> list[_Serving]:
        """The requests that join now; waits while the batch is empty and more may come."""
        while True:
            states = {serving.state for serving in self._serving.values()}
            if self._batch or ASSIGNED not in states:
                ready = [s for s in self._serving.values() if s.state == READY]
                if self._batch or ready:
                    return ready
                if self._arrivals_ended and not self._num_reserving:
                    return []
            self._changed = self._runtime.event()
            await self._changed.wait()

    async def _decode(self) -> None:
        while True:
            joined = await self._joining()
            if joined:
                await self._join(joined)
            elif not self._batch:
                break
            self._batch = [serving for serving in self._batch if serving.state == RUNNING]
            if self._batch:
                await self._iterate()
            self._free()
        await self._drain_all()
        self._scope.cancel()

    async def _join(self, joined: list[_Serving]) -> None:
        slots = [serving.slot for serving in joined if serving.slot is not None]
        for serving in joined:
            serving.state = RUNNING
        self._batch += joined
        await self._node.admit(slots)
        for slot in slots:
            # the first layer is loaded with the handover; the others wait their turn
            await self._node.planned_layer(slot, 0)

    async def _iterate(self) -> None:
        for serving in self._batch:
            serving.steps += 1
        step = self._node.begin(
            [serving.slot for serving in self._batch if serving.slot is not None],
            [serving.steps for serving in self._batch],
        )
        if step.remote:
            self._idle_groups = self._group(step)
            await self._pipeline.run(step)
            await step.logits()
        else:
            await step.run_local()
        step.close()
        for serving in self._batch:
            if serving.state == RUNNING and serving.steps + 1 >= serving.request.output_tokens:
                self._finish(serving)
        self._batch = [serving for serving in self._batch if serving.state == RUNNING]

    def _group(self, step: Step[Any]) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Whom to tell of idleness in this iteration: peer, its requests, their steps."""
        incomplete = set(step.incomplete)
        groups: dict[int, list[_Serving]] = {}
        for serving in self._batch:
            if self._policy.announces_idle(serving.steps) and (
                serving.request.request_id in incomplete
            ):
                groups.setdefault(serving.peer, []).append(serving)
        return [
            (peer, tuple(s.request.request_id for s in group), tuple(s.steps for s in group))
            for peer, group in groups.items()
        ]

    def _announce(self, step: Step[Any], layer: int) -> None:
        for peer, requests, steps in self._idle_groups:
            if peer not in self._lost:
                self._channels[peer].send(Idle(layer, requests, steps))

    def _send_to(self, peer: int, fetch: Fetch) -> None:
        self._channels[peer].send(fetch)

    async def _drain_all(self) -> None:
        """Let every writer drain before the run ends: what was posted lands, or is flushed."""
        while any(serving.slot is not None for serving in self._serving.values()):
            self._changed = self._runtime.event()
            await self._changed.wait()
