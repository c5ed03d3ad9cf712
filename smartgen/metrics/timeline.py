"""A run as a timeline for Perfetto: GPUs, each direction of each NIC, PCIe, and counters.

Chrome's trace-event format: a process a machine, a thread a track. Slices of one track never
overlap: where they would, as many tracks of the same name are made as are needed. Times are
microseconds with three decimals, so that slices are as exact as nanoseconds.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smartgen.errors import SmartGenError
from smartgen.metrics.attribution import Shares
from smartgen.metrics.columns import floats
from smartgen.metrics.load import Steps, requests_in_system
from smartgen.metrics.records import Purpose
from smartgen.metrics.store import Run

if TYPE_CHECKING:
    import pyarrow as pa

Event = dict[str, Any]
Row = dict[str, Any]

_COUNTER_BINS = 1000
_ACT_TRACKS = {"select": "selection", "load": "PCIe", "fetch": "remote lane", "landed": "waiting"}
"""Which acts have a track beside the GPU's own, where they run beside other acts."""


def write_timeline(run: Run, path: Path) -> None:
    """Write a run's timeline, gzipped JSON; ui.perfetto.dev opens it.

    Raises SmartGenError if the run did not record its transfers, or the file cannot be written.
    """
    text = json.dumps({"traceEvents": timeline(run)}, separators=(",", ":"))
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(gzip.compress(text.encode(), mtime=0))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SmartGenError(f"the timeline cannot be written to {path}: {reason}") from error


def timeline(run: Run) -> list[Event]:
    """The trace events of a run that recorded its transfers."""
    if run.transfers is None:
        raise SmartGenError(
            f"{run.folder} has no transfers.parquet; run it again with record.transfers=true"
        )
    tracks = _Tracks()
    requests = {row["request_id"]: row for row in run.requests.to_pylist()}
    prefills = _add_prefills(tracks, run, requests)
    iterations = _add_iterations(tracks, run)
    if run.acts is not None:
        _add_acts(tracks, run.acts)
    landings = _add_transfers(tracks, run, prefills)
    _add_plan_arrows(tracks, run, requests, landings, iterations)
    _add_counters(tracks, run)
    return tracks.events()


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Where a slice lies: its track, and its start and end in ns."""

    pid: int
    tid: int
    start: int
    end: int


@dataclass
class _Tracks:
    """Events so far, with the processes and threads that they lie on."""

    slices: list[Event] = field(default_factory=list)
    others: list[Event] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    _lanes: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    _tids: Iterable[int] = field(default_factory=lambda: count(1))
    _names: list[Event] = field(default_factory=list)
    _flows: Iterable[int] = field(default_factory=lambda: count(1))

    def pid(self, machine: str) -> int:
        """The process of a machine."""
        if machine not in self.pids:
            self.pids[machine] = len(self.pids) + 1
            self._name("process_name", self.pids[machine], 0, machine)
        return self.pids[machine]

    def add(
        self, machine: str, track: str, name: str, start_s: float, end_s: float, **told: Any
    ) -> _Slice:
        """Add a slice to a track, or to another of its name if the first one is taken.

        The slices of a track must be added in order of their start.
        """
        start, end = _nanoseconds(start_s), _nanoseconds(end_s)
        pid = self.pid(machine)
        lanes = self._lanes.setdefault((machine, track), [])
        for lane, (tid, free) in enumerate(lanes):
            if free <= start:
                lanes[lane] = (tid, end)
                break
        else:
            tid = next(iter(self._tids))
            lanes.append((tid, end))
            self._name("thread_name", pid, tid, track)
        event = {"ph": "X", "name": name, "pid": pid, "tid": tid}
        times = {"ts": start / 1e3, "dur": (end - start) / 1e3}
        self.slices.append(event | times | ({"args": told} if told else {}))
        return _Slice(pid, tid, start, end)

    def arrow(self, name: str, source: _Slice, target: _Slice, at: int | None = None) -> None:
        """Draw an arrow from within a slice, at a time in ns or its end, to within a later one."""
        leaves = source.end - 1 if at is None else min(max(at, source.start), source.end - 1)
        comes = max(target.start, leaves)
        if source.end == source.start or comes >= target.end:
            return
        common = {"name": name, "cat": "flow", "id": next(iter(self._flows))}
        for kind, place, time in (("s", source, leaves), ("f", target, comes)):
            event = {"ph": kind, "pid": place.pid, "tid": place.tid, "ts": time / 1e3, **common}
            self.others.append(event | ({"bp": "e"} if kind == "f" else {}))

    def counter(self, machine: str, name: str, times_s: Iterable[float], values: Any) -> None:
        """Add a counter's values, each from its time on. Perfetto shows the name's two parts."""
        first, _, last = name.rpartition(" ")
        pid = self.pid(machine)
        for time_s, value in zip(times_s, values, strict=True):
            self.others.append(
                {
                    "ph": "C",
                    "name": first,
                    "pid": pid,
                    "ts": _nanoseconds(float(time_s)) / 1e3,
                    "args": {last: float(value)},
                }
            )

    def events(self) -> list[Event]:
        """All events; names first, and slices before what refers to them."""
        return [*self._names, *self.slices, *self.others]

    def _name(self, kind: str, pid: int, tid: int, name: str) -> None:
        order = {"process_name": "process_sort_index", "thread_name": "thread_sort_index"}[kind]
        place = {"ph": "M", "pid": pid, "tid": tid}
        self._names.append({"name": kind, "args": {"name": name}, **place})
        self._names.append({"name": order, "args": {"sort_index": tid or pid}, **place})


def _host(run: Run, prefill_node: str) -> str:
    number = int(prefill_node.removeprefix("prefill"))
    return f"host{number // int(run.config['cluster']['gpus_per_host'])}"


def _add_prefills(tracks: _Tracks, run: Run, requests: Mapping[int, Row]) -> dict[int, _Slice]:
    """A slice for each request's prefill, until its first token, or its end without one."""
    started = [row for row in requests.values() if row["prefill_start_s"] is not None]
    found = {}
    for row in sorted(started, key=lambda row: (row["prefill_node"], row["prefill_start_s"])):
        end_s = row["first_token_s"] if row["first_token_s"] is not None else row["finish_s"]
        if end_s is not None:
            node, name = row["prefill_node"], f"prefill {row['request_id']}"
            told = {key: row[key] for key in ("request_id", "prompt_tokens", "cached_tokens")}
            found[row["request_id"]] = tracks.add(
                _host(run, node), f"{node} GPU", name, row["prefill_start_s"], end_s, **told
            )
    return found


def _add_iterations(tracks: _Tracks, run: Run) -> dict[tuple[str, int], _Slice]:
    told = ("batch_size", "cached_tokens", "selected_entries", "remote_entries", *Shares._fields)
    found = {}
    rows = run.iterations.sort_by([("decode_node", "ascending"), ("start_s", "ascending")])
    for row in rows.to_pylist():
        node, number = row["decode_node"], row["iteration"]
        arguments = {key: row[key] for key in told}
        found[node, number] = tracks.add(
            node, "GPU", f"iteration {number}", row["start_s"], row["end_s"], **arguments
        )
    return found


def _add_acts(tracks: _Tracks, acts: "pa.Table") -> None:
    rows = acts.sort_by([("decode_node", "ascending"), ("start_s", "ascending")])
    for row in rows.to_pylist():
        if row["end_s"] > row["start_s"]:
            track = _ACT_TRACKS.get(row["act"], "GPU acts")
            told = {key: row[key] for key in ("iteration", "layer") if row[key] is not None}
            tracks.add(row["decode_node"], track, row["act"], row["start_s"], row["end_s"], **told)


# -- the network


def _add_transfers(
    tracks: _Tracks, run: Run, prefills: Mapping[int, _Slice]
) -> dict[int, list[_Slice]]:
    """A slice for each posting, going out and coming in; returns where plans of requests landed.

    Tracks follow queue pairs: a node's pushes keep their order, its replies need not wait for them.
    """
    planned: dict[int, list[_Slice]] = defaultdict(list)
    for row in _postings(run):
        source, target = row["source"], row["destination"]
        pair = "replies" if row["purpose"] == Purpose.ON_DEMAND else "pushes"
        layer = "" if row["layer"] is None else f" layer {row['layer']}"
        name, times = f"{row['purpose']}{layer}", (row["start_s"], row["end_s"])
        told = {key: row[key] for key in ("requests", "bytes", "blocks", "messages", "status")}
        told["waited_s"] = row["start_s"] - row["posted_s"]
        out = tracks.add(_host(run, source), f"NIC out: {source} {pair}", name, *times, **told)
        into = tracks.add(target, f"NIC in: {source} {pair}", name, *times, **told)
        if row["purpose"] == Purpose.PROACTIVE:
            (request_id,) = row["requests"]
            if request_id in prefills:
                posted = _nanoseconds(row["posted_s"])
                tracks.arrow("push", prefills[request_id], out, posted)
            if row["status"] == "landed":
                planned[request_id].append(into)
    return planned


def _postings(run: Run) -> list[Row]:
    """Rows of transfers that moved, by their start; a reply to several requests is one posting."""
    assert run.transfers is not None
    same = ("source", "destination", "purpose", "layer", "posted_s", "start_s", "end_s", "status")
    found: dict[tuple[Any, ...], Row] = {}
    for row in run.transfers.to_pylist():
        if row["start_s"] is None:
            continue
        key = tuple(row[name] for name in same)
        alone = row["purpose"] != Purpose.ON_DEMAND
        posting = found.setdefault(
            (*key, row["transfer_id"] if alone else None),
            dict(zip(same, key, strict=True))
            | {"requests": [], "bytes": 0, "blocks": 0, "messages": row["messages"]},
        )
        posting["requests"].append(row["request_id"])
        posting["bytes"] += row["bytes"]
        posting["blocks"] += row["blocks"]
    return sorted(found.values(), key=lambda row: (row["start_s"], row["end_s"]))


def _add_plan_arrows(
    tracks: _Tracks,
    run: Run,
    requests: Mapping[int, Row],
    landings: Mapping[int, list[_Slice]],
    iterations: Mapping[tuple[str, int], _Slice],
) -> None:
    """From the last planned push of a request to the iteration that made its second token."""
    import pyarrow.compute

    seconds = run.tokens.filter(pyarrow.compute.field("token") == 2)
    for row in seconds.select(["request_id", "iteration"]).to_pylist():
        landed = landings.get(row["request_id"])
        made_by = requests[row["request_id"]]["decode_node"], row["iteration"]
        if landed and made_by in iterations:
            last = max(landed, key=lambda place: place.end)
            tracks.arrow("plan landed", last, iterations[made_by])


# -- counters


def _add_counters(tracks: _Tracks, run: Run) -> None:
    system = requests_in_system(run.requests, run.metrics["makespan_s"])
    tracks.counter("all", "requests in system", system.times_s, system.levels)
    for node, table in _parts(run.iterations, "decode_node").items():
        batch = Steps(*(floats(table, name) for name in ("start_s", "end_s", "batch_size")))
        tracks.counter(node, "batch size", batch.times_s, batch.levels)
    network = run.config["network"]
    assert run.transfers is not None
    for node, table in _parts(run.transfers, "destination").items():
        _add_link(tracks, run, node, "NIC in %", table, network["gbps"])
    by_host: dict[str, list[Any]] = defaultdict(list)
    for node, table in _parts(run.transfers, "source").items():
        by_host[_host(run, node)].append(table)
    for host, tables in by_host.items():
        import pyarrow as pa

        whole = pa.concat_tables(tables)
        _add_link(tracks, run, host, "NIC out %", whole, network["sender_gbps"])


def _add_link(
    tracks: _Tracks, run: Run, machine: str, name: str, table: "pa.Table", gbps: float
) -> None:
    """Use of a link in each thousandth of the run, as if postings moved evenly; so cut at 100 %."""
    starts_s, ends_s = floats(table, "start_s"), floats(table, "end_s")
    moved = ends_s > starts_s
    starts_s, ends_s, bits = starts_s[moved], ends_s[moved], floats(table, "bytes")[moved] * 8
    rate = gbps * 1e9 * float(run.config["network"]["efficiency"])
    edges_s = np.linspace(0.0, run.metrics["makespan_s"], _COUNTER_BINS + 1)
    shares = Steps(starts_s, ends_s, bits / (ends_s - starts_s) / rate).means(edges_s)
    shares = np.minimum(shares, 1.0)
    changes = np.flatnonzero(np.diff(shares, prepend=-1.0))
    tracks.counter(machine, name, edges_s[changes], (shares * 100)[changes])


def _parts(table: "pa.Table", column: str) -> "dict[str, pa.Table]":
    import pyarrow.compute

    names = sorted(table.column(column).unique().to_pylist())
    return {name: table.filter(pyarrow.compute.field(column) == name) for name in names}
