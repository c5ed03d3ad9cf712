"""A request's pages at a decoding node, as the books have it."""

from dataclasses import dataclass, field

from smartgen.kv import BlockMask
from smartgen.kv.geometry import Int
from smartgen.nodes.landings import Landings
from smartgen.selection import Draw
from smartgen.workload import Request


@dataclass(slots=True, eq=False)
class Slot:
    """A request's pages.

    unseen: landed blocks that the mask takes in at the next iteration. awaits_token: whether
    anybody waits for the token of the iteration at hand.
    """

    number: int
    request: Request
    peer: int
    mask: BlockMask
    draw: Draw
    landings: Landings
    unseen: list[Int] = field(default_factory=list)
    first_iteration: int = 0
    awaits_token: bool = True

    @property
    def num_left(self) -> int:
        """Blocks that have not landed; planned ones count as landed."""
        return self.mask.num_left - sum(len(blocks) for blocks in self.unseen)

    @property
    def complete(self) -> bool:
        """Whether the mask shows everything local and nothing planned is on its way."""
        return self.mask.num_left == 0 and self.landings.num_in_flight == 0
