"""Where an iteration's time went, along its critical path."""

from typing import NamedTuple


class Shares(NamedTuple):
    """Seconds of the critical path by cause; they add up to the iteration.

    remote_wait_s: waiting for planned or fetched entries. interference_s: what pushes on the
    network added to that.
    """

    select_s: float = 0.0
    attend_s: float = 0.0
    feed_forward_s: float = 0.0
    local_wait_s: float = 0.0
    remote_wait_s: float = 0.0
    interference_s: float = 0.0
    overhead_s: float = 0.0


class Attribution:
    """Charges time to causes in order: each charge covers what no earlier one has covered."""

    __slots__ = ("_mark_s", "_spent_s")

    def __init__(self, start_s: float) -> None:
        self._mark_s = start_s
        self._spent_s = dict.fromkeys(Shares._fields, 0.0)

    def charge(self, cause: str, until_s: float) -> None:
        """Charge the time from the last charge until until_s, if that lies later."""
        if until_s > self._mark_s:
            self._spent_s[cause] += until_s - self._mark_s
            self._mark_s = until_s

    @property
    def shares(self) -> Shares:
        """What has been charged so far."""
        return Shares(**self._spent_s)
