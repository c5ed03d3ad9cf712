"""What a workload came to, told with the result: how many requests, how fast, how long."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from smartgen.workload.request import Request


def facts_of(requests: Sequence[Request]) -> dict[str, Any]:
    """Facts about requests that are served.

    arrivals_per_s is the inverse of the mean gap between arrivals, null where all arrive at once.
    """
    first_s = min(request.arrival_s for request in requests)
    last_s = max(request.arrival_s for request in requests)
    prompts = [request.prompt_tokens for request in requests]
    outputs = [request.output_tokens for request in requests]
    return {
        "served": len(requests),
        "first_arrival_s": first_s,
        "last_arrival_s": last_s,
        "arrivals_per_s": (len(requests) - 1) / (last_s - first_s) if last_s > first_s else None,
        "prompt_tokens_mean": fmean(prompts),
        "prompt_tokens_max": max(prompts),
        "output_tokens_mean": fmean(outputs),
        "output_tokens_max": max(outputs),
    }


def reusable_ratio(requests: Sequence[Request]) -> float:
    """Share of all prompt tokens that one unlimited cache would have held when they were asked.

    Requests in order; a block counts if it and all before it in the prompt were asked earlier.
    """
    seen: set[int] = set()
    held = 0
    for request in requests:
        hits = 0
        while hits < len(request.prefix) and request.prefix[hits] in seen:
            hits += 1
        held += min(hits * request.prefix_tokens, request.prompt_tokens)
        seen.update(request.prefix)
    return held / sum(request.prompt_tokens for request in requests)


def echo_line(echo: Mapping[str, Any]) -> str:
    """The same in one line for the terminal."""
    parts = [f"{echo['served']:,} request{'' if echo['served'] == 1 else 's'}"]
    if echo["arrivals_per_s"] is not None:
        span_s = echo["last_arrival_s"] - echo["first_arrival_s"]
        parts[0] += f" in {span_s:,.1f} s ({echo['arrivals_per_s']:.3g} a second)"
    parts += [
        f"{name} {echo[f'{kind}_tokens_mean']:,.0f} (max {echo[f'{kind}_tokens_max']:,})"
        for name, kind in (("prompts", "prompt"), ("outputs", "output"))
    ]
    if echo.get("reusable_ratio"):
        parts.append(f"{echo['reusable_ratio']:.0%} of prompts seen before")
    for key, words in _COUNTED.items():
        if echo.get(key):
            parts.append(f"{echo[key]:,} {words}")
    return ", ".join(parts)


_COUNTED = {
    "rows_out_of_order": "rows out of order",
    "left_out_no_output": "left out without output",
    "left_out_over_long": "left out as over-long",
}
