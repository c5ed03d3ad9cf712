"""Tokens: the one place where what nodes recorded about them becomes rows, and what follows.

An open run makes millions of tokens, so everything here works on whole columns.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from smartgen.metrics.records import Recorder

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = npt.NDArray[np.float64]


def token_rows(merged: Recorder) -> "pa.Table":
    """The tokens table: a row a token, by request and number; the first is the prefill node's.

    Raises RuntimeError if a request's tokens are not numbered 1, 2, 3, ....
    """
    import pyarrow as pa

    firsts = [row for row in merged.requests.values() if row.first_token_s is not None]
    blank = [None] * len(firsts)
    rows = merged.tokens
    ids = np.array([row.request_id for row in firsts] + [row[0] for row in rows], np.int64)
    numbers = np.array([1] * len(firsts) + [row[1] for row in rows], np.int64)
    times_s = np.array([row.first_token_s for row in firsts] + [row[2] for row in rows], np.float64)
    order = np.lexsort((numbers, ids))
    ids, numbers, times_s = ids[order], numbers[order], times_s[order]
    _check(ids, numbers)
    gaps_s = np.diff(times_s, prepend=0.0)
    iterations = pa.array([*blank, *[row[3] for row in rows]], pa.int64())
    token_ids = pa.array([*blank, *[row[4] for row in rows]], pa.int64())
    return pa.table(
        {
            "request_id": ids,
            "token": numbers,
            "time_s": times_s,
            "gap_s": pa.array(gaps_s, mask=numbers == 1),
            "iteration": iterations.take(pa.array(order)),
            "token_id": token_ids.take(pa.array(order)),
        }
    )


def _check(ids: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> None:
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


def requests_with(tokens: "pa.Table") -> npt.NDArray[np.int64]:
    """How many requests have tokens 2, 3, ...."""
    return np.bincount(_column(tokens, "token"))[2:]


def _means(numbers: npt.NDArray[np.int64], values: Numbers) -> Numbers:
    """The mean value at tokens 2, 3, ...."""
    sums = np.bincount(numbers, values)[2:]
    return np.asarray(sums / np.bincount(numbers)[2:], np.float64)


def _column(table: "pa.Table", name: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = table.column(name).to_numpy()
    return values
