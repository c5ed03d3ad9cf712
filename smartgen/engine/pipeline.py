"""The order of acts within one decoding iteration; how long each takes is the node's business."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smartgen.engine.messages import Fetch
from smartgen.engine.protocols import Runtime, Split, Step

Announce = Callable[[Step[Any], int], None]
"""Tell prefill nodes that a layer's attention starts."""

Send = Callable[[int, Fetch], None]
"""Ask a prefill node for rows."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Runs the layers of an iteration for one kind of selector and one kind of lanes.

    A selector that looks ahead makes the next layer's index while this layer attends, and the
    lanes of the next layer run beside this layer's feed-forward. One that needs the layer's own
    query does everything in turn.
    """

    runtime: Runtime
    num_layers: int
    looks_ahead: bool
    lanes: str
    announce: Announce
    send: Send

    async def run(self, step: Step[Any]) -> None:
        """All layers of one iteration."""
        layer_of = self._look_ahead if self.looks_ahead else self._in_turn
        if self.looks_ahead and step.lacks_first_layer:
            await self._bring(step, 0, selected=False)
        for layer in range(self.num_layers):
            self.announce(step, layer)
            await step.project(layer)
            await layer_of(step, layer)

    async def _look_ahead(self, step: Step[Any], layer: int) -> None:
        following = (layer + 1) % self.num_layers
        # a layer still in flight cannot be selected from: its metadata lands last
        late = step.in_flight(following)
        if late:
            await step.attend(layer)
        else:
            await self.runtime.gather(step.attend(layer), step.select(following))
        await self.runtime.gather(
            step.feed_forward(layer), self._bring(step, following, selected=not late)
        )

    async def _in_turn(self, step: Step[Any], layer: int) -> None:
        await self._bring(step, layer, selected=False)
        await step.attend(layer)
        await step.feed_forward(layer)

    async def _bring(self, step: Step[Any], layer: int, selected: bool) -> None:
        """Bring a layer's selected entries to the GPU, from wherever they are."""
        if not selected:
            await step.landed(layer)
            await step.select(layer)
        split = step.split(layer)
        if not split.remote or self.lanes == "none":
            await step.load(split)
        elif self.lanes == "parallel":
            await self.runtime.gather(step.load(split), self._fetch(step, split))
        else:
            await step.load(split)
            await self._fetch(step, split)

    async def _fetch(self, step: Step[Any], split: Split) -> None:
        for peer, fetch in step.fetch(split):
            self.send(peer, fetch)
        await step.fetched(split)
