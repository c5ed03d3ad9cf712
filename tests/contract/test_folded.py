"""Running ahead of the clock changes nothing: every row equals that of the layered simulator."""

import random
from collections import defaultdict
from dataclasses import fields, replace
from functools import lru_cache

import pytest

from smartgen.experiment import Record
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend
from smartgen.sim.backend import why_not_folded
from smartgen.sim.folded_decode import FoldedStep
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
    "smartgen_codes",
    "smartgen_idle",
    "smartgen_rate",
    "smartgen_adaptive",
)
TIMES = 1e-9
"""Relative: the two add the same durations in another order. What the sums lose is a few last bits
(1e-16) for each of some thousand acts."""

BASE = ("model=tiny", "workload=tiny", "record.decisions=true")


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


def assert_same_transfers(ours, theirs):
    ours, theirs = by_posting(ours), by_posting(theirs)
    assert sorted(ours) == sorted(theirs)
    for key, rows in ours.items():
        for row, other in zip(rows, theirs[key], strict=True):
            assert_same_tuple(f"transfer {key}", row, other)


def by_posting(transfers):
    found = defaultdict(list)
    for row in sorted(transfers, key=lambda row: row.posted_s):
        found[row.request_id, row.purpose, row.source].append(row)
    return found


def assert_same_node(ours, theirs):
    """What one node has recorded, in its order."""
    for kind in ("iterations", "decisions"):
        mine, its = getattr(ours, kind), getattr(theirs, kind)
        assert len(mine) == len(its), kind
        for number, (row, other) in enumerate(zip(mine, its, strict=True)):
            assert_same_tuple(f"{kind} {number}", row, other)
    assert ours.spans == theirs.spans
    mine, its = (
        sorted(node.acts, key=lambda act: (act.iteration, str(act.layer), act.act))
        for node in (ours, theirs)
    )
    assert len(mine) == len(its), "acts"
    for act, other in zip(mine, its, strict=True):
        assert_same_tuple(f"act {act.act} of layer {act.layer}", act, other)


def assert_same_requests(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for request_id, row in ours.items():
        for column in fields(row):
            mine, other = (getattr(rows[request_id], column.name) for rows in (ours, theirs))
            assert_close(f"request {request_id} {column.name}", mine, other)


def assert_same(experiment):
    """Run both ways and compare all that is recorded; returns the layered one's records."""
    assert why_not_folded(experiment) is None
    layered, folded = SimBackend(fold=False).run(experiment), SimBackend().run(experiment)
    for ours, theirs in zip(layered.recorders, folded.recorders, strict=True):
        assert_same_node(ours, theirs)
    left, right = merge(list(layered.recorders)), merge(list(folded.recorders))
    assert_same_requests(left.requests, right.requests)
    assert_same_transfers(left.transfers, right.transfers)
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


def closed_of(rng, requests):
    return Closed(
        name="closed",
        requests=len(requests),
        prompt_tokens=[request.prompt_tokens for request in requests],
        output_tokens=max(request.output_tokens for request in requests),
        cached_ratio=rng.choice([0, 0.5, 1]),
    )


def cluster_of(rng, cluster, requests, closed):
    """Pools hold what is longest; a closed batch waits for all, so prefill nodes hold all."""
    longest = max(r.prompt_tokens for r in requests) + max(r.output_tokens for r in requests)
    rooms = [None, None, longest, 2 * longest]
    return replace(
        cluster,
        prefill_nodes=rng.randint(1, 4),
        gpus_per_host=rng.choice([1, 2]),
        decode_nodes=rng.choice([1, 1, 2]),
        decode_batch=rng.choice([None, None, 1, 3]),
        decode_pool_tokens=rng.choice(rooms),
        prefill_pool_tokens=None if closed else rng.choice(rooms),
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
        speculative_fill=rng.choice([0.0, 0.5, 0.9, 2.0 / 3, 1.0]),
        speculative_floor=rng.choice([0.001, 0.02, 0.3]),
        first_speculative_step=rng.choice([1, 2, 4]),
    )


def experiment_of(build, ask, seed):
    """Anything that may be folded, from an idle system to an overloaded one."""
    rng = random.Random(seed)
    name = rng.choice((*POLICIES, *["smartgen"] * 4, *["smartgen_adaptive"] * 4))
    laws = {"on_demand_only": ["blocks"], "partial_reuse": ["exponent"]}
    law = rng.choice(laws.get(name, ["blocks", "blocks", "exponent"]))
    requests, closed = asked(rng), rng.random() < 0.25
    cluster = cluster_of(rng, part(build, "cluster", "dp1"), requests, closed)
    gbps = rng.choice([30.0, *[10 ** rng.uniform(-3.3, -1.3)] * 4])
    network = replace(
        part(build, "network", "elastic_25g"),
        gbps=gbps,
        sender_gbps=gbps * cluster.decode_nodes * rng.choice([1, 3]),
        pair_us=rng.choice([0.0, 0.6, 50.0]),
        rtt_us=rng.choice([0.0, 50.0, 2000.0]),
    )
    experiment = replace(
        build(*BASE, f"model.num_hidden_layers={rng.choice([1, 3, 6, 6])}"),
        policy=policy_of(rng, part(build, "policy", name)),
        selector=part(
            build, "selector", rng.choice(["infinigen", "infinigen", "hata", "quest", "all"])
        ),
        selection=part(build, "selection", law),
        cluster=replace(cluster, prefill_pool_tokens=None),
        network=network,
        workload=closed_of(rng, requests),
        blocks_per_layer=rng.choice([1, 8, 30, 60]),
        mask_update=rng.choice(["live", "iteration"]),
        seed=rng.randrange(9),
        # rows of planned pushes are made in a way of their own where they are not wanted
        record=Record(decisions=True, transfers=rng.random() < 0.5, acts=rng.random() < 0.5),
    )
    return experiment if closed else replace(ask(experiment, requests), cluster=cluster)


SEEDS = range(160)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_run_is_the_same_act_by_act_and_ahead_of_the_clock(build, ask, seed):
    assert_same(experiment_of(build, ask, seed))


# -- by hand


@pytest.fixture
def serving(build, ask):
    """Requests of (arrival, prompt, output) for one prefill node and one decoding node."""

    def make(given, *overrides):
        base = build(*BASE, "record.transfers=true", "network.pair_us=0", "cluster=dp1", *overrides)
        return ask(base, [Request(i, at, n, 0, out) for i, (at, n, out) in enumerate(given)])

    return make


def test_a_prefill_that_starts_in_the_middle_of_an_iteration_has_it_run_again(serving, monkeypatch):
    """Once for each of two; the second begins where the first ends, and both make it longer."""
    again = []
    run_again = FoldedStep.run_again

    def noting(step):
        before_s = step.end_s
        run_again(step)
        again.append((step._batch.iteration, step._runtime.env.now, before_s, step.end_s))

    monkeypatch.setattr(FoldedStep, "run_again", noting)
    overrides = ("network.gbps=0.004", "blocks_per_layer=32", "policy=partial_parallel")
    alone = assert_same(serving([(0.0, 300, 6)], *overrides))
    assert not again
    second = alone.iterations[1]
    starts_s = [second.start_s + share * (second.end_s - second.start_s) for share in (0.1, 0.2)]
    late = [(starts_s[0], 200, 2), (starts_s[1], 50, 2)]
    merged = assert_same(serving([(0.0, 300, 6), *late], *overrides))
    assert merged.iterations[0] == alone.iterations[0]
    longer = merged.iterations[1]
    assert longer.shares.interference_s > 0 and longer.end_s > second.end_s
    assert [(number, at_s) for number, at_s, _, _ in again[:1]] == [(2, starts_s[0])]
    assert again[0][2] == second.end_s
    # the GPU holds one prefill at a time
    number, at_s, before_s, after_s = again[1]
    assert (number, at_s) == (2, merged.requests[1].first_token_s)
    assert before_s == again[0][3] and after_s == longer.end_s
    assert len(again) == 2 and before_s < after_s


def test_of_what_is_posted_at_one_instant_nothing_takes_its_turn_like_anything(ask, build):
    """Two prompts of one token, in most blocks of which there is nothing."""
    requests = [Request(i, at, n, 0, 2) for i, (at, n) in enumerate([(0, 1), (0.01, 1), (0.01, 4)])]
    base = build(
        *BASE,
        "record.transfers=true",
        "cluster=dp1",
        "cluster.prefill_nodes=2",
        "network.gbps=0.0006",
        "network.pair_us=0",
        "blocks_per_layer=8",
        "policy=smartgen_budgeted",
        "policy.speculative_ratio=0.37",
        "policy.first_speculative_step=1",
        "seed=6",
    )
    merged = assert_same(ask(base, requests))
    assert any(t.bytes == 0 and t.purpose == "speculative" for t in merged.transfers)


def test_what_lands_last_is_written_down_whatever_the_last_bit_of_its_time(serving):
    for prompt in range(20, 60):
        overrides = ("network.gbps=0.004", "network.rtt_us=2000")
        assert_same(serving([(0.0, prompt, 1)], *overrides))


def test_who_lacks_its_first_layer_lacks_it_when_the_iteration_is_run_again(serving):
    """All is pushed speculatively in one iteration, in the middle of which a prefill begins."""
    overrides = (
        "selection=exponent",
        "selector=all",
        "policy.speculative_ratio=1",
        "policy.first_speculative_step=1",
        "model.num_hidden_layers=4",
        "blocks_per_layer=8",
        "network.gbps=0.004",
    )
    assert_same(serving([(0.0, 297, 2), (0.28, 100, 1)], *overrides))


def test_what_lands_in_an_iteration_is_in_flight_when_it_is_run_again(serving):
    """A request's plan lands and is written down, then another's prefill begins."""
    given = [(0.0, 383, 2), (0.0, 119, 1), (0.0, 178, 3), (0.0, 85, 2)]
    overrides = ("model.num_hidden_layers=3", "blocks_per_layer=1", "network.gbps=0.005")
    assert_same(serving(given, "cluster.decode_pool_tokens=772", *overrides))
