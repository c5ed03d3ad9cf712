"""Which planned layers of a slot have landed, and who waits for them."""

from smartgen.engine.protocols import Event, Runtime


class Landings:
    """Planned pushes of one slot, one a layer; a flush ends every wait."""

    def __init__(self, runtime: Runtime, num_layers: int) -> None:
        self._runtime = runtime
        self._landed = [False] * num_layers
        self._waiting: list[Event] = []
        self.num_in_flight = num_layers
        self.flushed = False

    def land(self, layer: int) -> None:
        """A layer's planned blocks and its metadata are here."""
        if self._landed[layer]:
            raise RuntimeError(f"the planned blocks of layer {layer} were delivered twice")
        self._landed[layer] = True
        self.num_in_flight -= 1
        self._wake()

    def flush(self) -> None:
        """No more will come."""
        self.flushed = True
        self._wake()

    def in_flight(self, layer: int) -> bool:
        """Whether the layer's planned push is still to come."""
        return not self._landed[layer] and not self.flushed

    async def layer(self, layer: int) -> None:
        """Wait for one layer."""
        while self.in_flight(layer):
            await self._next()

    async def all(self) -> None:
        """Wait for all layers."""
        while self.num_in_flight and not self.flushed:
            await self._next()

    async def _next(self) -> None:
        event = self._runtime.event()
        self._waiting.append(event)
        await event.wait()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()
