"""A request, and the closed batch: all arrive at once and decode together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smartgen.errors import SmartGenError, count, ratio


@dataclass(frozen=True, slots=True)
class Request:
    """One request. output_tokens counts the first token, which prefill makes.

    Attributes:
        cached_tokens: so many first tokens of the prompt are found in the prefill node's prefix
            cache, and need not be computed.
        held_tokens: so many first tokens of the prompt are held by the decoding node, and need not
            be sent.
        abort_s: when its client leaves.
        prefix: names of the prompt's blocks of ``prefix_tokens`` tokens each, the last one maybe
            partial; equal names at equal places mean equal tokens up to there. Empty where unknown.
    """

    request_id: int
    arrival_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    abort_s: float | None = None
    held_tokens: int = 0
    prefix: tuple[int, ...] = ()
    prefix_tokens: int = 512

    def __post_init__(self) -> None:
        count("request.prompt_tokens", self.prompt_tokens)
        count("request.cached_tokens", self.cached_tokens, at_least=0)
        count("request.output_tokens", self.output_tokens)
        count("request.held_tokens", self.held_tokens, at_least=0)
        for name in ("cached_tokens", "held_tokens"):
            if getattr(self, name) > self.prompt_tokens:
                raise SmartGenError(
                    f"request.{name}={getattr(self, name)} must not exceed "
                    f"request.prompt_tokens={self.prompt_tokens}"
                )
        if self.abort_s is not None and self.abort_s < self.arrival_s:
            raise SmartGenError(
                f"request.abort_s={self.abort_s} must not lie before its arrival at "
                f"{self.arrival_s}"
            )


def closed_batch(
    prompt_tokens: Sequence[int],
    output_tokens: int,
    cached_ratio: float,
    abort_s: Mapping[int, float] | None = None,
) -> tuple[Request, ...]:
    """One request for every prompt length, all arriving at 0.

    cached_ratio of each prompt is already cached at its prefill node (rounded down). abort_s maps
    a request's number to the time at which its client leaves.
    """
    count("workload.requests", len(prompt_tokens))
    ratio("workload.cached_ratio", cached_ratio)
    aborts = dict(abort_s or {})
    return tuple(
        Request(i, 0.0, tokens, int(cached_ratio * tokens), output_tokens, aborts.get(i))
        for i, tokens in enumerate(prompt_tokens)
    )


def arrivals_of(requests: Sequence[Request]) -> list[tuple[float, Sequence[Request]]]:
    """When which requests arrive together."""
    groups: dict[float, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.arrival_s, []).append(request)
    return sorted(groups.items())


def departures_of(requests: Sequence[Request]) -> list[tuple[float, int]]:
    """When whose clients leave."""
    return sorted((r.abort_s, r.request_id) for r in requests if r.abort_s is not None)
