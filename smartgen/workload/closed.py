"""A closed batch: all requests arrive at once and decode together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from smartgen.errors import SmartGenError, count, one_of, pairs, truth
from smartgen.workload.echo import facts_of
from smartgen.workload.request import TREATMENTS, Request, closed_batch


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A closed batch. prompt_tokens: one length for all, or a list with one for each request.

    grows: whether generated entries add to attention and loading. abort_s lists pairs: a
    request's number, and the time at which its client leaves. over_long: what is done with a
    request that can never be served, refuse or leave_out.
    """

    name: str
    requests: int
    prompt_tokens: int | Sequence[int]
    output_tokens: int
    cached_ratio: float
    grows: bool = True
    over_long: str = "refuse"
    abort_s: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        count("workload.requests", self.requests)
        truth("workload.grows", self.grows)
        one_of("workload.over_long", self.over_long, TREATMENTS)
        for tokens in self.lengths:
            count("workload.prompt_tokens", tokens)
        count("workload.output_tokens", self.output_tokens)
        if len(self.lengths) != self.requests:
            raise SmartGenError(
                f"workload.prompt_tokens lists {len(self.lengths)} lengths; it must be one number "
                f"or as many as workload.requests={self.requests}"
            )

    @property
    def closed(self) -> bool:
        """Whether all requests arrive at once, and K_r is computed for all of them together."""
        return True

    @property
    def lengths(self) -> list[int]:
        """The prompt length of every request."""
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
