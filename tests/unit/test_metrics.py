"""Tables, metrics and run folders: numbers that add up, nulls, and nothing half written."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from pyarrow import parquet

from smartgen.compose import experiment_of
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome
from smartgen.metrics.attribution import Shares
from smartgen.metrics.compare import comparison_table, summary_csv_rows
from smartgen.metrics.labels import differences, labels
from smartgen.metrics.records import IterationRow, Recorder, RequestRow, TokenSpan
from smartgen.metrics.store import read_run, write_run
from smartgen.metrics.summary import summarize
from smartgen.metrics.tables import SCHEMAS, Tables, make_tables
from smartgen.metrics.tokens import cumulative_token_latency, mean_gaps
from smartgen.sim import SimBackend

TINY = ("model=tiny", "workload=tiny", "blocks_per_layer=32", "network.gbps=0.05")


def configured(*overrides: str) -> DictConfig:
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        return compose("config", [*TINY, *overrides])


def simulated(*overrides: str) -> tuple[Experiment, Outcome]:
    experiment = experiment_of(configured(*overrides))
    return experiment, SimBackend().run(experiment)


def tables_of(*overrides: str) -> Tables:
    return make_tables(*simulated(*overrides))


def metrics_of(*overrides: str) -> dict[str, Any]:
    experiment, outcome = simulated(*overrides)
    return summarize(make_tables(experiment, outcome), experiment, "sim", outcome.makespan_s)


@pytest.fixture(scope="module", params=["full", "partial", "hack", "smartgen", "proactive_only"])
def tables(request: pytest.FixtureRequest) -> Tables:
    return tables_of(f"policy={request.param}")


def written(folder: Path, *overrides: str) -> dict[str, Any]:
    config = configured(*overrides)
    experiment = experiment_of(config)
    outcome = SimBackend().run(experiment)
    return write_run(folder, config, {"seed": 0}, "sim", experiment, outcome)


# -- tables


def test_ttft_and_the_gaps_of_a_request_add_up_to_its_end_to_end_time(tables: Tables) -> None:
    gaps: dict[int, list[float]] = {}
    for row in tables.tokens.to_pylist():
        gaps.setdefault(row["request_id"], []).append(row["gap_s"] or 0.0)
    for row in tables.requests.to_pylist():
        total_s = row["ttft_s"] + sum(gaps[row["request_id"]])
        assert total_s == pytest.approx(row["finish_s"] - row["arrival_s"], abs=1e-9)


def test_tbt_is_the_mean_of_the_gaps_after_the_first(tables: Tables) -> None:
    for request in tables.requests.to_pylist():
        rows = [
            row
            for row in tables.tokens.to_pylist()
            if row["request_id"] == request["request_id"] and row["token"] > 2
        ]
        mean_s = sum(row["gap_s"] for row in rows) / len(rows)
        assert request["tbt_s"] == pytest.approx(mean_s, abs=1e-9)


def test_the_shares_of_an_iteration_add_up_to_its_time(tables: Tables) -> None:
    for row in tables.iterations.to_pylist():
        shares_s = sum(row[cause] for cause in Shares._fields)
        assert shares_s == pytest.approx(row["end_s"] - row["start_s"], abs=1e-9)


def test_the_two_conventions_of_ttst_differ_by_ttft(tables: Tables) -> None:
    for row in tables.requests.to_pylist():
        assert row["ttst_arrival_s"] - row["ttst_s"] == pytest.approx(row["ttft_s"], abs=1e-12)


def test_tables_have_the_columns_and_types_of_schema_1() -> None:
    tables = tables_of(
        "policy=smartgen", "record.transfers=true", "record.decisions=true", "record.acts=true"
    )
    for name, table in tables.present().items():
        assert table.column_names == list(SCHEMAS[name])
        for field, kind in zip(table.schema, SCHEMAS[name].values(), strict=True):
            written_as = {pa.float64(): "float64", pa.list_(pa.float64()): "list<float64>"}
            assert written_as.get(field.type, str(field.type)) == kind
    assert set(tables.present()) == set(SCHEMAS)


def test_long_tables_are_made_only_when_they_are_recorded() -> None:
    tables = tables_of("policy=smartgen")
    assert tables.transfers is None and tables.decisions is None


def test_recorded_transfers_add_up_to_the_bytes_of_their_requests() -> None:
    tables = tables_of("policy=smartgen", "record.transfers=true")
    assert tables.transfers is not None
    moved = dict.fromkeys(tables.requests.column("request_id").to_pylist(), 0)
    for row in tables.transfers.to_pylist():
        moved[row["request_id"]] += row["bytes"]
    for row in tables.requests.to_pylist():
        counted = sum(
            row[f"{purpose}_bytes"]
            for purpose in ("proactive", "on_demand", "speculative", "metadata")
        )
        assert moved[row["request_id"]] == pytest.approx(counted, rel=1e-3)


def test_missing_values_are_null_and_never_minus_one_or_nan() -> None:
    tables = tables_of(
        "policy=smartgen",
        "workload.output_tokens=2",
        "workload.abort_s=[[1,0.0],[2,0.09]]",
        "record.transfers=true",
    )
    for table in tables.present().values():
        for column in table.column_names:
            for value in table.column(column).to_pylist():
                assert (
                    value is None or isinstance(value, str) or (math.isfinite(value) and value >= 0)
                )
    rows = tables.requests.to_pylist()
    assert rows[0]["tbt_s"] is None and rows[0]["ttst_s"] is not None
    assert rows[1]["ttft_s"] is None and rows[1]["status"] == "aborted"
    assert rows[0]["on_demand_bytes"] > 0 and rows[0]["speculative_bytes"] == 0
    assert all(row["score"] is None for row in rows)
    firsts = [row for row in tables.tokens.to_pylist() if row["token"] == 1]
    assert firsts and all(row["gap_s"] is None and row["iteration"] is None for row in firsts)


def test_a_request_that_never_got_anywhere_has_a_row_and_no_status() -> None:
    experiment, _ = simulated()
    recorder = Recorder()
    recorder.request(0).status = "failed"
    rows = make_tables(experiment, Outcome([recorder], 1.0)).requests.to_pylist()
    assert [row["status"] for row in rows] == ["failed", None, None, None]
    assert [row["prompt_tokens"] for row in rows] == [180, 250, 301, 97]
    assert [row["output_tokens"] for row in rows] == [0, 0, 0, 0]
    assert [row["arrival_s"] for row in rows] == [0.0, 0.0, 0.0, 0.0]
    assert [row["on_demand_bytes"] for row in rows] == [None, None, None, None]


def test_an_outcome_without_any_status_is_an_error() -> None:
    experiment, _ = simulated()
    recorder = Recorder()
    recorder.request(0)
    for recorders in ([], [recorder]):
        with pytest.raises(SmartGenError, match="no result"):
            make_tables(experiment, Outcome(recorders, 1.0))


@pytest.mark.parametrize("fault", ["unknown request", "missing token", "shares"])
def test_recorded_contradictions_are_refused(fault: str) -> None:
    experiment, _ = simulated()
    recorder = Recorder(requests={0: RequestRow(0, status="finished", first_token_s=0.5)})
    if fault == "unknown request":
        recorder.request(9)
    elif fault == "missing token":
        row = IterationRow("decode0", 1, 0.0, 0.5, 1, 9, Shares(0.5), 1, 0, 0, 0, 0, 0, 0)
        recorder.iterations.append(row)
        recorder.spans += [TokenSpan(0, 1, 1), TokenSpan(0, 1, 1)]
    else:
        shares = Shares(select_s=0.4)
        recorder.iterations.append(
            IterationRow("decode0", 1, 0.0, 0.5, 1, 9, shares, 1, 0, 0, 0, 0, 0, 0)
        )
    with pytest.raises(RuntimeError):
        make_tables(experiment, Outcome([recorder], 1.0))


# -- metrics


def test_ctl_is_the_running_mean_of_the_gaps_averaged_over_requests() -> None:
    times = {0: [1.0, 3.0, 4.0], 1: [2.0, 3.0]}
    rows = [
        {"request_id": request, "token": number, "time_s": time_s, "gap_s": None}
        for request, series in times.items()
        for number, time_s in enumerate(series, start=1)
    ]
    # token 2: (3 - 1) / 1 and (3 - 2) / 1; token 3: (4 - 1) / 2
    assert cumulative_token_latency(pa.Table.from_pylist(rows)) == [1.5, 1.5]


def test_mean_gaps_leave_out_the_first_token() -> None:
    columns = {"token": [1, 2, 3, 1, 2], "gap_s": [None, 2.0, 1.0, None, 4.0]}
    assert mean_gaps(pa.table(columns)).tolist() == [3.0, 1.0]


def test_metrics_count_bytes_over_the_links_they_crossed() -> None:
    metrics = metrics_of("policy=smartgen")
    busy, moved = metrics["nic_busy_ratio"], sum(metrics["bytes"].values())
    assert busy["decode0"] == pytest.approx(moved / (0.05e9 / 8 * metrics["makespan_s"]))
    hosts = sum(share for link, share in busy.items() if link != "decode0")
    assert hosts == pytest.approx(moved / (32e9 / 8 * metrics["makespan_s"]))
    assert metrics["saturated"] is False and metrics["status"] == "finished"


def test_a_run_that_keeps_its_receiving_link_busy_is_saturated() -> None:
    busy = ("network.gbps=0.0005", "network.pair_us=0", "workload.output_tokens=2")
    metrics = metrics_of("policy=full", *busy)
    assert metrics["nic_busy_ratio"]["decode0"] > 0.95 and metrics["saturated"] is True


def test_aborted_requests_count_but_do_not_enter_latencies() -> None:
    metrics = metrics_of("policy=smartgen", "workload.abort_s=[[2,0.0]]")
    assert metrics["requests"] == {"finished": 3, "aborted": 1, "failed": 0}
    assert metrics["status"] == "partial"
    nobody = "workload.abort_s=[[0,0.0],[1,0.0],[2,0.0],[3,0.0]]"
    metrics = metrics_of("policy=smartgen", nobody)
    assert metrics["ttft_s"] == {"mean": None, "p50": None, "p90": None, "p99": None}
    assert metrics["ctl_s"] == [] and metrics["on_demand_ratio"] is None


def test_the_comparison_gives_ratios_to_the_first_row_and_says_so() -> None:
    full, smartgen = metrics_of("policy=full"), metrics_of("policy=smartgen")
    lines = comparison_table([("full", full), ("smartgen", smartgen)]).splitlines()
    assert len(lines) == 4 and lines[1].startswith("full ") and "(1.00x)" in lines[1]
    ratio = smartgen["ttst_s"]["mean"] / full["ttst_s"]["mean"]
    assert f"({ratio:.2f}x)" in lines[2] and lines[3].endswith("first row, full)")
    alone = comparison_table([("smartgen", smartgen | {"saturated": True})])
    assert len(alone.splitlines()) == 2 and "x)" not in alone and alone.endswith("saturated")


def test_the_comparison_writes_null_as_a_dash() -> None:
    nothing = metrics_of("policy=full", "workload.abort_s=[[0,0.0],[1,0.0],[2,0.0],[3,0.0]]")
    assert " - " in comparison_table([("full", nothing)])


def test_csv_rows_hold_overrides_then_metrics() -> None:
    metrics = metrics_of("policy=full")
    header, first, second = summary_csv_rows(
        [({"policy": "full"}, metrics), ({"seed": 1}, metrics | {"ctl_s": []})]
    )
    assert header[:3] == ["policy", "seed", "schema_version"]
    assert first[:2] == ["full", ""] and second[:2] == ["", "1"]
    assert first[header.index("ttst_s.p90")] == str(metrics["ttst_s"]["p90"])
    assert first[header.index("last_ctl_s")] == str(metrics["ctl_s"][-1])
    assert second[header.index("last_ctl_s")] == ""


# -- folders


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "network.gbps=1.5"
    overrides = ("policy=smartgen", "record.transfers=true", "workload.abort_s=[[2,0.09]]")
    metrics = written(folder, *overrides)
    run = read_run(folder)
    tables = tables_of(*overrides)
    assert run.metrics == metrics and run.label == "smartgen"
    assert run.config == OmegaConf.to_container(configured(*overrides), resolve=True)
    assert run.requests == tables.requests and run.tokens == tables.tokens
    assert run.iterations == tables.iterations and run.transfers == tables.transfers
    assert run.decisions is None
    assert json.loads((folder / "provenance.json").read_text()) == {"seed": 0}


def test_an_empty_folder_or_an_earlier_run_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    written(folder, "policy=full", "record.transfers=true")
    (folder / "ctl.png").touch()
    written(folder, "policy=hack")
    assert read_run(folder).label == "hack" and read_run(folder).transfers is None
    assert not (folder / "ctl.png").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with pytest.raises(SmartGenError, match="papers"):
        written(folder)
    assert (folder / "thesis.tex").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["papers"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SmartGenError, match="cannot be written to") as caught:
        written(tmp_path / "file" / "run")
    assert "\n" not in str(caught.value)


def test_a_crash_while_writing_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "earlier", "policy=full")
    write_table, calls = parquet.write_table, []

    def crash(*arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) % 2 == 0:
            raise RuntimeError("the power is gone")
        write_table(*arguments, **options)

    monkeypatch.setattr(parquet, "write_table", crash)
    for name in ("new", "earlier"):
        with pytest.raises(RuntimeError, match="power"):
            written(tmp_path / name, "policy=hack")
    assert len(calls) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["earlier"]
    assert read_run(tmp_path / "earlier").label == "full"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("metrics.json", None, "has no metrics.json"),
        ("metrics.json", "{", "not a run"),
        ("metrics.json", "[]", "schema_version=None"),
        ("metrics.json", '{"schema_version": 2}', "schema_version=2"),
        ("config.yaml", "a: [", "not a run"),
        ("config.yaml", "- a", "holds no keys"),
        ("tokens.parquet", None, "has no tokens.parquet"),
    ],
)
def test_a_folder_that_is_no_run_is_refused_by_name(
    tmp_path: Path, name: str, text: str | None, complaint: str
) -> None:
    written(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    if text is not None:
        (tmp_path / "run" / name).write_text(text)
    with pytest.raises(SmartGenError) as caught:
        read_run(tmp_path / "run")
    message = str(caught.value)
    assert str(tmp_path / "run") in message and complaint in message and "\n" not in message


def test_a_broken_table_is_refused_when_it_is_read(tmp_path: Path) -> None:
    written(tmp_path / "run")
    (tmp_path / "run" / "tokens.parquet").write_text("no parquet")
    run = read_run(tmp_path / "run")
    assert run.requests.num_rows == 4
    with pytest.raises(SmartGenError, match=r"tokens\.parquet cannot be read"):
        _ = run.tokens


def test_runs_are_labelled_by_scheme_and_by_what_else_they_differ_in(tmp_path: Path) -> None:
    points = {
        "a": ("policy=full", "network.gbps=0.05"),
        "b": ("policy=smartgen", "network.gbps=0.05", "record.transfers=true"),
        "c": ("policy=smartgen", "network.gbps=0.1"),
        "d": ("policy=smartgen", "network.gbps=0.1"),
    }
    for name, overrides in points.items():
        written(tmp_path / name, *overrides)
    runs = [read_run(tmp_path / name) for name in points]
    again = runs.pop()
    assert differences(runs) == {"network.gbps": [0.05, 0.05, 0.1]}
    assert labels(runs) == ["full, gbps=0.05", "smartgen, gbps=0.05", "smartgen, gbps=0.1"]
    assert labels(runs[:2]) == ["full", "smartgen"]
    written(tmp_path / "e", "policy.speculative_ratio=0.5", "network.gbps=0.05")
    assert labels([*runs[:2], read_run(tmp_path / "e")]) == [
        "full",  # its own ratio tells it from nothing
        "smartgen, speculative_ratio=0.1",
        "smartgen, speculative_ratio=0.5",
    ]
    assert labels([runs[2], again]) == ["smartgen (c)", "smartgen (d)"]
