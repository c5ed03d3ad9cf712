"""How long links were used."""

from collections.abc import Mapping

from smartgen.cost import Flow


class Meter:
    """Adds up what flows used of their links, within a window of time or in all (null).

    A flow is taken to have used its links evenly from its start to its end.
    """

    def __init__(self, rates: Mapping[str, float], window_s: tuple[float, float] | None) -> None:
        self._rates = rates
        self._first_s, self._last_s = window_s or (0.0, float("inf"))
        self.busy_s = dict.fromkeys(rates, 0.0)
        """Seconds of a link's full rate, messages included, by link."""

    def add(self, flow: Flow) -> None:
        """A flow has ended."""
        inside_s = min(flow.end_s, self._last_s) - max(flow.started_s, self._first_s)
        if inside_s <= 0:
            return
        size = flow.size * min(1.0, inside_s / (flow.end_s - flow.started_s))
        for link in (flow.source, flow.destination):
            self.busy_s[link] += size / self._rates[link]
