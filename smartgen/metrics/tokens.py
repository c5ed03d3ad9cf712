"""Tokens: the one place where what nodes recorded about them becomes rows, and what follows.

An open run makes millions of tokens, so everything here works on whole columns.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from smartgen.metrics.columns import Numbers
from smartgen.metrics.records import Merged, Recorder, ids_of

if TYPE_CHECKING:
    import pyarrow as pa

Counts = npt.NDArray[np.int64]


def token_rows(merged: Merged) -> "pa.Table":
    """The tokens table: a row a token, by request and number; the first is the prefill node's.

    Raises RuntimeError if a request's tokens are not numbered 1, 2, 3, ....
    """
    import pyarrow as pa

    parts = [_first_tokens(merged), *map(_later_tokens, merged.nodes)]
    ids, numbers, times_s, iterations = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    order = np.lexsort((numbers, ids))
    ids, numbers, times_s = ids[order], numbers[order], times_s[order]
    _check(ids, numbers)
    first = numbers == 1
    return pa.table(
        {
            "request_id": ids,
            "token": numbers,
            "time_s": times_s,
            "gap_s": pa.array(np.diff(times_s, prepend=0.0), mask=first),
            "iteration": pa.array(iterations[order], mask=first),
            "token_id": _token_ids(merged, ids, numbers),
        }
    )


def _token_ids(merged: Merged, ids: Counts, numbers: Counts) -> "pa.Array":
    import pyarrow as pa

    known = ids_of(merged.nodes)
    if not known:
        return pa.nulls(len(ids), pa.int64())
    of = zip(ids.tolist(), numbers.tolist(), strict=True)
    return pa.array([known.get(token) for token in of], pa.int64())


Columns = tuple[Counts, Counts, Numbers, Counts]
"""Of tokens: request, number, time, iteration."""


def _first_tokens(merged: Merged) -> Columns:
    rows = [row for row in merged.requests.values() if row.first_token_s is not None]
    ids = np.array([row.request_id for row in rows], np.int64)
    times_s = np.array([row.first_token_s for row in rows], np.float64)
    return ids, np.ones_like(ids), times_s, np.zeros_like(ids)


def _later_tokens(node: Recorder) -> Columns:
    """One token from each iteration of a span, at the iteration's end; iterations count from 1."""
    spans = np.array([tuple(span) for span in node.spans], np.int64).reshape(-1, 3)
    counts = spans[:, 2] - spans[:, 1] + 1
    ends = np.cumsum(counts)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    iterations = np.repeat(spans[:, 1], counts) + within
    ends_s = np.array([row.end_s for row in node.iterations], np.float64)
    return np.repeat(spans[:, 0], counts), within + 2, ends_s[iterations - 1], iterations


def _check(ids: Counts, numbers: Counts) -> None:
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    counts = np.diff(starts, append=len(ids))
    wrong = np.flatnonzero(numbers != np.arange(1, len(ids) + 1) - np.repeat(starts, counts))
    if len(wrong):
        request_id = ids[wrong[0]]
        made = numbers[ids == request_id].tolist()
        raise RuntimeError(f"request {request_id} made tokens {made}, not 1, 2, 3, ...")


class Made(NamedTuple):
    """What a request made: how many tokens, and when the first, the second and the last came."""

    tokens: int
    first_s: float
    second_s: float | None
    last_s: float

    def latencies(self, arrival_s: float) -> dict[str, float | None]:
        """Latencies as in the requests table; null where there are too few tokens."""
        first_s, second_s, later = self.first_s, self.second_s, self.tokens - 2
        none_later = second_s is None or later <= 0
        return {
            "second_token_s": second_s,
            "ttft_s": first_s - arrival_s,
            "ttst_s": None if second_s is None else second_s - first_s,
            "ttst_arrival_s": None if second_s is None else second_s - arrival_s,
            "tbt_s": None if none_later else (self.last_s - second_s) / later,  # type: ignore[operator]
        }


def made_by_request(tokens: "pa.Table") -> dict[int, Made]:
    """What every request made that made any token, from rows by request and number."""
    ids, times_s = _column(tokens, "request_id"), _column(tokens, "time_s")
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    counts = np.diff(starts, append=len(ids))
    seconds = np.minimum(starts + 1, len(ids) - 1)
    columns = (ids[starts], counts, times_s[starts], times_s[seconds], times_s[starts + counts - 1])
    return {
        request_id: Made(count, first_s, second_s if count > 1 else None, last_s)
        for request_id, count, first_s, second_s, last_s in zip(
            *(column.tolist() for column in columns), strict=True
        )
    }


def cumulative_token_latency(tokens: "pa.Table") -> list[float]:
    """CTL in seconds at tokens 2, 3, ...: the running mean of the gaps after the first token.

    CTL at token i of a request is (t_i - t_1) / (i - 1); this is its mean over the requests that
    have token i. No source gives a formula: a running mean is the only reading under which CTL can
    spike early and fall afterwards.
    """
    ids, numbers = _column(tokens, "request_id"), _column(tokens, "token")
    times_s = _column(tokens, "time_s")
    first = numbers == 1
    known, firsts_s = ids[first], times_s[first]
    order = np.argsort(known)
    later = ~first
    since_s = times_s[later] - firsts_s[order[np.searchsorted(known[order], ids[later])]]
    return [float(value) for value in _means(numbers[later], since_s / (numbers[later] - 1))]


def mean_gaps(tokens: "pa.Table") -> Numbers:
    """Seconds before tokens 2, 3, ..., each averaged over the requests that have the token."""
    numbers = _column(tokens, "token")
    later = numbers > 1
    gaps_s = tokens.column("gap_s").to_numpy()
    return _means(numbers[later], gaps_s[later])


def requests_with(tokens: "pa.Table") -> Counts:
    """How many requests have tokens 2, 3, ...."""
    return np.bincount(_column(tokens, "token"))[2:]


def _means(numbers: Counts, values: Numbers) -> Numbers:
    """The mean value at tokens 2, 3, ...."""
    sums = np.bincount(numbers, values)[2:]
    return np.asarray(sums / np.bincount(numbers)[2:], np.float64)


def _column(table: "pa.Table", name: str) -> Counts:
    values: Counts = table.column(name).to_numpy()
    return values
