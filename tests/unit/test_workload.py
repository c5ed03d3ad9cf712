"""Drawn workloads: lengths, arrivals, what may be asked, what is told."""

import numpy as np
import pytest

from smartgen.errors import SmartGenError
from smartgen.sim import SimBackend
from smartgen.workload import Closed, Lengths, MooncakeTrace, Open, Request, write_trace
from smartgen.workload.echo import echo_line, facts_of, reusable_ratio

MANY = 20_000


def lengths(**changed):
    values = {"mean_tokens": 7500, "cv": 0.4, "min_tokens": 1, "max_tokens": 10**9}
    return Lengths(**values | changed)


def traffic(**changed):
    values = {
        "name": "traffic",
        "requests": 50,
        "rate_per_s": 2.0,
        "prompt_tokens": lengths(),
        "output_tokens": 64,
        "cached_ratio": 0.75,
        "seed": 0,
    }
    return Open(**values | changed)


# -- lengths


@pytest.mark.parametrize("cv", [0.1, 0.4, 1.0])
def test_lengths_have_the_mean_and_spread_that_were_asked_for(cv):
    drawn = np.array(lengths(cv=cv).draw(np.random.default_rng(1), MANY))
    assert drawn.mean() == pytest.approx(7500, rel=5 * cv / MANY**0.5)  # five standard errors
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.05)


def test_lengths_stay_within_their_bounds():
    drawn = lengths(cv=1.0, min_tokens=3000, max_tokens=9000).draw(np.random.default_rng(1), MANY)
    assert (min(drawn), max(drawn)) == (3000, 9000)


def test_without_spread_all_lengths_are_the_mean():
    assert set(lengths(cv=0).draw(np.random.default_rng(1), 100)) == {7500}


@pytest.mark.parametrize("task", ["multifieldqa", "govreport", "samsum", "lcc"])
def test_bounds_leave_the_mean_of_every_task_within_one_percent(build, task):
    workload = build(f"workload={task}_open").workload
    assert isinstance(workload, Open) and isinstance(workload.prompt_tokens, Lengths)
    drawn = workload.prompt_tokens.draw(np.random.default_rng(1), 10 * MANY)
    assert np.mean(drawn) == pytest.approx(workload.prompt_tokens.mean_tokens, rel=0.01)
    closed = build(f"workload={task}").workload
    assert closed.prompt_tokens == workload.prompt_tokens.mean_tokens


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mean_tokens": 0}, r"lengths.mean_tokens=0 must be a number in \[1, "),
        ({"min_tokens": 8000}, r"lengths.mean_tokens=7500 must be a number in \[8000, "),
        ({"max_tokens": 0}, "lengths.max_tokens=0 must be an integer of 1 or more"),
        ({"min_tokens": 1.5}, "lengths.min_tokens=1.5 must be an integer of 1 or more"),
        ({"cv": -1}, r"lengths.cv=-1 must be a number in \[0, 10\]"),
        ({"cv": float("nan")}, "lengths.cv=nan must be a number"),
    ],
)
def test_lengths_that_cannot_be_are_refused(changed, words):
    with pytest.raises(SmartGenError, match=words):
        lengths(**changed)


# -- closed batches


def batch(**changed):
    values = {"name": "batch", "requests": 6, "prompt_tokens": 7500, "output_tokens": 64}
    return Closed(**values | {"cached_ratio": 0.75} | changed)


def test_a_batch_without_spread_has_the_lengths_that_were_asked_for_whatever_the_seed():
    assert batch(seed=3).lengths == [7500] * 6
    assert batch(requests=2, prompt_tokens=[600, 20], seed=3).lengths == [600, 20]


def test_drawn_lengths_of_a_batch_have_the_mean_and_spread_that_were_asked_for():
    drawn = np.array(batch(requests=MANY, length_cv=0.4).lengths)
    assert drawn.mean() == pytest.approx(7500, rel=0.01)  # clipping included
    assert drawn.std() / drawn.mean() == pytest.approx(0.4, rel=0.05)
    assert drawn.min() >= 1500 and drawn.max() <= 22500


def test_a_drawn_length_depends_on_the_seed_and_the_requests_number_only():
    ours, few = batch(length_cv=0.5, seed=1), batch(requests=3, length_cv=0.5, seed=1)
    assert few.lengths == ours.lengths[:3]
    assert ours.lengths != batch(length_cv=0.5, seed=2).lengths
    assert ours.asked == batch(length_cv=0.5, seed=1).asked
    doubled = batch(requests=2, prompt_tokens=[7500, 15000], length_cv=0.5, seed=1).lengths
    assert doubled == [ours.lengths[0], pytest.approx(2 * ours.lengths[1], abs=1)]


def test_a_batch_of_single_tokens_can_be_drawn():
    assert min(batch(prompt_tokens=1, requests=50, length_cv=2.0).lengths) == 1


def test_the_seed_of_the_experiment_draws_a_batchs_lengths(build):
    spread = ("model=tiny", "blocks_per_layer=32", "workload=tiny", "workload.length_cv=0.5")
    ours, theirs = (build(*spread, f"seed={seed}").requests for seed in (0, 1))
    assert ours != theirs
    assert build(*spread, "seed=1", "workload.seed=0").requests == ours


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"length_cv": -0.1}, r"workload.length_cv=-0.1 must be a number in \[0, 10\]"),
        ({"seed": 0.5}, "workload.seed=0.5 must be an integer of 0 or more"),
        ({"prompt_tokens": 0}, "workload.prompt_tokens=0 must be an integer of 1 or more"),
        ({"prompt_tokens": [5, 5]}, "workload.prompt_tokens lists 2 lengths; it must be"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(changed, words):
    with pytest.raises(SmartGenError, match=words):
        batch(**{"length_cv": 0.5} | changed)


# -- arrivals


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gaps_have_the_mean_and_spread_that_were_asked_for(cv):
    asked = traffic(requests=MANY, arrival_cv=cv, prompt_tokens=9).asked
    gaps = np.diff([request.arrival_s for request in asked])
    assert asked[0].arrival_s == 0
    assert gaps.mean() == pytest.approx(0.5, rel=5 * cv / MANY**0.5)  # five standard errors
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.08)
    assert gaps.min() >= 0


def test_without_spread_arrivals_are_evenly_spaced():
    asked = traffic(requests=5, arrival_cv=0).asked
    assert [request.arrival_s for request in asked] == [0, 0.5, 1, 1.5, 2]


def test_a_request_does_not_depend_on_how_many_there_are():
    changed = {"output_tokens": lengths(mean_tokens=90), "arrival_cv": 2.0}
    few, many = (traffic(requests=requests, **changed).asked for requests in (7, 300))
    assert few == many[:7]


def test_other_lengths_leave_arrivals_as_they_are_and_a_rate_scales_them():
    base = traffic().asked
    for other in (traffic(prompt_tokens=9).asked, traffic(output_tokens=lengths()).asked):
        assert [r.arrival_s for r in other] == [r.arrival_s for r in base]
    fast = traffic(rate_per_s=4.0).asked
    assert [r.prompt_tokens for r in fast] == [r.prompt_tokens for r in base]
    assert [2 * r.arrival_s for r in fast] == pytest.approx([r.arrival_s for r in base], abs=3e-9)


def test_another_seed_draws_everything_anew():
    ours, theirs = traffic().asked, traffic(seed=1).asked
    assert [r.prompt_tokens for r in ours] != [r.prompt_tokens for r in theirs]
    assert [r.arrival_s for r in ours][1:] != [r.arrival_s for r in theirs][1:]


def test_the_seed_of_the_experiment_is_the_workloads_unless_it_has_its_own(build):
    ours, theirs = (build("workload=poisson", f"seed={seed}").requests for seed in (0, 1))
    assert ours != theirs
    assert build("workload=poisson", "seed=1", "workload.seed=0").requests == ours


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rate_per_s": 0}, "workload.rate_per_s=0 must be a number in"),
        ({"rate_per_s": float("inf")}, "workload.rate_per_s=inf must be a number in"),
        ({"arrival_cv": -1}, r"workload.arrival_cv=-1 must be a number in \[0, 100\]"),
        ({"requests": 0}, "workload.requests=0 must be an integer of 1 or more"),
        ({"prompt_tokens": 0}, "workload.prompt_tokens=0 must be an integer of 1 or more"),
        ({"output_tokens": 0.5}, "workload.output_tokens=0.5 must be a number of tokens or"),
        ({"output_tokens": True}, "workload.output_tokens=True must be a number of tokens or"),
        ({"cached_ratio": 2}, r"workload.cached_ratio=2 must be a number in \[0, 1\]"),
        ({"over_long": "cut"}, "workload.over_long='cut' must be one of refuse, leave_out"),
        ({"grows": 1}, "workload.grows=1 must be true or false"),
        ({"seed": -1}, "workload.seed=-1 must be an integer of 0 or more"),
    ],
)
def test_traffic_that_cannot_be_is_refused(changed, words):
    with pytest.raises(SmartGenError, match=words):
        traffic(**changed)


def test_a_client_cannot_leave_before_it_came():
    with pytest.raises(SmartGenError, match=r"request.abort_s=0.1 must be at least"):
        _ = traffic(abort_s=[[9, 0.1]]).asked
    assert traffic(abort_s=[[0, 0.1]]).asked[0].abort_s == 0.1


# -- what is told


def test_facts_are_those_of_the_requests():
    asked = [Request(0, 0.0, 100, 0, 5), Request(1, 1.0, 200, 0, 6), Request(2, 4.0, 600, 0, 10)]
    assert facts_of(asked) == {
        "served": 3,
        "first_arrival_s": 0.0,
        "last_arrival_s": 4.0,
        "arrivals_per_s": 0.5,
        "prompt_tokens_mean": 300,
        "prompt_tokens_max": 600,
        "output_tokens_mean": 7,
        "output_tokens_max": 10,
    }
    assert facts_of(asked[:1])["arrivals_per_s"] is None


def test_a_closed_batch_has_no_rate(tiny):
    echo = tiny().echo
    assert echo["closed"] and echo["served"] == 4 and echo["arrivals_per_s"] is None


def test_the_line_tells_what_was_left_out(tiny):
    experiment = tiny(
        "workload=poisson",
        "workload.arrival_cv=0",
        "workload.requests=4",
        "workload.rate_per_s=2",
        "workload.prompt_tokens=1200",
    )
    line = echo_line({**experiment.echo, "left_out_over_long": 1200, "rows_out_of_order": 3})
    assert line == (
        "4 requests in 1.5 s (2 a second), prompts 1,200 (max 1,200), outputs 64 (max 64), "
        "3 rows out of order, 1,200 left out as over-long"
    )


def test_a_prefix_is_reusable_up_to_the_first_block_that_is_new():
    def asked(*prefix, prompt_tokens):
        return Request(0, 0.0, prompt_tokens, 0, 1, prefix=prefix)

    first, second = asked(1, 2, 3, prompt_tokens=1500), asked(1, 9, 3, prompt_tokens=1300)
    third = asked(1, 9, 3, prompt_tokens=1400)
    assert reusable_ratio([first, second]) == 512 / 2800
    assert reusable_ratio([first, second, third]) == (512 + 1400) / 4200


# -- in an experiment


def test_requests_that_no_pool_can_hold_are_left_out_if_asked_and_counted(tiny):
    overrides = ("workload=multifieldqa_open", "cluster.decode_pool_tokens=7000")
    with pytest.raises(SmartGenError, match=r"what request \d+ needs"):
        tiny(*overrides)
    experiment = tiny(*overrides, "workload.over_long=leave_out")
    served = experiment.requests
    assert 0 < len(served) < 60
    assert all(r.prompt_tokens + r.output_tokens <= 7000 for r in served)
    assert experiment.echo["left_out_over_long"] == experiment.left_out == 60 - len(served)
    assert experiment.echo["served"] == len(served)


def test_the_recursion_refuses_open_workloads_by_name(closed):
    with pytest.raises(SmartGenError, match=r"workload.name='poisson' is open"):
        closed("workload=poisson").closed()


@pytest.mark.parametrize("rate_per_s", [0.5, 1000])
def test_open_traffic_is_served(tiny, rate_per_s):
    experiment = tiny(
        "workload=bursts",
        "workload.requests=5",
        "workload.prompt_tokens=150",
        "workload.output_tokens=6",
        f"workload.rate_per_s={rate_per_s}",
    )
    outcome = SimBackend().run(experiment)
    rows = [row for recorder in outcome.recorders for row in recorder.requests.values()]
    assert {row.status for row in rows if row.status} == {"finished"}
    arrivals = {request.request_id: request.arrival_s for request in experiment.requests}
    firsts = [row for row in rows if row.first_token_s is not None]
    assert all(row.first_token_s > arrivals[row.request_id] for row in firsts)


# -- written and read back


def test_traffic_that_is_written_and_read_back_is_the_same(tmp_path):
    asked = traffic(arrival_cv=2.0, cached_ratio=0.0, output_tokens=lengths(mean_tokens=90)).asked
    write_trace(tmp_path / "written.jsonl", asked)
    read = MooncakeTrace(name="again", path=str(tmp_path / "written.jsonl")).asked
    for ours, theirs in zip(asked, read, strict=True):
        assert ours.arrival_s == theirs.arrival_s
        assert ours.prompt_tokens == theirs.prompt_tokens
        assert ours.output_tokens == theirs.output_tokens
    assert reusable_ratio(read) == 0
    write_trace(tmp_path / "again.jsonl", read)
    assert MooncakeTrace(name="b", path=str(tmp_path / "again.jsonl")).asked == read


def test_a_closed_batch_can_be_written_too(tmp_path):
    batch = Closed(
        name="batch", requests=2, prompt_tokens=[600, 20], output_tokens=3, cached_ratio=0
    )
    write_trace(tmp_path / "batch.jsonl", batch.asked)
    assert (tmp_path / "batch.jsonl").read_text(encoding="utf-8").splitlines() == [
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}',
        '{"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [2]}',
    ]


def test_what_the_format_cannot_say_is_not_written(tmp_path):
    odd = Request(7, 0.0, 600, 0, 3, prefix=(1, 2, 3), prefix_tokens=256)
    with pytest.raises(SmartGenError, match="request 7 names 3 blocks of 256 tokens; it must name"):
        write_trace(tmp_path / "odd.jsonl", [odd])
    with pytest.raises(SmartGenError, match="cannot be written: Is a directory"):
        write_trace(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
