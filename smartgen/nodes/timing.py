"""How long each act of an iteration takes, and what of it lies on the critical path."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smartgen.cost import Cost
from smartgen.cost.cost import LocalStep
from smartgen.metrics.attribution import Attribution, Shares


class StepTimer:
    """Durations of one iteration's acts in seconds; each act is charged when it is asked for.

    Acts that end when something arrives are charged by arrived and replied, afterwards.
    """

    __slots__ = ("_attribution", "_cost", "_feed_forward_s", "_local", "_select_s", "start_s")

    def __init__(self, cost: Cost, start_s: float) -> None:
        self.start_s, self._cost = start_s, cost
        self._select_s: Sequence[float] = ()
        self._feed_forward_s: Sequence[float] = ()
        self._local: LocalStep | None = None

    def prepare(self, reached: NDArray[np.float64], batch_size: int) -> None:
        """Prepare to be asked layer by layer.

        reached: tokens of the batch that each layer's attention reaches, [L].
        """
        self._attribution = Attribution(self.start_s)
        self._select_s = self._cost.select_s(reached).tolist()
        self._feed_forward_s = self._cost.feed_forward_s(batch_size).tolist()

    def local(self, parts: LocalStep) -> float:
        """A whole iteration with nothing remote."""
        self._local = parts
        return sum(parts)

    def project(self, now: float) -> float:
        """Launches and projections of a layer."""
        cost = self._cost
        self._attribution.charge("overhead_s", now + cost.launch_s)
        self._attribution.charge("attend_s", now + (cost.launch_s + cost.project_s))
        return cost.launch_s + cost.project_s

    def attend(self, now: float, num_bytes: float) -> float:
        """Attention over so many bytes."""
        seconds = self._cost.attend_s(num_bytes)
        self._attribution.charge("attend_s", now + seconds)
        return seconds

    def select(self, now: float, layer: int) -> float:
        """Selection in a layer."""
        seconds = self._select_s[layer]
        self._attribution.charge("select_s", now + seconds)
        return seconds

    def load(self, now: float, num_bytes: float, layer: int) -> float:
        """The local lane."""
        seconds = self._cost.load_s(num_bytes, layer)
        self._attribution.charge("local_wait_s", now + seconds)
        return seconds

    def feed_forward(self, now: float, layer: int) -> float:
        """A layer's feed-forward."""
        seconds = self._feed_forward_s[layer]
        self._attribution.charge("feed_forward_s", now + seconds)
        return seconds

    def head(self, now: float) -> float:
        """The language-model head."""
        self._attribution.charge("feed_forward_s", now + self._cost.head_s)
        return self._cost.head_s

    def arrived(self, now: float) -> None:
        """Planned blocks that a layer waited for are here."""
        self._attribution.charge("remote_wait_s", now)

    def replied(self, now: float, interference_s: float) -> None:
        """A fetch is complete; other transfers have made it so much longer."""
        self._attribution.charge("remote_wait_s", now - interference_s)
        self._attribution.charge("interference_s", now)

    def shares(self, now: float) -> Shares:
        """The iteration's critical path, up to now."""
        if self._local is not None:
            return Shares(**self._local._asdict())
        self._attribution.charge("overhead_s", now)
        return self._attribution.shares
