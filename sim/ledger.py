"""A receiving link as a list of postings in order of time: first in, first out, in one pass.

Postings may be announced before their time. Serving in order needs no events: each starts when it
is posted and all before it have ended. So what happens on the link can be asked ahead of the clock,
and a posting that is put in between later changes only what comes after it.
"""

from bisect import insort
from collections.abc import Callable
from typing import TypeAlias

from smartgen.cost.shaper import Posting
from smartgen.nodes.timed_prefill import Write

Row: TypeAlias = tuple[float, tuple[int, ...], Posting[Write]]


class Ledger:
    """The postings on one link of so many bytes a second, whose senders are never slower."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._rows: list[Row] = []  # by time of posting, then by key, as Wire has them
        self._served = 0  # so many rows have a start and an end
        self._busy_s = 0.0  # when what was taken off the ledger had ended
        self.announced_s = float("inf")
        """The earliest posting that was added since this was last set."""

    def add(self, posting: Posting[Write]) -> None:
        """Post at the time that the flow says."""
        flow = posting.flow
        rows = self._rows
        row = (flow.posted_s, flow.key, posting)
        if self._served and row < rows[self._served - 1]:
            self._serve_again_from(row)
        insort(rows, row, lo=self._served)
        if flow.posted_s < self.announced_s:
            self.announced_s = flow.posted_s

    def _serve_again_from(self, row: Row) -> None:
        while self._served and row < self._rows[self._served - 1]:
            self._served -= 1
            self._rows[self._served][2].flow.end_s = float("inf")

    def serve(self, until_s: float) -> None:
        """Give everything that is posted until then its start and end."""
        rows, at = self._rows, self._served
        if at == len(rows) or rows[at][0] > until_s:
            return
        busy_s = rows[at - 1][2].flow.end_s if at else self._busy_s
        rate = self._rate
        while at < len(rows) and rows[at][0] <= until_s:
            flow = rows[at][2].flow
            start_s = flow.posted_s if flow.posted_s > busy_s else busy_s
            busy_s = start_s + flow.size / rate
            flow.move(start_s, busy_s, rate)
            at += 1
        self._served = at

    def ended(self, until_s: float) -> list[Posting[Write]]:
        """What was served and had ended by then, in order."""
        rows, number = self._rows, 0
        while number < self._served and rows[number][2].flow.end_s <= until_s:
            number += 1
        return [row[2] for row in rows[:number]]

    def take(self, until_s: float) -> list[Posting[Write]]:
        """The same, and take it off."""
        taken = self.ended(until_s)
        if taken:
            del self._rows[: len(taken)]
            self._served -= len(taken)
            self._busy_s = taken[-1].flow.end_s
        return taken

    def withdraw(self, from_s: float, is_gone: Callable[[Posting[Write]], bool]) -> None:
        """Take back postings made from a time on, as if they had never been made."""
        rows = self._rows
        while self._served and rows[self._served - 1][0] >= from_s:
            self._served -= 1
            rows[self._served][2].flow.end_s = float("inf")
        at = self._served
        rows[at:] = [row for row in rows[at:] if not is_gone(row[2])]
