"""Running ahead of the clock changes nothing: every row equals that of the layered simulator."""

import random
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import pytest

from smartgen.experiment import Record
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

BASE = ("model=tiny", "workload=tiny", "record.decisions=true")


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
            assert_same_tuple(f"transfer {key}", row, its) if row.bytes or row.messages else None
    assert folded.makespan_s == pytest.approx(layered.makespan_s, rel=TIMES)
    for link, busy_s in layered.link_busy_s.items():
        assert folded.link_busy_s[link] == pytest.approx(busy_s, rel=TIMES, abs=1e-12), link
    return left


# -- what is tried


def asked(rng):
    """Requests that arrive together, in turn, in bursts or on a grid, with prefixes or without."""
    unit_s = rng.choice([0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
    on_grid, named = rng.random() < 0.2, rng.random() < 0.4
    longest, outputs = rng.choice([5, 100, 400, 400]), rng.choice([1, 3, 12, 40])
    cached_ratio = rng.choice([0, 0.5, 1])
    made, now_s = [], 0.0
    for i in range(rng.randint(1, 12)):
        prompt, kind = rng.randint(1, longest), rng.randrange(3)
        prefix = tuple(1000 * kind + at for at in range(-(-prompt // 16))) if named else ()
        made.append(
            Request(
                request_id=i,
                arrival_s=now_s,
                prompt_tokens=prompt,
                cached_tokens=0 if named else int(cached_ratio * prompt),
                output_tokens=rng.randint(1, outputs),
                prefix=prefix,
                prefix_tokens=16,
            )
        )
        now_s += unit_s * (rng.choice([0, 1, 2]) if on_grid else rng.expovariate(1))
    return tuple(made)


def workload_of(rng, requests):
    if rng.random() < 0.75:
        return Asked(
            name="asked",
            requests=1,
            prompt_tokens=1,
            output_tokens=1,
            cached_ratio=0,
            given=requests,
        )
    return Closed(
        name="closed",
        requests=len(requests),
        prompt_tokens=[request.prompt_tokens for request in requests],
        output_tokens=max(request.output_tokens for request in requests),
        cached_ratio=rng.choice([0, 0.5, 1]),
    )


def cluster_of(rng, cluster, workload):
    """Pools hold what is longest, at least; a closed batch waits until its prefill nodes hold all."""
    requests = workload.asked
    longest = max(r.prompt_tokens for r in requests) + max(r.output_tokens for r in requests)
    rooms = [None, None, longest, 2 * longest]
    return replace(
        cluster,
        prefill_nodes=rng.randint(1, 4),
        gpus_per_host=rng.choice([1, 2]),
        decode_nodes=rng.choice([1, 1, 2]),
        decode_batch=rng.choice([None, None, 1, 3]),
        decode_pool_tokens=rng.choice(rooms),
        prefill_pool_tokens=None if workload.closed else rng.choice(rooms),
        prefill_cache_tokens=rng.choice([None, None, 0, 300]),
        decode_cache_tokens=rng.choice([None, None, 0, 300]),
        routing=rng.choice(["round_robin", "least_loaded"]),
    )


def policy_of(rng, policy):
    if policy.speculative_ratio == 0:
        return policy
    return replace(
        policy,
        speculative_ratio=rng.choice([0.0, 0.013, 0.1, 0.37, 1.0]),
        first_speculative_step=rng.choice([1, 2, 4]),
    )


def experiment_of(build, seed):
    """Anything that may be folded, from an idle system to an overloaded one."""
    rng = random.Random(seed)
    name = rng.choice((*POLICIES, "smartgen", "smartgen"))
    laws = {"on_demand_only": ["blocks"], "partial_reuse": ["exponent"]}
    law = rng.choice(laws.get(name, ["blocks", "blocks", "exponent"]))
    workload = workload_of(rng, asked(rng))
    cluster = cluster_of(rng, part(build, "cluster", "dp1"), workload)
    gbps = rng.choice([30.0, *[10 ** rng.uniform(-3.3, -1.3)] * 4])
    network = replace(
        part(build, "network", "elastic_25g"),
        gbps=gbps,
        sender_gbps=gbps * cluster.decode_nodes * rng.choice([1, 3]),
        pair_us=rng.choice([0.0, 0.6, 50.0]),
        rtt_us=rng.choice([0.0, 50.0, 2000.0]),
    )
    return replace(
        build(*BASE, f"model.num_hidden_layers={rng.choice([1, 3, 6, 6])}"),
        policy=policy_of(rng, part(build, "policy", name)),
        selector=part(
            build, "selector", rng.choice(["infinigen", "infinigen", "hata", "quest", "all"])
        ),
        selection=part(build, "selection", law),
        cluster=cluster,
        network=network,
        workload=workload,
        blocks_per_layer=rng.choice([1, 8, 30, 60]),
        mask_update=rng.choice(["live", "iteration"]),
        seed=rng.randrange(9),
        # rows of planned pushes are made in a way of their own where they are not wanted
        record=Record(decisions=True, transfers=rng.random() < 0.5),
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_run_is_the_same_act_by_act_and_ahead_of_the_clock(build, seed):
    assert_same(experiment_of(build, seed))
