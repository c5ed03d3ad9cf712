"""What a decoding node notes down of its link and iterations, for policies that decide by it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from smartgen.policy.observation import ticks

WEIGHT = 0.25
"""Of the latest request in the observed rate, against all before it (a guess)."""


class Carried(Protocol):
    """What a link has carried, in wire bytes and seconds."""

    size: float
    posted_s: float
    started_s: float
    end_s: float


@dataclass(slots=True)
class _Stream:
    """A request's planned pushes so far: wire bytes, and how long some of them were under way."""

    size: float = 0.0
    seconds: float = 0.0
    end_s: float = 0.0


class Observer:
    """Times are those of arrival at the node: one way after the link.

    block_s: how long a pushed block keeps the link busy, to begin with.
    """

    def __init__(self, one_way_s: float, block_s: float) -> None:
        self._one_way_s = one_way_s
        self._carried: list[tuple[float, float]] = []
        self._num_blocks, self._blocks_s, self._block_s = 0, 0.0, block_s
        self._streams: dict[int, _Stream] = {}
        self._rate: float | None = None
        self.layer_s: tuple[float, ...] = ()
        """Of the last iteration, in ticks, [L]; empty if it did not go layer by layer."""
        self.busy_s: tuple[float, ...] = ()
        """How long of that the link carried planned pushes or replies."""

    # -- what has landed

    def carried(self, flow: Carried) -> None:
        """A planned push or a reply has landed."""
        self._carried.append((flow.started_s + self._one_way_s, flow.end_s + self._one_way_s))

    def planned(self, slot: int, flow: Carried, is_last: bool) -> None:
        """A planned push of a slot has landed; the slots' are compared when they are whole."""
        self.carried(flow)
        stream = self._streams.setdefault(slot, _Stream())
        stream.size += flow.size
        stream.seconds += flow.end_s - max(flow.posted_s, stream.end_s)
        stream.end_s = flow.end_s
        if is_last:
            del self._streams[slot]
            if stream.seconds > 0:
                rate = stream.size / stream.seconds
                before = rate if self._rate is None else self._rate
                self._rate = before + WEIGHT * (rate - before)

    def pushed(self, num_blocks: int, flow: Carried) -> None:
        """A speculative push of so many blocks has landed."""
        self._num_blocks += num_blocks
        self._blocks_s += flow.end_s - flow.started_s

    def forget(self, slot: int) -> None:
        """A slot is gone."""
        self._streams.pop(slot, None)

    # -- what is made of it

    def iterated(self, starts_s: Sequence[float]) -> None:
        """An iteration is over whose layers were announced at these times; the last is its end."""
        layers = list(pairwise(starts_s))
        busy_s = _overlaps(sorted(self._carried), layers)
        self.layer_s = tuple(ticks(end_s - start_s) for start_s, end_s in layers)
        self.busy_s = tuple(ticks(seconds) for seconds in busy_s)
        self._carried.clear()

    @property
    def block_s(self) -> float:
        """How long a pushed block keeps the link busy: those that have landed since last asked."""
        if self._num_blocks:
            self._block_s = ticks(self._blocks_s / self._num_blocks)
            self._num_blocks, self._blocks_s = 0, 0.0
        return ticks(self._block_s)

    @property
    def rate(self) -> float | None:
        """Bytes a second at which requests' planned pushes arrive, while any are under way."""
        return None if self._rate is None else float(round(self._rate))


def _overlaps(
    carried: Iterable[tuple[float, float]], layers: Sequence[tuple[float, float]]
) -> list[float]:
    """How long of each layer something was carried; both are in order of their starts."""
    busy_s, at = [0.0] * len(layers), 0
    for start_s, end_s in _merged(carried):
        while at < len(layers) and layers[at][1] <= start_s:
            at += 1
        for layer in range(at, len(layers)):
            if layers[layer][0] >= end_s:
                break
            busy_s[layer] += min(end_s, layers[layer][1]) - max(start_s, layers[layer][0])
    return busy_s


def _merged(intervals: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Intervals in order of their starts, those that overlap made one."""
    start_s = end_s = float("-inf")
    for first_s, last_s in intervals:
        if first_s > end_s:
            if end_s > start_s:
                yield start_s, end_s
            start_s, end_s = first_s, last_s
        else:
            end_s = max(end_s, last_s)
    if end_s > start_s:
        yield start_s, end_s
