"""A receiving link as a list of postings in order of time: first in, first out, in one pass.

Postings may be announced before their time. Serving in order needs no events: each starts when it
is posted and all before it have ended. So what happens on the link can be asked ahead of the clock,
and a posting that is put in between later changes only what comes after it.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

INFINITY = float("inf")


class Served(Protocol):
    """What a ledger wants to know of something sent, and tells it."""

    key: tuple[int, ...]
    posted_s: float
    size: float
    started_s: float
    end_s: float


S = TypeVar("S", bound=Served)


class Ledger(Generic[S]):
    """What is sent over one link of so many bytes a second, whose senders are never slower."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        # by time of posting, then by key, as Wire has them
        self._rows: list[tuple[float, tuple[int, ...], S]] = []
        self._served = 0  # so many rows have a start and an end
        self._busy_s = 0.0  # when what was taken off the ledger had ended
        self.announced_s = INFINITY
        """The earliest posting that was added since this was last set."""

    def add(self, sent: S) -> None:
        """Post at the time that it says."""
        row = (sent.posted_s, sent.key if sent.size else self._key_of_nothing(sent), sent)
        if self._served and row < self._rows[self._served - 1]:
            self._serve_again_from(row[:2])
        insort(self._rows, row, lo=self._served)
        if sent.posted_s < self.announced_s:
            self.announced_s = sent.posted_s

    def _key_of_nothing(self, sent: S) -> tuple[int, ...]:
        """Nothing is over at once if the link is idle, whatever else is posted at that instant."""
        self.serve(sent.posted_s)
        busy_s = self._rows[self._served - 1][2].end_s if self._served else self._busy_s
        return sent.key if busy_s > sent.posted_s else (-1, *sent.key)

    def add_all(self, many: Iterable[S]) -> None:
        """The same for many, in order of time."""
        rows = [(sent.posted_s, sent.key, sent) for sent in many]
        self._serve_again_from(rows[0][:2])
        self._rows += rows
        self._rows.sort()  # two ascending runs, merged
        if rows[0][0] < self.announced_s:
            self.announced_s = rows[0][0]

    def _serve_again_from(self, first: tuple[float, tuple[int, ...]]) -> None:
        rows = self._rows
        while self._served and first < rows[self._served - 1][:2]:
            self._served -= 1
            rows[self._served][2].end_s = INFINITY

    def serve(self, until_s: float) -> None:
        """Give everything that is posted until then its start and end."""
        rows, at = self._rows, self._served
        if at == len(rows) or rows[at][0] > until_s:
            return
        busy_s = rows[at - 1][2].end_s if at else self._busy_s
        rate = self._rate
        while at < len(rows) and rows[at][0] <= until_s:
            posted_s, _, sent = rows[at]
            sent.started_s = posted_s if posted_s > busy_s else busy_s
            sent.end_s = busy_s = sent.started_s + sent.size / rate
            at += 1
        self._served = at

    def ended(self, now: float, one_way_s: float) -> list[S]:
        """What was served and had ended so long before now, in order."""
        rows, number = self._rows, 0
        while number < self._served and rows[number][2].end_s + one_way_s <= now:
            number += 1
        return [row[2] for row in rows[:number]]

    def take(self, now: float, one_way_s: float) -> list[S]:
        """The same, and take it off."""
        taken = self.ended(now, one_way_s)
        if taken:
            self._busy_s = self._rows[len(taken) - 1][2].end_s
            del self._rows[: len(taken)]
            self._served -= len(taken)
        return taken

    def withdraw(self, from_s: float, is_gone: Callable[[S], bool]) -> None:
        """Take back postings made from a time on, as if they had never been made."""
        self._serve_again_from((from_s, ()))
        rows, at = self._rows, self._served
        rows[at:] = [row for row in rows[at:] if not is_gone(row[2])]
