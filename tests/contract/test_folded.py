"""Running ahead of the clock changes nothing: every row equals that of the layered simulator."""

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smartgen.metrics.records import merge
from smartgen.sim import SimBackend
from smartgen.sim.backend import why_not_folded
from smartgen.workload import Closed, Request

POLICIES = (
    "full",
    "hack",
    "on_demand_only",
    "order_optimal",
    "order_random",
    "order_streaming_llm",
    "partial",
    "partial_parallel",
    "partial_reuse",
    "proactive_only",
    "smartgen",
    "smartgen_budgeted",
)
TIMES = 1e-9
"""Relative: the two add the same durations in another order. What the sums lose is a few last bits
(1e-16) for each of some thousand acts."""

BASE = ("model=tiny", "workload=tiny", "record.transfers=true", "record.decisions=true")


@dataclass(frozen=True, kw_only=True)
class Asked(Closed):
    """Given requests that arrive one by one."""

    given: tuple[Request, ...]

    @property
    def closed(self):
        return False

    @property
    def asked(self):
        return self.given


@lru_cache(maxsize=64)
def part(build, group, name):
    """A part of an experiment, as its configuration file has it."""
    return getattr(build(f"{group}={name}"), group)


# -- what is compared


def assert_close(name, ours, theirs, abs_=1e-12):
    """Numbers within rounding; anything else exactly."""
    if isinstance(ours, float) and isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=TIMES, abs=abs_), name
    elif name.endswith("bytes") and ours is not None and theirs is not None:
        # sums of rounded bytes; what is fetched is a fraction of entries under selection=exponent
        assert abs(ours - theirs) <= 1, name
    else:
        assert ours == theirs, name


def assert_same_tuple(label, ours, theirs):
    for name, a, b in zip(ours._fields, ours, theirs, strict=True):
        if name == "shares":
            for share, c, d in zip(a._fields, a, b, strict=True):
                # a difference of times: what these lose to rounding
                assert_close(f"{label} {share}", c, d, abs_=TIMES * max(1.0, ours.end_s))
        elif name == "values":
            assert b == pytest.approx(a, rel=TIMES), f"{label} {name}"
        else:
            assert_close(f"{label} {name}", a, b)


def by_request(transfers):
    found = defaultdict(list)
    for row in sorted(transfers, key=lambda row: row.posted_s):
        found[row.request_id, row.purpose, row.source].append(row)
    return found


def assert_same(experiment):
    """Run both ways and compare all that is recorded; returns the layered one's records."""
    assert why_not_folded(experiment) is None
    layered, folded = SimBackend(fold=False).run(experiment), SimBackend().run(experiment)
    for a, b in zip(layered.recorders, folded.recorders, strict=True):
        assert len(a.iterations) == len(b.iterations), "iterations"
        for ours, theirs in zip(a.iterations, b.iterations, strict=True):
            assert_same_tuple(f"iteration {ours.iteration}", ours, theirs)
        assert a.spans == b.spans
        assert len(a.decisions) == len(b.decisions), "decisions"
        for number, (mine, other) in enumerate(zip(a.decisions, b.decisions, strict=True)):
            assert_same_tuple(f"decision {number}", mine, other)
    left, right = merge(list(layered.recorders)), merge(list(folded.recorders))
    assert sorted(left.requests) == sorted(right.requests)
    for request_id, mine in left.requests.items():
        for column in fields(mine):
            told = f"request {request_id} {column.name}"
            other = right.requests[request_id]
            assert_close(told, getattr(mine, column.name), getattr(other, column.name))
    ours_moved, theirs_moved = by_request(left.transfers), by_request(right.transfers)
    assert sorted(ours_moved) == sorted(theirs_moved)
    for key, rows in ours_moved.items():
        for row, its in zip(rows, theirs_moved[key], strict=True):
            assert_same_tuple(f"transfer {key}", row, its)
    assert folded.makespan_s == pytest.approx(layered.makespan_s, rel=TIMES)
    for link, busy_s in layered.link_busy_s.items():
        assert folded.link_busy_s[link] == pytest.approx(busy_s, rel=TIMES, abs=1e-12), link
    return left


# -- what is tried


@st.composite
def asked(draw, most_tokens):
    """Requests that arrive together, in turn, in bursts or on a grid, with prefixes or without."""
    number = draw(st.integers(1, 10))
    unit_s = draw(st.sampled_from([0.001, 0.01, 0.05, 0.2, 2.0]))
    exact = draw(st.booleans())
    gaps = st.sampled_from([0, 1, 2]) if exact else st.floats(0, 2)
    longest = draw(st.sampled_from([3, 40, most_tokens]))
    outputs = draw(st.sampled_from([1, 2, 5, 25]))
    named = draw(st.booleans())
    cached_ratio = draw(st.sampled_from([0, 0.5, 1]))
    made, now_s = [], 0.0
    for i in range(number):
        prompt = draw(st.integers(1, longest))
        kind = draw(st.integers(0, 2)) if named else 0
        prefix = tuple(1000 * kind + at for at in range(-(-prompt // 16))) if named else ()
        made.append(
            Request(
                request_id=i,
                arrival_s=now_s,
                prompt_tokens=prompt,
                cached_tokens=0 if named else int(cached_ratio * prompt),
                output_tokens=draw(st.integers(1, outputs)),
                prefix=prefix,
                prefix_tokens=16,
            )
        )
        now_s += unit_s * draw(gaps)
    return tuple(made)


@st.composite
def experiments(draw, build):
    """Anything that may be folded."""
    choose = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    name = choose(*POLICIES)
    closed_law = name != "on_demand_only" and choose(False, False, True)
    closed_law = closed_law or name == "partial_reuse"
    policy = part(build, "policy", name)
    if policy.speculative_ratio:
        policy = replace(
            policy,
            speculative_ratio=choose(0.0, 0.013, 0.1, 0.37, 1.0),
            first_speculative_step=choose(1, 2, 4),
        )
    requests = draw(asked(400))
    longest = max(r.prompt_tokens for r in requests) + max(r.output_tokens for r in requests)
    prefill_nodes, decode_nodes = draw(st.integers(1, 4)), choose(1, 1, 2)
    cluster = replace(
        part(build, "cluster", "dp1"),
        prefill_nodes=prefill_nodes,
        gpus_per_host=choose(1, 2),
        decode_nodes=decode_nodes,
        decode_batch=choose(None, None, 1, 2),
        decode_pool_tokens=choose(None, None, longest, 2 * longest),
        prefill_pool_tokens=choose(None, None, longest, 2 * longest),
        prefill_cache_tokens=choose(None, 0, 64, 300),
        decode_cache_tokens=choose(None, 0, 64, 300),
        routing=choose("round_robin", "least_loaded"),
    )
    gbps = choose(0.0004, 0.003, 0.01, 0.03, 0.2, 30.0)
    network = replace(
        part(build, "network", "elastic_25g"),
        gbps=gbps,
        sender_gbps=gbps * decode_nodes * choose(1.0, 3.0),
        pair_us=choose(0.0, 0.6, 50.0),
        rtt_us=choose(0.0, 50.0, 2000.0),
    )
    workload = Asked(
        name="asked", requests=1, prompt_tokens=1, output_tokens=1, cached_ratio=0, given=requests
    )
    if choose(False, False, False, True):
        # a closed batch waits for all, so that a prefill node must have room for all
        cluster = replace(cluster, prefill_pool_tokens=None)
        workload = Closed(
            name="closed",
            requests=len(requests),
            prompt_tokens=[request.prompt_tokens for request in requests],
            output_tokens=max(request.output_tokens for request in requests),
            cached_ratio=choose(0, 0.5, 1),
        )
    layers = choose(1, 2, 3, 6)
    base = build(*BASE, f"model.num_hidden_layers={layers}")
    return replace(
        base,
        policy=policy,
        selector=part(build, "selector", choose("infinigen", "infinigen", "hata", "quest", "all")),
        selection=part(build, "selection", "exponent" if closed_law else "blocks"),
        cluster=cluster,
        network=network,
        workload=workload,
        blocks_per_layer=choose(1, 8, 30, 60),
        mask_update=choose("live", "iteration"),
        seed=draw(st.integers(0, 9)),
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_run_is_the_same_act_by_act_and_ahead_of_the_clock(build, data):
    assert_same(data.draw(experiments(build)))
