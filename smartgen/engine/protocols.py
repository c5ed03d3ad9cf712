"""What the engine asks of the world it runs in. Three backends implement it; nothing here does.

Awaiting an act of a Step means that later acts may use its result (stream order), not that a
device has finished; only planned, landed, fetched and logits mean finished. Deadlines live in
nodes and arrive as exceptions. The engine cannot invent time: there is no sleep.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from smartgen.engine.messages import Assign, Fetch, Message
from smartgen.kv.geometry import Int
from smartgen.policy import Observation, Plan
from smartgen.workload import Request


class Event(Protocol):
    """Something that happens once."""

    def set(self) -> None:
        """Let it happen; again is no error."""

    def wait(self) -> Awaitable[Any]:
        """Return at once if it has happened, else when it does."""


class Scope(Protocol):
    """Tasks that live and end together: the first failure cancels the others."""

    def spawn(self, task: Coroutine[Any, Any, None]) -> None:
        """Start a task in this scope."""

    def cancel(self) -> None:
        """End every task of the scope."""

    def join(self) -> Awaitable[None]:
        """Wait until no task is left; raises the first failure."""


class Runtime(Protocol):
    """Concurrency without a clock to wait on."""

    def event(self) -> Event:
        """A new event."""

    def scope(self) -> Scope:
        """A new scope."""

    def gather(self, *acts: Awaitable[Any]) -> Awaitable[None]:
        """Run acts side by side until all are done; a failure cancels the others and is raised."""


class Channel(Protocol):
    """One end of an ordered stream of messages between two roles."""

    def send(self, message: Message) -> None:
        """Send; never waits."""

    def listen(self, hear: Callable[[Message], None]) -> None:
        """Have every message heard, in order, each after its sender's present act."""


class Delivery(Protocol):
    """A posted push."""

    @property
    def landed(self) -> bool:
        """Whether the decoding node has all of it."""


class PrefillNode(Protocol):
    """A node that prefills requests and then serves their KV to its peers, the decoding nodes."""

    def reserve(self, assign: Assign, plan: Plan, peer: int) -> Awaitable[None]:
        """Wait for room and take pages for a request of this peer."""

    def perform(
        self, request_id: int, acts: Callable[[], Coroutine[Any, Any, None]]
    ) -> Awaitable[None]:
        """Carry out the acts of a prefill."""

    def compute_layer(self, request_id: int, layer: int) -> Awaitable[None]:
        """Prefill one layer."""

    def offload(self, request_id: int, layer: int) -> Awaitable[None]:
        """Copy the layer's KV to host memory, from where it can be pushed."""

    def first_token(self, request_id: int) -> int:
        """The first output token, once every layer is computed."""

    def push(self, request_id: int, blocks: Int, layer: int | None) -> Delivery:
        """WRITE blocks, each followed by its mask values; never waits.

        With a layer the push is proactive and ends with that layer's selector metadata; without
        one it is speculative.
        """

    def posted(self, request_id: int) -> int:
        """How many blocks of the request's plan have been pushed."""

    def serve_fetch(self, fetch: Fetch, peer: int) -> None:
        """Gather the rows and post them to the peer that asks; never waits."""

    def leased(self, request_id: int) -> Awaitable[Any]:
        """Wait while the request's pages are leased; RequestFailed when the lease is over."""

    def drained(self, request_id: int) -> Awaitable[Any]:
        """Wait until no write for the request is in flight or being prepared."""

    def release(self, request_id: int) -> None:
        """Give the request's pages back."""


class Split(Protocol):
    """A layer's index, cut into local and remote; opaque but for whether anything is remote."""

    @property
    def remote(self) -> bool:
        """Whether some selected entry must be fetched."""


SplitT = TypeVar("SplitT", bound=Split)
"""A backend's own kind of split."""


class Step(Protocol[SplitT]):
    """One iteration of a batch at the decoding node, act by act."""

    @property
    def remote(self) -> bool:
        """Whether anything is still remote or in flight; else run_local does the whole step."""

    @property
    def incomplete(self) -> Sequence[int]:
        """Numbers of the batch's requests of which blocks are missing."""

    @property
    def lacks_first_layer(self) -> bool:
        """Whether layer 0 did not come whole with the handover of a request that takes step 1."""

    def observe(self, requests: Sequence[int]) -> Observation:
        """What was seen of the last iteration, and of those of the requests whose plan is here.

        Asked once, before the acts; only of nodes whose policy wants to know.
        """

    def perform(self, acts: Callable[[], Coroutine[Any, Any, None]]) -> Awaitable[None]:
        """Carry out the acts of the iteration.

        Where their course is known in advance they may be run ahead, and again, until nothing
        that happens meanwhile changes it; so acts must keep no state of their own.
        """

    def run_local(self) -> Awaitable[Any]:
        """The whole iteration, logits included, with everything local."""

    def project(self, layer: int) -> Awaitable[Any]:
        """A layer's projections: queries, keys, values, output."""

    def in_flight(self, layer: int) -> bool:
        """Whether planned blocks or metadata of the layer are still on their way."""

    def landed(self, layer: int) -> Awaitable[Any]:
        """Wait until they have landed."""

    def select(self, layer: int) -> Awaitable[Any]:
        """Make the layer's index."""

    def split(self, layer: int) -> SplitT:
        """Look the index up in the mask and cut it."""

    def load(self, split: SplitT) -> Awaitable[Any]:
        """The local lane: gather in host memory, copy to the GPU."""

    def fetch(self, split: SplitT) -> Sequence[tuple[int, Fetch]]:
        """Prepare to receive the remote entries; returns what to ask of which prefill node."""

    def fetched(self, split: SplitT) -> Awaitable[Any]:
        """Wait until they are in GPU memory."""

    def attend(self, layer: int) -> Awaitable[Any]:
        """Attention over what was loaded and fetched."""

    def feed_forward(self, layer: int) -> Awaitable[Any]:
        """The layer's feed-forward."""

    def logits(self) -> Awaitable[Any]:
        """The batch's next tokens."""

    def close(self) -> None:
        """Commit: report the iteration."""


class DecodeNode(Protocol):
    """The node that decodes; its pool is where pushes land."""

    def observe_rate(self) -> float | None:
        """Bytes a second at which planned pushes of late arrived; null if none has, yet."""

    def reserve(self, request: Request, peer: int, plan: Plan) -> Awaitable[int]:
        """Wait for room in the pool; returns the slot that pushes are addressed to."""

    def handed_over(self, slot: int, first_token: int) -> None:
        """The prefill node has made a request's first token."""

    def planned(self, slot: int) -> Awaitable[Any]:
        """Wait until every planned block has landed, or the slot is flushed."""

    def planned_layer(self, slot: int, layer: int) -> Awaitable[Any]:
        """The same for one layer."""

    def instant_over(self) -> Awaitable[Any]:
        """Wait until everything else that happens at this instant has happened."""

    def admit(self, slots: Sequence[int]) -> Awaitable[Any]:
        """Prepare to take requests into the batch."""

    def join(self, slots: Sequence[int]) -> None:
        """Take requests into the batch, from the next iteration on."""

    def leave(self, slot: int) -> None:
        """Take a request out of the batch; none if it is not in it."""

    def begin(self) -> Step[Any]:
        """Start an iteration of the batch; each request takes its next step, from 1."""

    def finish(self, request_id: int, status: str) -> None:
        """Note the outcome of a request: finished, aborted or failed."""

    def flush(self, slot: int) -> None:
        """End every wait for the slot's writers; its pages stay in quarantine."""

    def complete(self, slot: int) -> bool:
        """Whether everything of the slot has landed, so that no prefill node is needed."""

    def lose(self, peer: int) -> None:
        """A prefill node is gone, its queue pair flushed: end every wait for its replies."""

    def release(self, slot: int) -> None:
        """Give the slot's pages back: no writer is left."""
