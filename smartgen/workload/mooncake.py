"""Traces of the Mooncake project: a JSON object a line."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smartgen.errors import SmartGenError, count
from smartgen.workload.echo import reusable_ratio
from smartgen.workload.request import Request
from smartgen.workload.trace import Row, Trace

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
"""What every line has; other keys are passed over."""

BLOCK_TOKENS = 512
"""A hash names so many tokens, and all that come before them."""

_LATEST_MS = 9e12  # in nanoseconds still a 64-bit integer


@dataclass(frozen=True, kw_only=True)
class MooncakeTrace(Trace):
    """Requests whose prompts name their blocks of 512 tokens, so that caches can know them.

    Nothing is cached at first: what is found where is for the prefixes to decide.
    """

    def _cached_tokens(self, row: Row) -> int:
        return 0

    def _rows_of(self, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
        for number, text in lines:
            yield _row(f"{self.path} line {number}", number, text)

    def echo(self, served: Sequence[Request]) -> dict[str, Any]:
        """Facts about what is served of it, to be kept with the result."""
        return {**super().echo(served), "reusable_ratio": reusable_ratio(served)}


def _row(where: str, number: int, text: str) -> Row:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SmartGenError(f"{where}: {text[:60]!r} must be a JSON object") from error
    if not isinstance(values, dict):
        raise SmartGenError(f"{where}: {text[:60]!r} must be a JSON object")
    for key in KEYS:
        if key not in values:
            raise SmartGenError(f"{where}: {key} is missing; a row has {', '.join(KEYS)}")
    timestamp = values["timestamp"]
    prompt_tokens = count(f"{where}: input_length", values["input_length"])
    return Row(
        line=number,
        timestamp=str(timestamp),
        at_ns=_nanoseconds(f"{where}: timestamp", timestamp),
        prompt_tokens=prompt_tokens,
        output_tokens=count(f"{where}: output_length", values["output_length"], at_least=0),
        prefix=_prefix(f"{where}: hash_ids", values["hash_ids"], prompt_tokens),
    )


def _nanoseconds(name: str, value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LATEST_MS:
        raise SmartGenError(f"{name}={value!r} must be milliseconds, from 0 to {_LATEST_MS:.0f}")
    milliseconds: float = value
    whole = int(milliseconds)  # apart from the rest, which a float of a large time has no room for
    return whole * 1_000_000 + round((milliseconds - whole) * 1e6)


def _prefix(name: str, value: Any, prompt_tokens: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise SmartGenError(f"{name} must be a list of integers of zero or more")
    blocks = -(-prompt_tokens // BLOCK_TOKENS)
    if len(value) != blocks:
        raise SmartGenError(
            f"{name} has {len(value)} items; it must have {blocks}, one for each {BLOCK_TOKENS} "
            f"tokens of input_length={prompt_tokens}"
        )
    return tuple(value)


def write_trace(path: Path, requests: Sequence[Request]) -> None:
    """Write requests as a trace in this format, which has no room for cached tokens and aborts.

    Requests whose prefix is unknown get blocks that no other has. Whole nanoseconds of arrivals
    come back as they were. Raises SmartGenError if the place cannot be written, or if a prefix is
    cut into blocks of another length.
    """
    unknown = 1 + max((name for request in requests for name in request.prefix), default=-1)
    lines = []
    for request in requests:
        blocks = -(-request.prompt_tokens // BLOCK_TOKENS)
        prefix = list(request.prefix)
        if not prefix:
            prefix = list(range(unknown, unknown + blocks))
            unknown += blocks
        elif request.prefix_tokens != BLOCK_TOKENS or len(prefix) != blocks:
            raise SmartGenError(
                f"request {request.request_id} names {len(prefix)} blocks of "
                f"{request.prefix_tokens} tokens; it must name {blocks} of {BLOCK_TOKENS}"
            )
        milliseconds = round(request.arrival_s * 1e9) / 1e6
        timestamp = int(milliseconds) if milliseconds.is_integer() else milliseconds
        values = (timestamp, request.prompt_tokens, request.output_tokens, prefix)
        lines.append(json.dumps(dict(zip(KEYS, values, strict=True))) + "\n")
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise SmartGenError(f"{path} cannot be written: {error.strerror}") from error
