"""Timelines without Perfetto: what they refuse, and that they come out the same each time."""

import gzip
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from smartgen.compose import experiment_of
from smartgen.errors import SmartGenError
from smartgen.metrics.store import Run, read_run, write_run
from smartgen.metrics.timeline import timeline, write_timeline
from smartgen.sim import SimBackend

TINY = ("model=tiny", "workload=tiny", "blocks_per_layer=32", "network.gbps=0.05")


def run_of(folder: Path, *overrides: str) -> Run:
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        config = compose("config", [*TINY, *overrides])
    experiment = experiment_of(config)
    write_run(folder, config, {}, "sim", experiment, SimBackend().run(experiment))
    return read_run(folder)


def test_a_run_without_transfers_is_refused_with_what_to_do(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    with pytest.raises(SmartGenError, match=r"run it again with record\.transfers=true"):
        write_timeline(run, tmp_path / "timeline.json.gz")
    assert not (tmp_path / "timeline.json.gz").exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "record.transfers=true")
    (tmp_path / "file").touch()
    with pytest.raises(SmartGenError, match="the timeline cannot be written to"):
        write_timeline(run, tmp_path / "file" / "timeline.json.gz")


@pytest.mark.parametrize("discipline", ["fifo", "queue_pair", "priority"])
def test_slices_of_a_track_never_overlap(discipline: str, tmp_path: Path) -> None:
    wanted = ("record.transfers=true", f"network.discipline={discipline}")
    run = run_of(tmp_path / "run", *wanted, "workload.abort_s=[[2,0.09]]")
    until: dict[int, float] = {}
    for event in timeline(run):
        if event["ph"] == "X":
            assert event["ts"] >= until.get(event["tid"], 0.0) - 1e-9
            until[event["tid"]] = event["ts"] + event["dur"]
    assert len(until) > 3


def test_arrows_come_in_pairs_and_never_lead_back_in_time(tmp_path: Path) -> None:
    events = timeline(run_of(tmp_path / "run", "record.transfers=true", "policy=partial"))
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    assert starts and starts.keys() == ends.keys()
    assert all(starts[number] <= ends[number] for number in starts)


def test_the_file_of_the_same_run_is_the_same(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "record.transfers=true")
    for name in ("a", "b"):
        write_timeline(run, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert json.loads(gzip.decompress((tmp_path / "a").read_bytes()))["traceEvents"]
