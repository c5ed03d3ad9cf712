"""Traces: rows by hand, awkward files, and the public ones where they are at hand."""

from pathlib import Path

import pytest

from smartgen.errors import SmartGenError
from smartgen.workload import AzureTrace, MooncakeTrace, write_trace

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_MOONCAKE = ROOT.parent / "shared/data/mooncake/conversation_trace.jsonl"
PUBLIC_AZURE = ROOT.parent / "shared/data/azure_llm/AzureLLMInferenceTrace_conv.csv"

MOONCAKE = """\
{"timestamp": 5000, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}
{"timestamp": 5000, "input_length": 512, "output_length": 8, "hash_ids": [0]}
{"timestamp": 6500, "input_length": 513, "output_length": 9, "hash_ids": [0, 2]}
{"timestamp": 8000.5, "input_length": 1, "output_length": 1, "hash_ids": [3], "more": "passed over"}
"""

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""


@pytest.fixture
def mooncake(tmp_path):
    """A trace of the text, or of the bytes."""

    def make(text=MOONCAKE, **changed):
        path = tmp_path / "t.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return MooncakeTrace(**{"name": "t", "path": str(path)} | changed)

    return make


@pytest.fixture
def azure(tmp_path):
    """The same in the other format."""

    def make(text=AZURE, **changed):
        path = tmp_path / "t.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return AzureTrace(**{"name": "t", "path": str(path), "cached_ratio": 0.5} | changed)

    return make


def row(timestamp=0, input_length=600, output_length=5, hash_ids="[0, 1]"):
    """A line of Mooncake's, of values as they are written."""
    return (
        f'{{"timestamp": {timestamp}, "input_length": {input_length}, '
        f'"output_length": {output_length}, "hash_ids": {hash_ids}}}\n'
    )


def arrivals(trace):
    return [request.arrival_s for request in trace.asked]


# -- by hand


def test_mooncakes_rows_become_requests_with_prefixes(mooncake):
    asked = mooncake().asked
    assert [r.request_id for r in asked] == [0, 1, 2, 3]
    assert [r.arrival_s for r in asked] == [0.0, 0.0, 1.5, 3.0005]
    assert [r.prompt_tokens for r in asked] == [600, 512, 513, 1]
    assert [r.output_tokens for r in asked] == [7, 8, 9, 1]
    assert [r.prefix for r in asked] == [(0, 1), (0,), (0, 2), (3,)]
    assert {(r.prefix_tokens, r.cached_tokens, r.held_tokens) for r in asked} == {(512, 0, 0)}


def test_azures_rows_become_requests_at_every_digit(azure):
    asked = azure().asked
    assert [r.arrival_s for r in asked] == [0.0, 4.314579, 4.541877]
    assert [r.prompt_tokens for r in asked] == [374, 396, 879]
    assert [r.output_tokens for r in asked] == [44, 109, 55]
    assert [r.cached_tokens for r in asked] == [187, 198, 439]
    assert {r.prefix for r in asked} == {()}


def test_times_of_azure_may_name_a_zone_and_lack_a_fraction(azure):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 23:59:59.999999+00:00,1,1\n2024-05-11T00:00:01Z,1,1\n"
        "2024-05-11 02:00:02+02:00,1,1\n"
    )
    assert arrivals(azure(text)) == [0, 1.000001, 2.000001]


def test_columns_of_azure_may_come_in_any_order_and_be_quoted(azure):
    text = 'GeneratedTokens,"ContextTokens",Kind,TIMESTAMP\n5,"9",chat,2023-11-16 18:15:46\n'
    (request,) = azure(text).asked
    assert (request.prompt_tokens, request.output_tokens) == (9, 5)


def test_a_limit_is_rows_of_the_file_and_the_first_of_them_arrives_at_0(mooncake, azure):
    trace = mooncake(first_row=1, requests=2)
    assert [(r.request_id, r.output_tokens) for r in trace.asked] == [(0, 8), (1, 9)]
    assert arrivals(trace) == [0, 1.5]
    assert arrivals(azure(first_row=1)) == [0, 0.227298]


def test_what_follows_the_limit_is_not_read(mooncake):
    assert len(mooncake(MOONCAKE + "broken", requests=4).asked) == 4


def test_a_time_scale_stretches_arrivals(mooncake):
    assert arrivals(mooncake(time_scale=2)) == [0, 0, 3.0, 6.001]
    assert mooncake(time_scale=2).asked[2].prompt_tokens == 513


def test_rows_out_of_order_are_sorted_counted_and_keep_their_order_at_equal_times(mooncake):
    text = "".join(
        row(timestamp, output_length=i + 1) for i, timestamp in enumerate([9, 4, 7, 4, 9])
    )
    trace = mooncake(text)
    assert [r.output_tokens for r in trace.asked] == [2, 4, 3, 1, 5]
    assert arrivals(trace) == [0, 0, 0.003, 0.005, 0.005]
    assert trace.echo(trace.asked)["rows_out_of_order"] == 3
    assert trace.name_of(3) == f"request 3 ({trace.path} line 1)"


def test_the_echo_tells_the_files_own_clock(mooncake, azure):
    trace = mooncake(time_scale=2)
    echo = trace.echo(trace.asked)
    assert (echo["first_timestamp"], echo["last_timestamp"]) == ("5000", "8000.5")
    assert (echo["first_arrival_s"], echo["last_arrival_s"]) == (0, 6.001)
    assert (echo["rows_read"], echo["served"], echo["closed"]) == (4, 4, False)
    assert echo["reusable_ratio"] == (512 + 512) / 1626
    last = azure()
    assert last.echo(last.asked[:2])["last_timestamp"] == "2023-11-16 18:15:50.9951690"


def test_a_mark_of_byte_order_windows_line_ends_and_blank_lines_are_no_mistake(mooncake, azure):
    for make, text in ((mooncake, MOONCAKE), (azure, AZURE)):
        plain = make(text).asked
        assert make(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()).asked == plain
        assert make(text.replace("\n", "\n\n").rstrip()).asked == plain


def test_a_prompt_of_121924_tokens_is_read_and_left_to_the_experiment(mooncake):
    (request,) = mooncake(row(0, 121_924, 5, list(range(239)))).asked
    assert (request.prompt_tokens, len(request.prefix)) == (121_924, 239)


def test_a_trace_that_is_written_and_read_back_is_the_same(mooncake, tmp_path):
    asked = mooncake().asked
    write_trace(tmp_path / "again.jsonl", asked)
    assert MooncakeTrace(name="again", path=str(tmp_path / "again.jsonl")).asked == asked


def test_the_traces_that_ship_have_forty_rows_each():
    samples = ROOT / "examples"
    mooncake = MooncakeTrace(name="m", path=str(samples / "mooncake_sample.jsonl"))
    azure = AzureTrace(name="a", path=str(samples / "azure_sample.csv"), cached_ratio=0)
    assert (len(mooncake.asked), len(azure.asked)) == (40, 40)
    assert 0.2 < mooncake.echo(mooncake.asked)["reusable_ratio"] < 0.6


# -- awkward


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.jsonl has no row"),
        ("\n \n", "t.jsonl has no row"),
        (row() + "{broken\n", "line 2: '{broken' must be a JSON object"),
        (row() + row()[:40], "line 2: .* must be a JSON object"),
        ("[1, 2]\n", "line 1: .* must be a JSON object"),
        ("[" * 100_000, "line 1: .* must be a JSON object"),
        ("7\n", "line 1: '7' must be a JSON object"),
        (row() + b"\xff\xfe\x00\n".decode("latin-1"), "line 2: .* must be a JSON object"),
        (row().encode() + b"\xff\xfe\n", "line 2: must be UTF-8 text"),
        (bytes(range(256)), r"line 1: '.x00.* must be a JSON object"),
        ('\n{"timestamp": 1}\n', "line 2: input_length is missing; a row has timestamp, "),
        (row(-1), "line 1: timestamp=-1 must be milliseconds, from 0 to"),
        (row("NaN"), "line 1: timestamp=nan must be milliseconds"),
        (row("Infinity"), "line 1: timestamp=inf must be milliseconds"),
        (row(1e300), r"line 1: timestamp=1e\+300 must be milliseconds"),
        (row('"5"'), "line 1: timestamp='5' must be milliseconds"),
        (row("true"), "line 1: timestamp=True must be milliseconds"),
        (row() + row(0, 0, 5, "[]"), "line 2: input_length=0 must be an integer of 1 or more"),
        (row(0, 600.5), "line 1: input_length=600.5 must be an integer of 1 or more"),
        (row(0, "NaN"), "line 1: input_length=nan must be an integer of 1 or more"),
        (row(0, "null"), "line 1: input_length=None must be an integer of 1 or more"),
        (row(0, 600, -5), "line 1: output_length=-5 must be an integer of 0 or more"),
        (row() + row(output_length=0), "line 2: a request must have an output token"),
        (row(0, 600, 5, "[0]"), "line 1: hash_ids has 1 items; it must have 2, one for each 512"),
        (row(0, 600, 5, "[0, 1, 2]"), "line 1: hash_ids has 3 items; it must have 2"),
        (row(0, 512, 5, "[0, 1]"), "line 1: hash_ids has 2 items; it must have 1"),
        (row(0, 600, 5, "[0, -1]"), "line 1: hash_ids must be a list of integers of zero or more"),
        (row(0, 600, 5, '[0, "1"]'), "line 1: hash_ids must be a list of integers"),
        (row(0, 600, 5, "2"), "line 1: hash_ids must be a list of integers"),
        (row(0, "9" * 5000), "line 1: .* must be a JSON object"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_an_awkward_mooncake_trace_is_refused_with_its_line(mooncake, text, words):
    with pytest.raises(SmartGenError, match=words):
        _ = mooncake(text).asked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.csv has no row"),
        (AZURE.splitlines()[0], "t.csv has no row"),
        ("a,b,c\n1,2,3\n", "line 1: the header 'a,b,c' must name TIMESTAMP, ContextTokens, "),
        (AZURE.partition("\n")[2], "line 1: the header .* must name TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n", "line 1: the header .* must name TIMESTAMP"),
        (AZURE.replace("TIMESTAMP", "ContextTokens"), "line 1: the header .* once each"),
        (AZURE + "2023-11-16 18:15:52", "line 5: .* has 1 fields; it must have 3"),
        (AZURE + "2023-11-16 18:15:52,1,2,3", "line 5: .* has 4 fields; it must have 3"),
        (AZURE + "soon,1,2", "line 5: TIMESTAMP='soon' must be a time like"),
        (AZURE + "2023-13-16 18:15:52,1,2", "line 5: TIMESTAMP=.* must be a time like"),
        (AZURE + ",1,2", "line 5: TIMESTAMP='' must be a time like"),
        (AZURE + "2023-11-16 18:15:52,-1,2", "ContextTokens='-1' must be an integer of 1 or more"),
        (AZURE + "2023-11-16 18:15:52,0,2", "ContextTokens=0 must be an integer of 1 or more"),
        (AZURE + "2023-11-16 18:15:52,1.5,2", "ContextTokens='1.5' must be an integer"),
        (AZURE + "2023-11-16 18:15:52,NaN,2", "line 5: ContextTokens='NaN' must be an integer"),
        (AZURE + "2023-11-16 18:15:52,1,", "GeneratedTokens='' must be an integer of 0 or more"),
        (AZURE + "2023-11-16 18:15:52,1," + "9" * 30, "must be an integer of 0 or more"),
        (AZURE + "2023-11-16 18:15:52,1,0", "line 5: a request must have an output token"),
        (AZURE.encode() + b"\x80\n", "line 5: must be UTF-8 text"),
        (AZURE.encode("utf-16"), "line 1: must be UTF-8 text"),
        (AZURE + '"2023-11-16 18:15:52,1,2', "line 5: .* has 1 fields; it must have 3"),
        (AZURE + "x" * 200_000, "line 5: .* must be comma-separated: field larger"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_an_awkward_azure_trace_is_refused_with_its_line(azure, text, words):
    with pytest.raises(SmartGenError, match=words):
        _ = azure(text).asked


def test_rows_without_output_are_left_out_if_asked_and_counted(mooncake):
    trace = mooncake(row(0, output_length=0) + row(1) + row(2), no_output="leave_out")
    assert arrivals(trace) == [0, 0.001]
    echo = trace.echo(trace.asked)
    assert (echo["rows_read"], echo["served"], echo["left_out_no_output"]) == (3, 2, 1)
    with pytest.raises(SmartGenError, match=r"workload.no_output=leave_out leaves no request"):
        _ = mooncake(row(output_length=0), no_output="leave_out").asked


def test_rows_that_the_file_does_not_have_are_not_promised(mooncake):
    with pytest.raises(SmartGenError, match=r"workload.requests=5 must be at most 4, the rows of"):
        _ = mooncake(requests=5).asked
    with pytest.raises(SmartGenError, match=r"workload.requests=2 must be at most 1"):
        _ = mooncake(first_row=3, requests=2).asked
    with pytest.raises(SmartGenError, match=r"workload.first_row=4 must be below 4"):
        _ = mooncake(first_row=4).asked


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"path": ""}, "workload.path='' must be the path of a trace"),
        ({"path": 3}, "workload.path=3 must be the path of a trace"),
        ({"requests": 0}, "workload.requests=0 must be an integer of 1 or more"),
        ({"first_row": -1}, "workload.first_row=-1 must be an integer of 0 or more"),
        ({"time_scale": 0}, "workload.time_scale=0 must be a number in"),
        ({"time_scale": float("nan")}, "workload.time_scale=nan must be a number in"),
        ({"no_output": "one"}, "workload.no_output='one' must be one of refuse, leave_out"),
        ({"over_long": "cut"}, "workload.over_long='cut' must be one of refuse, leave_out"),
    ],
)
def test_values_that_cannot_be_are_refused(mooncake, changed, words):
    with pytest.raises(SmartGenError, match=words):
        mooncake(**changed)


def test_a_path_that_is_no_file_is_refused(tmp_path):
    for path, words in (
        (tmp_path / "nope", "must be a trace that can be read: No such file"),
        (tmp_path, "must be a file, not a folder or pipe"),
        (Path("/dev/zero"), "must be a file, not a folder or pipe"),
        (Path("nul\0"), "must be a trace that can be read"),
    ):
        with pytest.raises(SmartGenError, match=words):
            _ = MooncakeTrace(name="t", path=str(path)).asked


# -- the public ones


@pytest.mark.skipif(not PUBLIC_MOONCAKE.exists(), reason="Mooncake's public trace is not at hand")
def test_mooncakes_public_trace_is_what_it_is_known_to_be():
    trace = MooncakeTrace(name="mooncake", path=str(PUBLIC_MOONCAKE))
    echo = trace.echo(trace.asked)
    first = trace.asked[0]
    assert (first.prompt_tokens, first.output_tokens, first.prefix) == (6758, 500, tuple(range(14)))
    assert (echo["served"], echo["rows_out_of_order"], echo["last_timestamp"]) == (
        12_031,
        0,
        "3536999",
    )
    assert echo["prompt_tokens_mean"] == pytest.approx(12_035, abs=1)
    assert echo["reusable_ratio"] == pytest.approx(0.374, abs=0.001)


@pytest.mark.skipif(not PUBLIC_AZURE.exists(), reason="Azure's public trace is not at hand")
def test_azures_public_trace_is_what_it_is_known_to_be():
    whole = AzureTrace(name="azure", path=str(PUBLIC_AZURE), cached_ratio=0)
    assert len(whole.asked) == 19_366
    trace = AzureTrace(name="azure", path=str(PUBLIC_AZURE), cached_ratio=0, requests=1000)
    echo = trace.echo(trace.asked)
    assert trace.asked == whole.asked[:1000]
    assert trace.asked[0].prompt_tokens == 374
    assert echo["prompt_tokens_mean"] == pytest.approx(1014.2, abs=0.1)
    assert echo["output_tokens_mean"] == pytest.approx(247.3, abs=0.1)
    assert echo["arrivals_per_s"] == pytest.approx(4.63, abs=0.01)
