"""What nodes report while they run: rows in memory, a recorder a node, merged at the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from smartgen.metrics.attribution import Shares


class Purpose:
    """Why bytes cross the network; the words used in tables, messages and plots."""

    PROACTIVE = "proactive"
    ON_DEMAND = "on_demand"
    SPECULATIVE = "speculative"
    METADATA = "metadata"


_BYTES = {
    purpose: f"{purpose}_bytes"
    for purpose in (
        Purpose.PROACTIVE,
        Purpose.ON_DEMAND,
        Purpose.SPECULATIVE,
        Purpose.METADATA,
    )
}


@dataclass(slots=True)
class RequestRow:
    """What became of a request; seconds since the run's start, null where it never came."""

    request_id: int
    prefill_node: str | None = None
    decode_node: str | None = None
    status: str | None = None
    arrival_s: float | None = None
    reserved_s: float | None = None
    prefill_start_s: float | None = None
    first_token_s: float | None = None
    plan_delivered_s: float | None = None
    joined_s: float | None = None
    all_delivered_s: float | None = None
    finish_s: float | None = None
    prefill_released_s: float | None = None
    released_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    held_tokens: int | None = None
    output_tokens: int | None = None
    planned_blocks: int | None = None
    total_blocks: int | None = None
    proactive_bytes: int | None = None
    on_demand_bytes: int | None = None
    speculative_bytes: int | None = None
    metadata_bytes: int | None = None

    def add_bytes(self, purpose: str, num_bytes: float) -> None:
        """Count bytes that have crossed the network for a purpose."""
        name = _BYTES[purpose]
        setattr(self, name, (getattr(self, name) or 0) + round(num_bytes))


class TokenRow(NamedTuple):
    """One output token; tokens count from 1, the first is the prefill node's (iteration null)."""

    request_id: int
    token: int
    time_s: float
    iteration: int | None
    token_id: int | None


class TokenSpan(NamedTuple):
    """A request's tokens from the second on: one from each iteration of a node, both included."""

    request_id: int
    first_iteration: int
    last_iteration: int


class TokenId(NamedTuple):
    """Which token a model has made; tokens of a request count from 1."""

    request_id: int
    token: int
    token_id: int


class IterationRow(NamedTuple):
    """One decoding iteration: its critical path, and what it selected and moved."""

    decode_node: str
    iteration: int
    start_s: float
    end_s: float
    batch_size: int
    cached_tokens: int
    shares: Shares
    selected_entries: float
    remote_entries: float
    local_bytes: int
    on_demand_bytes: int
    speculative_bytes: int
    messages: int
    remote_blocks_left: int


class ActRow(NamedTuple):
    """One act of a layer in an iteration; layer is null for acts of the whole iteration."""

    decode_node: str
    iteration: int
    layer: int | None
    act: str
    start_s: float
    end_s: float


class TransferRow(NamedTuple):
    """One posting on the network, when it was posted, when its first and last byte moved."""

    request_id: int
    purpose: str
    source: str
    destination: str
    layer: int | None
    blocks: int
    entries: float
    bytes: int
    messages: int
    posted_s: float
    start_s: float
    end_s: float
    status: str


class Decision(NamedTuple):
    """A decision or a split, for comparing backends record by record."""

    kind: str
    request_id: int
    step: int
    layer: int
    values: tuple[float, ...]


@dataclass
class Recorder:
    """What one node has seen. wants_... switch the long lists on."""

    wants_transfers: bool = False
    wants_decisions: bool = False
    wants_acts: bool = False
    requests: dict[int, RequestRow] = field(default_factory=dict)
    spans: list[TokenSpan] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)
    iterations: list[IterationRow] = field(default_factory=list)
    transfers: list[TransferRow] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    acts: list[ActRow] = field(default_factory=list)

    @property
    def tokens(self) -> list[TokenRow]:
        """The tokens of all spans, a row each, in the order of their iterations."""
        rows, ids = [], ids_of([self])
        for span in self.spans:
            for iteration in range(span.first_iteration, span.last_iteration + 1):
                token = iteration - span.first_iteration + 2
                end_s = self.iterations[iteration - 1].end_s
                token_id = ids.get((span.request_id, token))
                rows.append(TokenRow(span.request_id, token, end_s, iteration, token_id))
        return sorted(rows, key=lambda row: (row.time_s, row.iteration))

    def request(self, request_id: int) -> RequestRow:
        """The row of a request, made when first asked for."""
        row = self.requests.get(request_id)
        if row is None:
            row = self.requests[request_id] = RequestRow(request_id)
        return row

    def act(self, row: ActRow) -> None:
        """Keep an act, which is wanted."""
        self.acts.append(row)

    def decide(
        self, kind: str, request_id: int, step: int, layer: int, values: Iterable[float]
    ) -> None:
        """Log a decision, if decisions are wanted; else values are not even looked at."""
        if self.wants_decisions:
            told = tuple(float(value) for value in values)
            self.decisions.append(Decision(kind, request_id, step, layer, told))


def ids_of(recorders: Iterable[Recorder]) -> dict[tuple[int, int], int]:
    """Which tokens models have made, by request and number; none where no model ran."""
    return {(row[0], row[1]): row[2] for node in recorders for row in node.token_ids}


@dataclass
class Merged:
    """What all nodes of a run have seen; transfers are in order of posting."""

    nodes: list[Recorder]
    requests: dict[int, RequestRow]
    iterations: list[IterationRow]
    transfers: list[TransferRow]
    decisions: list[Decision]
    acts: list[ActRow]

    @property
    def tokens(self) -> list[TokenRow]:
        """All tokens by request and number, a row each; tables are made from spans instead."""
        rows = [row for node in self.nodes for row in node.tokens]
        return sorted(rows, key=lambda row: (row.request_id, row.token))


def merge(recorders: list[Recorder]) -> Merged:
    """One record for a run: rows of a request that several nodes reported become one."""
    merged = Merged(recorders, {}, [], [], [], [])
    names = [column.name for column in fields(RequestRow)]
    for recorder in recorders:
        for row in recorder.requests.values():
            target = merged.requests.setdefault(row.request_id, RequestRow(row.request_id))
            for name in names:
                value = getattr(row, name)
                if value is not None:
                    setattr(target, name, value)
        merged.iterations += recorder.iterations
        merged.transfers += recorder.transfers
        merged.decisions += recorder.decisions
        merged.acts += recorder.acts
    merged.transfers.sort(key=lambda row: (row.posted_s, row.end_s, row.request_id))
    return merged
