"""What a decoding node has seen and a policy may decide by: frozen values, the same in every world.

Times are whole ticks: worlds that add the same durations in another order differ in their last
bits, and no decision may hang on these.
"""

from dataclasses import dataclass

from smartgen.errors import SmartGenError

TICK_S = 2.0**-24
"""About 60 ns. A power of two, so that no sum of decimal durations lies half-way between ticks."""


def ticks(seconds: float) -> float:
    """Round to a whole number of ticks."""
    return round(seconds / TICK_S) * TICK_S


@dataclass(frozen=True, slots=True)
class Observation:
    """What a decoding node knows when an iteration begins.

    layer_s: in its last iteration, from the announcement of each layer's attention to the next,
    [L]; empty where that iteration did not go layer by layer. busy_s: for how long of that its link
    carried planned pushes or replies, [L]. block_s: how long a pushed block keeps the link busy.
    requests: those of the batch of which blocks are missing and nothing planned is in flight.
    blocks_left: how many blocks of each have not landed.
    """

    layer_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    block_s: float
    requests: tuple[int, ...]
    blocks_left: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.layer_s) != len(self.busy_s):
            raise SmartGenError(
                f"an observation of {len(self.layer_s)} layers has {len(self.busy_s)} busy times"
            )
        if len(self.requests) != len(self.blocks_left):
            raise SmartGenError(
                f"an observation of {len(self.requests)} requests counts {len(self.blocks_left)}"
            )
        least = min((*self.layer_s, *self.busy_s, self.block_s, *self.blocks_left))
        if least < 0:
            raise SmartGenError(f"an observation holds {least}; nothing seen is negative")

    @property
    def idle_s(self) -> tuple[float, ...]:
        """How long the link was free for speculative pushes in each layer, [L] or empty."""
        pairs = zip(self.layer_s, self.busy_s, strict=True)
        return tuple(max(0.0, layer_s - busy_s) for layer_s, busy_s in pairs)

    @property
    def values(self) -> tuple[float, ...]:
        """What a log keeps of it beside the requests: block_s, layer_s, busy_s."""
        return (self.block_s, *self.layer_s, *self.busy_s)
