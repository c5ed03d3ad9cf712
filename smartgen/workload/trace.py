"""A trace of requests in a file: which rows are served, in what order, at what times.

A reader for each format turns lines into rows; whatever is wrong with a line ends in one error that
names the file, the line and what would be right.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from smartgen.errors import SmartGenError, count, one_of, pairs, truth, within
from smartgen.workload.echo import facts_of
from smartgen.workload.request import TREATMENTS, Request, seconds_of


class Row(NamedTuple):
    """A line of a trace. at_ns counts from any time of the file's choice."""

    line: int
    timestamp: str
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trace(ABC):
    """What traces of all formats have in common. The first request arrives at 0.

    Attributes:
        path: the file; relative to the folder in which the command is given.
        first_row: so many rows are skipped.
        requests: so many rows are read from there, in the order of the file; null for all.
        time_scale: times between arrivals are multiplied by it; 2 halves the rate.
        no_output: what is done with a row without output tokens: refuse, or leave_out.
        grows: whether generated entries add to attention and loading.
        over_long: what is done with a request that can never be served: refuse, or leave_out.
        abort_s: pairs of a request's number and the time at which its client leaves. Requests are
            numbered by arrival, from 0.
    """

    name: str
    path: str
    first_row: int = 0
    requests: int | None = None
    time_scale: float = 1.0
    no_output: str = "refuse"
    grows: bool = True
    over_long: str = "refuse"
    abort_s: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise SmartGenError(f"workload.path={self.path!r} must be the path of a trace")
        count("workload.first_row", self.first_row, at_least=0)
        if self.requests is not None:
            count("workload.requests", self.requests)
        within("workload.time_scale", self.time_scale, 1e-6, 1e6)
        one_of("workload.no_output", self.no_output, TREATMENTS)
        truth("workload.grows", self.grows)
        one_of("workload.over_long", self.over_long, TREATMENTS)

    @property
    def closed(self) -> bool:
        """Whether all requests arrive at once, and K_r is computed for all of them together."""
        return False

    @abstractmethod
    def _rows_of(self, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
        """Rows from numbered lines of text, none of which is blank."""

    @abstractmethod
    def _cached_tokens(self, row: Row) -> int:
        """So many tokens of a prompt are cached whatever was served before."""

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows that were asked for, in the order of the file; what follows is not read."""
        wanted = None if self.requests is None else self.first_row + self.requests
        rows = tuple(islice(self._rows_of(self._lines()), wanted))
        if not rows:
            raise SmartGenError(f"{self.path} has no row; it must have one for each request")
        if len(rows) <= self.first_row:
            raise SmartGenError(
                f"workload.first_row={self.first_row} must be below {len(rows)}, the rows of "
                f"{self.path}"
            )
        if wanted is not None and len(rows) < wanted:
            raise SmartGenError(
                f"workload.requests={self.requests} must be at most {len(rows) - self.first_row}, "
                f"the rows of {self.path} from workload.first_row={self.first_row}"
            )
        return rows[self.first_row :]

    @cached_property
    def by_arrival(self) -> tuple[Row, ...]:
        """The rows to serve: by time, those of the same time in the order of the file."""
        rows = [row for row in self.rows if row.output_tokens]
        if len(rows) < len(self.rows) and self.no_output == "refuse":
            line = next(row.line for row in self.rows if not row.output_tokens)
            raise SmartGenError(
                f"{self.path} line {line}: a request must have an output token, this one has none; "
                "workload.no_output=leave_out serves the others"
            )
        if not rows:
            raise SmartGenError("workload.no_output=leave_out leaves no request to serve")
        return tuple(sorted(rows, key=lambda row: row.at_ns))

    @cached_property
    def asked(self) -> tuple[Request, ...]:
        """The requests, by arrival."""
        rows = self.by_arrival
        aborts = pairs("workload.abort_s", self.abort_s, len(rows))
        return tuple(
            Request(
                request_id=i,
                arrival_s=seconds_of(round((row.at_ns - rows[0].at_ns) * self.time_scale)),
                prompt_tokens=row.prompt_tokens,
                cached_tokens=self._cached_tokens(row),
                output_tokens=row.output_tokens,
                abort_s=aborts.get(i),
                prefix=row.prefix,
            )
            for i, row in enumerate(rows)
        )

    def name_of(self, request_id: int) -> str:
        """How errors call a request."""
        return f"request {request_id} ({self.path} line {self.by_arrival[request_id].line})"

    def echo(self, served: Sequence[Request]) -> dict[str, Any]:
        """Facts about what is served of it, to be kept with the result."""
        first, last = (self.by_arrival[served[i].request_id] for i in (0, -1))
        return {
            "closed": False,
            **facts_of(served),
            "first_timestamp": first.timestamp,
            "last_timestamp": last.timestamp,
            "rows_read": len(self.rows),
            "rows_out_of_order": self._num_out_of_order(),
            "left_out_no_output": len(self.rows) - len(self.by_arrival),
        }

    def _num_out_of_order(self) -> int:
        """Rows that come after a later one."""
        num, latest_ns = 0, self.rows[0].at_ns
        for row in self.rows:
            num += row.at_ns < latest_ns
            latest_ns = max(latest_ns, row.at_ns)
        return num

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines without their ends; blank ones are passed over."""
        path = Path(self.path)
        if path.exists() and not path.is_file():
            raise SmartGenError(f"workload.path={self.path!r} must be a file, not a folder or pipe")
        number = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                    if text:
                        yield number, text
        except (OSError, ValueError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise SmartGenError(f"{self.path} line {number}: must be UTF-8 text") from error
            reason = getattr(error, "strerror", None) or error
            raise SmartGenError(
                f"workload.path={self.path!r} must be a trace that can be read: {reason}"
            ) from error
