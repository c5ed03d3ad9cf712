"""A closed batch: all requests arrive at once and decode together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from smartgen.errors import SmartGenError, count, one_of, pairs, truth, within
from smartgen.workload.echo import facts_of
from smartgen.workload.lengths import Lengths
from smartgen.workload.request import TREATMENTS, Request, closed_batch

_PROMPTS = 12
"""The stream of the seed that lengths are drawn from."""

_LEAST, _MOST = 1 / 5, 3
"""Bounds of drawn lengths over what they are drawn around, as of MultiFieldQA's open traffic."""


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A closed batch. prompt_tokens: one length for all, or a list with one for each request.

    length_cv: standard deviation over mean of the lengths that are drawn, by seed, around
    prompt_tokens; 0 makes them prompt_tokens. What is drawn for a request does not depend on how
    many there are. grows: whether generated entries add to attention and loading. abort_s lists
    pairs: a request's number, and the time at which its client leaves. over_long: what is done
    with a request that can never be served, refuse or leave_out.
    """

    name: str
    requests: int
    prompt_tokens: int | Sequence[int]
    output_tokens: int
    cached_ratio: float
    length_cv: float = 0.0
    seed: int = 0
    grows: bool = True
    over_long: str = "refuse"
    abort_s: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        count("workload.requests", self.requests)
        truth("workload.grows", self.grows)
        one_of("workload.over_long", self.over_long, TREATMENTS)
        within("workload.length_cv", self.length_cv, 0, 10)
        count("workload.seed", self.seed, at_least=0)
        for tokens in self._means:
            count("workload.prompt_tokens", tokens)
        count("workload.output_tokens", self.output_tokens)
        if len(self._means) != self.requests:
            raise SmartGenError(
                f"workload.prompt_tokens lists {len(self._means)} lengths; it must be one number "
                f"or as many as workload.requests={self.requests}"
            )

    @property
    def closed(self) -> bool:
        """Whether all requests arrive at once, and K_r is computed for all of them together."""
        return True

    @cached_property
    def lengths(self) -> list[int]:
        """The prompt length of every request."""
        if self.length_cv == 0:
            return self._means
        rng = np.random.default_rng([self.seed, _PROMPTS])
        return [_around(tokens, self.length_cv).draw(rng, 1)[0] for tokens in self._means]

    @property
    def _means(self) -> list[int]:
        if isinstance(self.prompt_tokens, Sequence) and not isinstance(self.prompt_tokens, str):
            return list(self.prompt_tokens)
        return [self.prompt_tokens] * self.requests

    @cached_property
    def asked(self) -> tuple[Request, ...]:
        """The requests."""
        aborts = pairs("workload.abort_s", self.abort_s, self.requests)
        return closed_batch(self.lengths, self.output_tokens, self.cached_ratio, aborts)

    def name_of(self, request_id: int) -> str:
        """How errors call a request."""
        return f"request {request_id}"

    def echo(self, served: Sequence[Request]) -> dict[str, Any]:
        """Facts about what is served of it, to be kept with the result."""
        return {"closed": True, **facts_of(served)}


def _around(tokens: int, cv: float) -> Lengths:
    least, most = max(1, round(_LEAST * tokens)), _MOST * tokens
    return Lengths(mean_tokens=tokens, cv=cv, min_tokens=least, max_tokens=most)
