"""How long links were used."""

from collections.abc import Mapping
from typing import Protocol

from smartgen.cost.variation import Course, mean_rates


class Moved(Protocol):
    """A flow that has ended, in wire bytes and seconds."""

    source: str
    destination: str
    size: float
    started_s: float
    end_s: float


class Meter:
    """Adds up what flows used of their links, within a window of time or in all (null).

    A flow is taken to have used an even share of its links from its start to its end. Of a link
    that varies, that is a share of what the link could carry then, not of its nominal rate.
    """

    def __init__(
        self,
        rates: Mapping[str, float],
        window_s: tuple[float, float] | None,
        varying: Mapping[str, Course] | None = None,
    ) -> None:
        self._rates, self._varying = rates, varying
        self._first_s, self._last_s = window_s or (0.0, float("inf"))
        self.busy_s = dict.fromkeys(rates, 0.0)
        """Seconds of what a link can carry at the time, messages included, by link."""

    def add(self, flow: Moved) -> None:
        """A flow has ended."""
        size, started_s, end_s = flow.size, flow.started_s, flow.end_s
        if started_s < self._first_s or end_s > self._last_s:
            inside_s = min(end_s, self._last_s) - max(started_s, self._first_s)
            if inside_s <= 0:
                return
            size *= inside_s / (end_s - started_s)
        busy_s, rates, source, destination = (
            self.busy_s,
            self._rates,
            flow.source,
            flow.destination,
        )
        if self._varying:
            rates = mean_rates(rates, self._varying, started_s, end_s)
        busy_s[source] += size / rates[source]
        busy_s[destination] += size / rates[destination]
