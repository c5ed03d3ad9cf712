"""Traces of the Azure public dataset: a CSV with a line for each request."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from smartgen.errors import SmartGenError, count, ratio
from smartgen.workload.trace import Row, Trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
"""What the header must name; other columns are passed over."""

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class AzureTrace(Trace):
    """Requests with lengths and times to 100 ns; what their prompts share is unknown.

    cached_ratio of each prompt is taken to be in its prefill node's prefix cache.
    """

    cached_ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio("workload.cached_ratio", self.cached_ratio)

    def _cached_tokens(self, row: Row) -> int:
        return int(self.cached_ratio * row.prompt_tokens)

    def _rows_of(self, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
        header = None
        for number, text in lines:
            where = f"{self.path} line {number}"
            fields = _fields(where, text)
            if header is None:
                header = fields
                at = _columns(where, text, header)
                continue
            if len(fields) != len(header):
                raise SmartGenError(
                    f"{where}: {text[:60]!r} has {len(fields)} fields; it must have {len(header)}"
                )
            timestamp, prompt, output = (fields[i] for i in at)
            yield Row(
                line=number,
                timestamp=timestamp,
                at_ns=_nanoseconds(f"{where}: TIMESTAMP", timestamp),
                prompt_tokens=_whole(f"{where}: ContextTokens", prompt, 1),
                output_tokens=_whole(f"{where}: GeneratedTokens", output, 0),
            )


def _fields(where: str, text: str) -> list[str]:
    try:
        return [field.strip() for field in next(csv.reader([text]))]
    except csv.Error as error:
        raise SmartGenError(f"{where}: {text[:60]!r} must be comma-separated: {error}") from error


def _columns(where: str, text: str, header: list[str]) -> list[int]:
    for name in COLUMNS:
        if header.count(name) != 1:
            raise SmartGenError(
                f"{where}: the header {text[:60]!r} must name {', '.join(COLUMNS)} once each"
            )
    return [header.index(name) for name in COLUMNS]


def _whole(name: str, text: str, at_least: int) -> int:
    is_whole = text.isascii() and text.isdigit() and len(text) < 19
    return count(name, int(text) if is_whole else text, at_least)


def _nanoseconds(name: str, text: str) -> int:
    """Since 1970; an integer, because a float of this size is good to 240 ns only."""
    found = _TIMESTAMP.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        date, fraction, zone = found.groups()
        moment = datetime.fromisoformat(f"{date}{zone or '+00:00'}") - _EPOCH
    except ValueError:
        raise SmartGenError(
            f"{name}={text!r} must be a time like 2023-11-16 18:15:46.6805900"
        ) from None
    seconds = moment.days * 86_400 + moment.seconds
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))
