"""Open traffic of drawn lengths: requests arrive whatever became of those before them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from smartgen.errors import count, one_of, pairs, ratio, truth, within
from smartgen.workload.echo import facts_of
from smartgen.workload.lengths import Lengths, check_lengths, draw_lengths
from smartgen.workload.request import TREATMENTS, Request, seconds_of

_GAPS, _PROMPTS, _OUTPUTS = 11, 12, 13
"""Streams of the seed: other lengths leave the arrivals as they are, and the reverse."""

_EVEN = 1e-6
"""Below this cv, a gamma distribution's shape would leave the range of numbers."""


@dataclass(frozen=True, kw_only=True)
class Open:
    """Requests that arrive at gamma distributed gaps, the first at 0.

    What is drawn for a request depends on its number and the seed, not on how many there are.

    Attributes:
        rate_per_s: arrivals a second.
        arrival_cv: standard deviation over mean of the gaps; 1 is a Poisson process, above 1 comes
            in bursts, 0 is evenly spaced.
        prompt_tokens, output_tokens: one length for all, or a distribution.
        cached_ratio: share of each prompt that is in its prefill node's prefix cache.
        grows: whether generated entries add to attention and loading.
        over_long: what is done with a request that can never be served: refuse, or leave_out.
        abort_s: pairs of a request's number and the time at which its client leaves.
    """

    name: str
    requests: int
    rate_per_s: float
    arrival_cv: float = 1.0
    prompt_tokens: int | Lengths
    output_tokens: int | Lengths
    cached_ratio: float
    seed: int
    grows: bool = True
    over_long: str = "refuse"
    abort_s: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        count("workload.requests", self.requests)
        within("workload.rate_per_s", self.rate_per_s, 1e-6, 1e6)
        within("workload.arrival_cv", self.arrival_cv, 0, 100)
        check_lengths("workload.prompt_tokens", self.prompt_tokens)
        check_lengths("workload.output_tokens", self.output_tokens)
        ratio("workload.cached_ratio", self.cached_ratio)
        count("workload.seed", self.seed, at_least=0)
        truth("workload.grows", self.grows)
        one_of("workload.over_long", self.over_long, TREATMENTS)

    @property
    def closed(self) -> bool:
        """Whether all requests arrive at once, and K_r is computed for all of them together."""
        return False

    @cached_property
    def asked(self) -> tuple[Request, ...]:
        """The requests, by arrival."""
        num = self.requests
        aborts = pairs("workload.abort_s", self.abort_s, num)
        arrivals = np.concatenate([[0.0], np.cumsum(self._gaps(num - 1))])
        prompts = draw_lengths(self.prompt_tokens, self._rng(_PROMPTS), num)
        outputs = draw_lengths(self.output_tokens, self._rng(_OUTPUTS), num)
        return tuple(
            Request(
                request_id=i,
                arrival_s=seconds_of(round(arrivals[i] * 1e9)),
                prompt_tokens=prompts[i],
                cached_tokens=int(self.cached_ratio * prompts[i]),
                output_tokens=outputs[i],
                abort_s=aborts.get(i),
            )
            for i in range(num)
        )

    def name_of(self, request_id: int) -> str:
        """How errors call a request."""
        return f"request {request_id}"

    def echo(self, served: Sequence[Request]) -> dict[str, Any]:
        """Facts about what is served of it, to be kept with the result."""
        return {"closed": False, **facts_of(served)}

    def _gaps(self, num: int) -> Any:
        if self.arrival_cv < _EVEN:
            return np.full(num, 1 / self.rate_per_s)
        shape = self.arrival_cv**-2
        return self._rng(_GAPS).gamma(shape, 1 / (shape * self.rate_per_s), num)

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream])
