"""The life of a request at a prefill node: computed layer by layer, pushed, then served."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
from smartgen.engine.protocols import Channel, Delivery, PrefillNode, Runtime, Scope
from smartgen.errors import RequestFailed
from smartgen.metrics.records import Recorder
from smartgen.policy import Plan, Policy, speculate

PlanOf = Callable[[Assign], Plan]
"""A request's plan; pure, so that both roles come to the same one without sending it."""


@dataclass(slots=True, eq=False)
class _Served:
    """A request at this node."""

    assign: Assign
    plan: Plan
    peer: int
    prefill: Scope
    lease: Scope
    leaving: bool = False
    last_planned: Delivery | None = None

    @property
    def plan_delivered(self) -> bool:
        """Pushes of one request are in order, so the last planned one tells of all."""
        return self.last_planned is not None and self.last_planned.landed


class PrefillRole:
    """One prefill node's program: it answers messages until its peers are lost or it is cancelled.

    Its peers are the decoding nodes, in the order of channels.
    """

    def __init__(
        self,
        runtime: Runtime,
        node: PrefillNode,
        channels: Sequence[Channel],
        policy: Policy,
        plan_of: PlanOf,
        recorder: Recorder,
    ) -> None:
        self._runtime, self._node, self._channels = runtime, node, channels
        self._policy, self._plan_of, self._recorder = policy, plan_of, recorder
        self._served: dict[int, _Served] = {}
        self._lost: set[int] = set()
        self._waiting: deque[_Served] = deque()
        self._arrived = runtime.event()
        self._scope = runtime.scope()

    async def run(self) -> None:
        """Serve until all decoding nodes are lost, or this node is."""
        for peer, channel in enumerate(self._channels):
            channel.listen(partial(self._hear, peer))
        self._scope.spawn(self._work())
        try:
            await self._scope.join()
        finally:
            self._stop()

    def _hear(self, peer: int, message: Message) -> None:
        match message:
            case Fetch():
                self._node.serve_fetch(message, peer)
            case Idle():
                self._speculate(message)
            case Assign():
                self._accept(message, peer)
            case Release() | Abort():
                self._scope.spawn(self._leave(message.request_id))
            case PeerLost():
                self._lose(peer)

    def _accept(self, assign: Assign, peer: int) -> None:
        plan, runtime = self._plan_of(assign), self._runtime
        served = _Served(assign, plan, peer, runtime.scope(), runtime.scope())
        self._served[assign.request_id] = served
        self._waiting.append(served)
        self._arrived.set()

    async def _work(self) -> None:
        """Prefill the assigned requests one after the other: the GPU holds one at a time."""
        while True:
            while not self._waiting:
                self._arrived = self._runtime.event()
                await self._arrived.wait()
            served = self._waiting.popleft()
            if served.leaving:
                continue
            served.prefill.spawn(self._prefill(served))
            await served.prefill.join()  # anything but a failed request is a fault of the program

    async def _prefill(self, served: _Served) -> None:
        assign, node = served.assign, self._node
        request_id = assign.request_id
        try:
            await node.reserve(assign, served.plan, served.peer)
            await node.perform(request_id, partial(self._layers, served))
            token = node.first_token(request_id)
            self._channels[served.peer].send(Handover(request_id, assign.epoch, token))
        except RequestFailed as failure:
            self._scope.spawn(self._fail(served, str(failure)))
        else:
            served.lease.spawn(self._watch(served))

    async def _layers(self, served: _Served) -> None:
        """Compute and push layer by layer."""
        request_id, node = served.assign.request_id, self._node
        for layer, blocks in enumerate(served.plan.by_layer):
            await node.compute_layer(request_id, layer)
            if self._policy.placement == "host":
                await node.offload(request_id, layer)
            self._recorder.decide("push", request_id, 0, layer, blocks)
            served.last_planned = node.push(request_id, blocks, layer)

    async def _watch(self, served: _Served) -> None:
        """Let a request fail of which no word comes any more: its pages are wanted."""
        try:
            await self._node.leased(served.assign.request_id)
        except RequestFailed as failure:
            self._scope.spawn(self._fail(served, str(failure)))

    def _speculate(self, idle: Idle) -> None:
        """Push the next blocks of every request named, each within its own quota."""
        node, layer = self._node, idle.layer
        for request_id, step, quota in zip(idle.requests, idle.steps, idle.quotas, strict=True):
            served = self._served.get(request_id)
            if served is None or served.leaving or not served.plan_delivered:
                continue
            posted = node.posted(request_id)
            blocks = speculate(served.plan, posted, quota)
            if len(blocks):
                self._recorder.decide("speculate", request_id, step, layer, blocks)
                node.push(request_id, blocks, None)

    async def _leave(self, request_id: int) -> None:
        """Stop writing for a request, wait for what is under way, and say so."""
        served = self._served.get(request_id)
        if served is None or served.leaving:
            return
        await self._drain(served)
        self._channels[served.peer].send(Drained(request_id, served.assign.epoch))

    async def _fail(self, served: _Served, reason: str) -> None:
        if served.leaving:
            return
        await self._drain(served)
        assign = served.assign
        self._channels[served.peer].send(Failed(assign.request_id, assign.epoch, reason))

    async def _drain(self, served: _Served) -> None:
        self._let_go(served)
        await self._node.drained(served.assign.request_id)
        self._node.release(served.assign.request_id)
        del self._served[served.assign.request_id]

    def _let_go(self, served: _Served) -> None:
        served.leaving = True
        served.prefill.cancel()
        served.lease.cancel()

    def _lose(self, peer: int) -> None:
        """A decoding node is gone: its queue pairs are flushed, so nothing needs to drain."""
        self._lost.add(peer)
        for request_id, served in list(self._served.items()):
            if served.peer == peer:
                self._let_go(served)
                self._node.release(request_id)
                del self._served[request_id]
        if len(self._lost) == len(self._channels):
            self._scope.cancel()

    def _stop(self) -> None:
        """Nothing of this role runs on: not its own tasks, not its requests'."""
        for served in self._served.values():
            self._let_go(served)
        self._scope.cancel()
