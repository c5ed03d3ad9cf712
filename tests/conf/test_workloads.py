"""Workloads on the command line: what is refused, what is told, and that an edited trace counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

Command = Callable[..., Any]
Tree = Callable[[], list[str]]

TINY = ("model=tiny", "blocks_per_layer=32", "figures=[]")
ROWS = (
    '{"timestamp": 4000, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}\n'
    '{"timestamp": 5000, "input_length": 200, "output_length": 4, "hash_ids": [2]}\n'
)
TABLE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-01-01 09:00:00.0000000,300,4\n2024-01-01 09:00:02.5000000,100,5\n"
)

VALUES = {
    "workload=mooncake": "workload.path is missing; it must be given",
    "workload=mooncake workload.path=nope": "workload.path='nope' must be a trace that can be read",
    "workload=mooncake workload.path=.": "workload.path='.' must be a file, not a folder or pipe",
    "workload=mooncake workload.path=null": "workload.path=None must be the path of a trace",
    "workload=mooncake +workload.cached_ratio=0.5": "workload.cached_ratio=0.5 is no key",
    "workload=azure workload.limit=3": "workload.limit=3 is no key; workload has name, path,",
    "workload=poisson workload.rate_per_s=-1": "workload.rate_per_s=-1 must be a number in",
    "workload=poisson workload.over_long=cut": "workload.over_long='cut' must be one of refuse",
    "workload=lcc_open workload.prompt_tokens.cv=-1": "lengths.cv=-1 must be a number in [0, 10]",
    "workload=lcc_open workload.prompt_tokens.mean=9": "workload.prompt_tokens has mean_tokens,",
    "workload=lcc_open workload.prompt_tokens=x": "workload.prompt_tokens='x' must be a number of",
    "workload._target_=smartgen.workload.Request": "workload.name='multifieldqa' is no key",
    "workload=lcc_open workload._target_=builtins.dict": "workload makes a dict; it must make a",
    "workload=poisson cluster.decode_pool_tokens=9": "cluster.decode_pool_tokens=9 must be at",
}

TRACES = {
    "mooncake": {
        "an empty file": ("", "t has no row; it must have one for each request"),
        "a broken line": (ROWS + "{", "t line 3: '{' must be a JSON object"),
        "a wrong count": (ROWS.replace("[2]", "[2, 3]"), "t line 2: hash_ids has 2 items"),
        "no output": (ROWS.replace('h": 4', 'h": 0'), "t line 2: a request must have an output"),
        "the other format": (TABLE, "t line 1: 'TIMESTAMP,ContextTokens,Gen"),
        "cut short": (ROWS[:-20], "t line 2: "),
        "no hashes": (ROWS.replace(', "hash_ids": [2]', ""), "t line 2: hash_ids is missing"),
    },
    "azure": {
        "an empty file": ("", "t has no row; it must have one for each request"),
        "no output": (TABLE.replace(",5", ",0"), "t line 3: a request must have an output"),
        "cut short": (TABLE[:-3], "t line 3: '2024-01-01 09:00:02.5000000,100' has 2 fields"),
        "only a header": (TABLE[:40], "t has no row; it must have one for each request"),
        "a broken line": (TABLE + "2024", "t line 4: '2024' has 1 fields; it must have 3"),
        "not a number": (TABLE.replace(",5", ",NaN"), "t line 3: GeneratedTokens='NaN' must be an"),
        "the other format": (ROWS, "t line 1: the header"),
    },
}


def assert_refused(told: Any, words: str) -> None:
    assert told.err.startswith("smartgen: ")
    assert told.err.count("\n") == 1, told.err
    assert words in told.err
    assert (told.code, told.out) == (1, "")


@pytest.mark.parametrize(("line", "words"), VALUES.items(), ids=VALUES)
def test_a_wrong_workload_is_refused_in_one_line(
    command: Command, tree: Tree, line: str, words: str
) -> None:
    assert_refused(command(*line.split(" ")), words)
    assert tree() == []


@pytest.mark.parametrize(
    ("workload", "case"), [(name, case) for name, cases in TRACES.items() for case in cases]
)
def test_a_bad_trace_is_refused_in_one_line(
    command: Command, tree: Tree, tmp_path: Path, workload: str, case: str
) -> None:
    text, words = TRACES[workload][case]
    (tmp_path / "t").write_text(text, encoding="utf-8")
    assert_refused(command(f"workload={workload}", "workload.path=t"), words)
    assert tree() == ["t"]


def test_a_request_too_long_for_a_pool_is_named_by_its_line(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(ROWS, encoding="utf-8")
    long = ("workload=mooncake", "workload.path=t", "cluster.decode_pool_tokens=400", *TINY)
    assert_refused(command(*long), "must be at least 603, what request 0 (t line 1) needs")
    told = command(*long, "workload.over_long=leave_out")
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines()[0] == (
        "workload: 1 request, prompts 200 (max 200), outputs 4 (max 4), 1 left out as over-long"
    )


LONG = 121_924
"""The longest prompt of a public trace of conversations, in tokens."""

LONG_TRACES = {
    "mooncake": ROWS
    + f'{{"timestamp": 6000, "input_length": {LONG}, "output_length": 3, '
    + f'"hash_ids": {list(range(239))}}}\n',
    "azure": TABLE + f"2024-01-01 09:00:03.0000000,{LONG},3\n",
}


@pytest.mark.parametrize("workload", LONG_TRACES)
def test_a_prompt_beyond_the_models_context_is_refused_and_served_with_more(
    command: Command, tree: Tree, tmp_path: Path, workload: str
) -> None:
    (tmp_path / "t").write_text(LONG_TRACES[workload], encoding="utf-8")
    asked = (f"workload={workload}", "workload.path=t", "selection=exponent", "figures=[]")
    told = command(*asked)
    assert_refused(told, f"model.max_position_embeddings=40960 must be at least {LONG + 3}, what ")
    line = 3 if workload == "mooncake" else 4
    assert f"request 2 (t line {line}) needs" in told.err
    assert tree() == ["t"]
    told = command(*asked, "model.max_position_embeddings=131072", "blocks_per_layer=100")
    assert (told.code, told.err) == (0, "")
    assert f"(max {LONG:,})" in told.out.splitlines()[0]
    assert requests_of(tmp_path) == (["finished"] * 3, LONG)


def requests_of(folder: Path) -> tuple[list[str], int]:
    """The outcomes of the one run there is, and its longest prompt."""
    (path,) = folder.rglob("requests.parquet")
    table = pq.read_table(path)
    return table["status"].to_pylist(), max(table["prompt_tokens"].to_pylist())


AWKWARD = {
    "out of order": ("".join(reversed(ROWS.splitlines(keepends=True))), (), 2),
    "first at 0": (ROWS.replace("4000", "0"), (), 2),
    "all at 0": (ROWS.replace("4000", "0").replace("5000", "0"), (), 2),
    "one row": (ROWS.splitlines()[0], (), 1),
    "one token": (ROWS.replace("600", "1").replace("[0, 1]", "[0]"), (), 2),
    "one token of output": (ROWS.replace('h": 3', 'h": 1').replace('h": 4', 'h": 1'), (), 2),
    "no output, left out": (ROWS.replace('h": 3', 'h": 0'), ("workload.no_output=leave_out",), 1),
    "the same prompt twice": (ROWS.splitlines(keepends=True)[0] * 2, (), 2),
    "a pause of a day": (ROWS.replace("5000", "86400000"), (), 2),
}


@pytest.mark.parametrize("fold", ["true", "false"])
@pytest.mark.parametrize("case", AWKWARD)
def test_an_awkward_trace_is_served(command: Command, tmp_path: Path, case: str, fold: str) -> None:
    text, overrides, served = AWKWARD[case]
    (tmp_path / "t").write_text(text, encoding="utf-8")
    told = command(
        "workload=mooncake", "workload.path=t", f"backend.fold={fold}", *overrides, *TINY
    )
    assert (told.code, told.err) == (0, "")
    statuses, _ = requests_of(tmp_path)
    assert statuses == ["finished"] * served
    words = told.out.splitlines()[0]
    assert words.startswith(f"workload: {served} request")
    assert ("1 rows out of order" in words) == (case == "out of order")
    assert ("1 left out without output" in words) == (case == "no output, left out")


def test_what_a_workload_came_to_is_told_and_kept(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    told = command("workload=azure", "workload.path=t.csv", "workload.time_scale=2", *TINY)
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines()[0] == (
        "workload: 2 requests in 5.0 s (0.2 a second), prompts 200 (max 300), outputs 4 (max 5)"
    )
    (run,) = (tmp_path / "results" / "runs").iterdir()
    workload = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["workload"]
    assert (workload["rows_read"], workload["served"], workload["left_out_over_long"]) == (2, 2, 0)
    assert (workload["first_arrival_s"], workload["last_arrival_s"]) == (0.0, 5.0)
    assert workload["last_timestamp"] == "2024-01-01 09:00:02.5000000"
    files = json.loads((run / "provenance.json").read_text(encoding="utf-8"))["files"]
    assert list(files) == ["t.csv"]


def test_a_closed_batch_is_not_told(command: Command, tiny_run: tuple[str, ...]) -> None:
    assert "workload:" not in command(*tiny_run).out


def written(folder: Path) -> list[int]:
    """When each point's table was written."""
    return [path.stat().st_mtime_ns for path in sorted(folder.rglob("requests.parquet"))]


def test_points_are_done_again_once_their_trace_was_edited(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(ROWS, encoding="utf-8")
    sweep = ("-m", "workload=mooncake", "workload.path=t", "workload.time_scale=1,2", *TINY)
    assert command(*sweep).code == 0  # in processes of their own, which must find the trace
    first = written(tmp_path)
    assert command(*sweep).code == 0
    assert written(tmp_path) == first
    (tmp_path / "t").write_text(ROWS.replace("5000", "5500"), encoding="utf-8")
    told = command(*sweep)
    assert told.code == 0
    assert not set(written(tmp_path)) & set(first)
    assert [line for line in told.out.splitlines() if line.startswith("workload:")] == [
        "workload: 2 requests in 1.5 s (0.667 a second), prompts 400 (max 600), outputs 4 (max 4)",
        "workload: 2 requests in 3.0 s (0.333 a second), prompts 400 (max 600), outputs 4 (max 4)",
    ]
