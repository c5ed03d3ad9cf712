"""What a decoding node notes down of its link and iterations, for policies that decide by it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

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


class _Passed(NamedTuple):
    """A flow as it arrived; num_blocks of a speculative push, else null."""

    start_s: float
    end_s: float
    size: float
    num_blocks: int | None


class Observer:
    """Times are those of arrival at the node: one way after the link.

    Flows are taken to arrive evenly from their start to their end, and the link to have moved at
    one rate in an iteration: all that arrived, over the time in which anything did.
    block_s: how long a pushed block keeps the link busy, to begin with.
    """

    def __init__(self, one_way_s: float, block_s: float) -> None:
        self._one_way_s = one_way_s
        self._passed: list[_Passed] = []
        self._streams: dict[int, _Stream] = {}
        self._rate: float | None = None
        self.block_s = ticks(block_s)
        """What a pushed block took lately, in ticks."""
        self.layer_s: tuple[float, ...] = ()
        """Of the last iteration, in ticks, [L]; empty if it did not go layer by layer."""
        self.busy_s: tuple[float, ...] = ()
        """How much of that the link needed for planned pushes and replies."""

    # -- what has landed

    def replied(self, flow: Carried) -> None:
        """A reply has landed."""
        self._pass(flow, None)

    def planned(self, slot: int, flow: Carried, is_last: bool) -> None:
        """A planned push of a slot has landed; a slot's are looked at when the last has."""
        self._pass(flow, None)
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
        self._pass(flow, num_blocks)

    def forget(self, slot: int) -> None:
        """A slot is gone."""
        self._streams.pop(slot, None)

    def _pass(self, flow: Carried, num_blocks: int | None) -> None:
        start_s, end_s = flow.started_s + self._one_way_s, flow.end_s + self._one_way_s
        self._passed.append(_Passed(start_s, end_s, flow.size, num_blocks))

    # -- what is made of it

    def iterated(self, starts_s: Sequence[float]) -> None:
        """An iteration is over whose layers were announced at these times; the last is its end."""
        passed, self._passed = sorted(self._passed, key=_start_s), []
        layers = list(pairwise(starts_s))
        seconds = math.fsum(end_s - start_s for start_s, end_s in _merged(passed))
        size = math.fsum(flow.size for flow in passed)
        byte_s = seconds / size if size else 0.0
        pushes = [flow for flow in passed if flow.num_blocks is not None]
        if pushes:
            num_blocks = sum(flow.num_blocks or 0 for flow in pushes)
            pushed = math.fsum(flow.size for flow in pushes)
            self.block_s = ticks(byte_s * pushed / num_blocks)
        others = [flow for flow in passed if flow.num_blocks is None]
        self.layer_s = tuple(ticks(end_s - start_s) for start_s, end_s in layers)
        self.busy_s = tuple(ticks(byte_s * part) for part in _parts(others, layers))

    @property
    def rate(self) -> float | None:
        """Bytes a second at which requests' planned pushes arrive, while any are under way."""
        return None if self._rate is None else float(round(self._rate))


def _start_s(flow: _Passed) -> float:
    return flow.start_s


def _parts(flows: Iterable[_Passed], layers: Sequence[tuple[float, float]]) -> list[float]:
    """Bytes that arrived in each layer; flows are in order of their starts, as layers are."""
    parts, at = [0.0] * len(layers), 0
    for flow in flows:
        while at < len(layers) and layers[at][1] <= flow.start_s:
            at += 1
        for layer in range(at, len(layers)):
            start_s, end_s = layers[layer]
            inside_s = min(flow.end_s, end_s) - max(flow.start_s, start_s)
            if inside_s <= 0:
                break
            parts[layer] += flow.size * inside_s / (flow.end_s - flow.start_s)
    return parts


def _merged(flows: Iterable[_Passed]) -> Iterator[tuple[float, float]]:
    """When anything arrived: starts and ends, without overlaps."""
    start_s = end_s = float("-inf")
    for flow in flows:
        if flow.start_s > end_s:
            if end_s > start_s:
                yield start_s, end_s
            start_s, end_s = flow.start_s, flow.end_s
        else:
            end_s = max(end_s, flow.end_s)
    if end_s > start_s:
        yield start_s, end_s
