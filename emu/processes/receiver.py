"""The decoding process's receiving side for one peer: receives for replies and for immediates."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from smartgen.emu.processes.driver import Driver
from smartgen.emu.processes.sender import grouped, places_of
from smartgen.emu.transports.protocol import (
    Completion,
    Memory,
    PostRefused,
    Region,
    Segments,
)
from smartgen.engine.messages import Fetch

IMMEDIATES = 256
"""Receives kept posted for pushes; each push takes one."""


class Receiver:
    """Posts receives before a peer may need them.

    lane: how rows of replies get into place; staging_at: where in the arena they are staged.
    """

    def __init__(
        self,
        arena: Region,
        lane: str,
        staging_at: int,
        pushed: Callable[[int], None],
        replied: Callable[[int], None],
        broken: Callable[[str], None],
    ) -> None:
        self._arena, self._lane, self._staging_at = arena, lane, staging_at
        self._pushed, self._replied, self._broken = pushed, replied, broken
        self._pushes: Driver | None = None
        self._replies: Driver | None = None
        self._left: dict[int, int] = {}  # by fetch, receives that are not met yet
        self._staged: dict[int, Memory] = {}

    def connect(self, pushes: Driver, replies: Driver) -> None:
        """Receive over these from now on."""
        self._pushes, self._replies = pushes, replies
        for _ in range(IMMEDIATES):
            pushes.receive(0, None)

    def expect(self, fetch: Fetch, row_bytes: int) -> None:
        """Prepare to receive the rows of a fetch."""
        replies = self._replies
        assert replies is not None
        lengths, targets = places_of(fetch, row_bytes)
        rows = Segments(self._arena, targets, lengths)
        into: list[Segments | None]
        if self._lane == "scatter":
            into = list(grouped(rows, "scatter", replies.sges, 0))
        elif self._lane == "staging":
            total = int(rows.lengths.sum())
            self._staged[fetch.fetch_id] = self._arena.memory[self._staging_at :][:total]
            at, size = np.array([self._staging_at]), np.array([total])
            into = [Segments(self._arena, at, size)]
        else:
            into = [None]
        self._left[fetch.fetch_id] = len(into)
        try:
            for part in into:
                replies.receive(fetch.fetch_id, part)
        except PostRefused as refused:
            self._broken(f"a receive for its reply was refused: {refused}")

    def staged(self, fetch_id: int) -> Memory | None:
        """The staged rows of a reply that is here; null if they are where they belong."""
        return self._staged.pop(fetch_id, None)

    def push_completed(self, completion: Completion) -> None:
        """A push is here; its number came with it."""
        assert self._pushes is not None and completion.immediate is not None
        self._pushed(completion.immediate)
        with suppress(PostRefused):  # where it has failed, what follows will say so
            self._pushes.receive(0, None)

    def reply_completed(self, completion: Completion) -> None:
        """A part of a reply is here."""
        if completion.immediate not in (None, completion.wr_id & 0xFFFFFFFF):
            self._broken(f"it answers fetch {completion.immediate}, not {completion.wr_id}")
            return
        self._left[completion.wr_id] -= 1
        if not self._left[completion.wr_id]:
            del self._left[completion.wr_id]
            self._replied(completion.wr_id)
