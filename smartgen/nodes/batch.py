"""The batch of a decoding node, with sums over it that cost nothing while nobody comes or goes."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from smartgen.kv import Geometry
from smartgen.nodes.slot import Slot

S = TypeVar("S", bound=Slot)


class Batch(Generic[S]):
    """Requests in order of joining. grows: whether every step adds an entry to each.

    In iteration i a request that joined for iteration j takes its step i - j + 1, and has i - j
    generated entries in its cache.
    """

    def __init__(self, geometry: Geometry, grows: bool) -> None:
        self._geometry, self._grows = geometry, grows
        self._members: dict[int, S] = {}
        self._incomplete: list[S] = []
        self._prompt_tokens = self._first_iterations = 0
        self.iteration = 0
        """The iteration at hand, counted from 1."""

    def __len__(self) -> int:
        return len(self._members)

    def join(self, slots: Sequence[S]) -> None:
        """Take requests in, from the next iteration on."""
        for slot in slots:
            slot.first_iteration = self.iteration + 1
            self._members[slot.number] = slot
            self._incomplete.append(slot)
            self._prompt_tokens += slot.request.prompt_tokens
            self._first_iterations += slot.first_iteration

    def leave(self, number: int) -> S | None:
        """Take a slot out, if it is in."""
        slot = self._members.pop(number, None)
        if slot is not None:
            if slot in self._incomplete:
                self._incomplete.remove(slot)
            self._prompt_tokens -= slot.request.prompt_tokens
            self._first_iterations -= slot.first_iteration
        return slot

    def advance(self) -> None:
        """The next iteration begins."""
        self.iteration += 1
        if self._incomplete:
            self._incomplete = [slot for slot in self._incomplete if not slot.complete]

    @property
    def slots(self) -> list[S]:
        """All of it."""
        return list(self._members.values())

    @property
    def incomplete(self) -> list[S]:
        """Those of which something was remote or in flight when the iteration began."""
        return self._incomplete

    def step_of(self, slot: S) -> int:
        """Which of its own steps a request takes now, from 1."""
        return self.iteration - slot.first_iteration + 1

    def generated(self, slot: S) -> int:
        """Generated entries in a request's cache, as far as they count."""
        return self.iteration - slot.first_iteration if self._grows else 0

    @property
    def cached_tokens(self) -> int:
        """Prompt and generated tokens of all."""
        if not self._grows:
            return self._prompt_tokens
        return self._prompt_tokens + len(self._members) * self.iteration - self._first_iterations

    @property
    def reached(self) -> NDArray[np.float64]:
        """Tokens that each layer's attention reaches, summed over the batch, [L]."""
        windows = self._geometry.windows
        if windows is None:
            return np.full(self._geometry.num_layers, float(self.cached_tokens))
        cached = [
            slot.request.prompt_tokens + self.generated(slot) for slot in self._members.values()
        ]
        of = {
            window: sum(cached) if window is None else sum(min(n, window) for n in cached)
            for window in set(windows)
        }
        return np.array([float(of[window]) for window in windows])

    @property
    def longest_tokens(self) -> int:
        """Those of the request that has most."""
        return max(
            slot.request.prompt_tokens + self.generated(slot) for slot in self._members.values()
        )

    def selected(self, reached: NDArray[np.float64]) -> NDArray[np.float64]:
        """Entries each row selects in every layer, summed over the batch, [L]."""
        slots = iter(self._members.values())
        first = next(slots)
        if first.draw.ratios is not None:  # the same shares for every request
            return first.draw.ratios * reached
        total = first.draw.selected_at(self.generated(first))
        for slot in slots:
            total = total + slot.draw.selected_at(self.generated(slot))
        return total
