"""Waiting times against queueing theory: links, prefill nodes, and the router in front of them.

Three steps. What the simulator does equals a recursion of one line, arrival by arrival, to
rounding. The recursion's mean over many arrivals equals the formula within three standard errors,
which are computed (M/G/1) or estimated from batch means. And a load that is off by 10 % would not.

Which theory applies: a link and a single prefill node are M/G/1. Nodes that take turns get every
k-th arrival each: E_k/M/1, not M/M/k. Least loaded is close to one queue for all nodes, M/M/k,
but not equal: a load counts the whole of the prompt at hand, not what is left of it. So it lies
between the two.
"""

import heapq
import math

import numpy as np
import pytest

from smartgen.cost import Flow, Wire
from smartgen.cost.shaper import Shaper
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend
from smartgen.sim.ledger import Ledger
from smartgen.sim.runtime import SimRuntime
from smartgen.workload import Request

LOADS = (0.3, 0.6, 0.9)
ERRORS = 3
"""Standard errors that a mean may be off; seeds are fixed."""


# -- theory, in units of the mean service time


def moments(kind):
    """E[S], E[S^2], E[S^3], E[S^4]."""
    return {"constant": (1, 1, 1, 1), "exponential": (1, 2, 6, 24)}[kind]


def single(load, kind):
    """M/G/1: mean waiting time, and the variance of one arrival's share in a mean over many.

    With the workload V an arrival meets, m = E[V] and g(v) = v^2 / 2(1 - load), which solves
    Poisson's equation for V, the sum of V - m over arrivals is a martingale but for its ends. Its
    steps are h = V - m + load * (g(V + S) - g(V)), so that the variance of a mean over n arrivals
    goes to E[h^2] / n. E[V] and E[V^2] are Takacs's.
    """
    s1, s2, s3, s4 = moments(kind)
    mean = load * s2 / (2 * (1 - load))
    square = 2 * mean**2 + load * s3 / (3 * (1 - load))
    c = load / (2 * (1 - load))
    spread = square - mean**2
    step_square = 4 * square * s2 + 4 * mean * s3 + s4  # E[(2VS + S^2)^2]
    return mean, spread + 4 * c * s1 * spread + c**2 * step_square


def in_turn(load, nodes):
    """E_k/M/1: mean waiting time where every k-th arrival of a Poisson process is served."""
    root = 0.5
    for _ in range(10_000):
        root = (nodes * load / (nodes * load + 1 - root)) ** nodes
    return root / (1 - root)


def shared(load, nodes):
    """M/M/k: mean waiting time of one queue for k nodes (Erlang C)."""
    offered = nodes * load
    last = offered**nodes / math.factorial(nodes) / (1 - load)
    others = sum(offered**i / math.factorial(i) for i in range(nodes))
    return last / (last + others) / (nodes * (1 - load))


def agrees(mean, theory, error):
    return abs(mean - theory) <= ERRORS * error


def assert_only(mean, theory, load, error):
    """The mean is that of this load, and not that of one which is off by a tenth."""
    assert agrees(mean, theory(load), error)
    if load > 0.5:
        assert not agrees(mean, theory(1.1 * load), error)
        assert not agrees(mean, theory(0.9 * load), error)


# -- arrivals, and recursions over them


def drawn(load, number, kind="constant", seed=1):
    """Arrival times of a Poisson process, and service times."""
    rng = np.random.default_rng([seed, int(100 * load)])
    arrivals = np.cumsum(rng.exponential(1 / load, number))
    services = np.ones(number) if kind == "constant" else rng.exponential(1.0, number)
    return arrivals, services


def waits_alone(arrivals, services):
    """Lindley's recursion for one node: W' = max(0, W + S - T), in closed form."""
    before = np.concatenate([[0.0], np.cumsum(services)[:-1]]) - arrivals
    return before - np.minimum.accumulate(before)


def waits_in_turn(arrivals, services, nodes):
    waits = np.empty(len(arrivals))
    for node in range(nodes):
        waits[node::nodes] = waits_alone(arrivals[node::nodes], services[node::nodes])
    return waits


def waits_shared(arrivals, services, nodes):
    """First come, first served by whichever node is free first."""
    free_s, waits = [0.0] * nodes, []
    for arrival_s, service_s in zip(arrivals.tolist(), services.tolist(), strict=True):
        start_s = max(arrival_s, free_s[0])
        heapq.heapreplace(free_s, start_s + service_s)
        waits.append(start_s - arrival_s)
    return np.array(waits)


def batch_error(waits, batches=50):
    """The standard error of a mean, from batches long enough to be independent."""
    means = waits[: len(waits) // batches * batches].reshape(batches, -1).mean(axis=1)
    return means.std(ddof=1) / batches**0.5


def test_the_variance_of_a_mean_is_daleys_for_exponential_service():
    for load in LOADS:
        mean, variance = single(load, "exponential")
        expected = load * (2 + 5 * load - 4 * load**2 + load**3) / (1 - load) ** 4
        assert mean == pytest.approx(load / (1 - load))
        assert variance == pytest.approx(expected)


def test_batches_tell_the_same_error_as_the_formula():
    waits = waits_alone(*drawn(0.6, 400_000, "exponential"))
    expected = (single(0.6, "exponential")[1] / len(waits)) ** 0.5
    assert batch_error(waits) == pytest.approx(expected, rel=0.3)  # three errors of 50 batches


# -- links


def flow(number, arrival_s, size):
    return Flow((0, number), "host0", "decode0", "pair", size, posted_s=arrival_s)


def shaped(arrivals, services):
    """Waiting times on a Shaper that SimPy drives; all is delivered one way after its end."""
    runtime, one_way_s, landed_s = SimRuntime(), 0.25, {}
    rates = {"host0": 4.0, "decode0": 1.0}
    shaper = Shaper(runtime, Wire("fifo", rates), one_way_s)
    flows = []

    def land(posting, first, stop):
        landed_s[posting.write] = runtime.now

    async def main():
        for number, (arrival_s, size) in enumerate(zip(arrivals, services, strict=True)):
            await runtime.until(arrival_s)
            flows.append(flow(number, arrival_s, size))
            shaper.post(flows[-1], number, land)
        await runtime.until(runtime.now + 1000)

    runtime.run(main())
    assert len(landed_s) == len(flows)
    for number, posted in enumerate(flows):
        assert landed_s[number] == pytest.approx(posted.end_s + one_way_s, rel=1e-12)
    return np.array([posted.started_s - posted.posted_s for posted in flows])


def entered(arrivals, services):
    """Waiting times in a ledger, announced a hundred at a time and from the last to the first."""
    ledger, flows = Ledger(1.0), []
    for first in range(0, len(arrivals), 100):
        rows = zip(arrivals[first : first + 100], services[first : first + 100], strict=True)
        some = [flow(first + at, arrival_s, size) for at, (arrival_s, size) in enumerate(rows)]
        for posted in reversed(some):
            ledger.add(posted)
        ledger.serve(some[-1].posted_s)
        ledger.take(some[0].posted_s, 0.0)
        flows += some
    return np.array([posted.started_s - posted.posted_s for posted in flows])


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("link", [shaped, entered])
def test_constant_transfers_wait_for_a_link_as_m_d_1_says(link, load):
    """Standard errors of the mean are 2 % at 0.3, 3 % at 0.6, 10 % at 0.9."""
    arrivals, services = drawn(load, 20_000)
    waits = link(arrivals, services)
    # times reach 7e4, the last bit of which is 1e-11; sums of 2e4 of them lose some more
    assert waits == pytest.approx(waits_alone(arrivals, services), abs=1e-7)
    error = (single(load, "constant")[1] / len(waits)) ** 0.5
    assert single(load, "constant")[0] == pytest.approx(load / (2 * (1 - load)))
    assert_only(waits.mean(), lambda other: single(other, "constant")[0], load, error)


# -- prefill nodes

MEAN_TOKENS = 10_000
"""Of exponential prompts: whole tokens are fine enough."""


@pytest.fixture
def prefilled(build, ask):
    """Waiting times for a prefill node, in mean service times; services as whole tokens take."""

    def run(arrivals, services, nodes, routing):
        base = build(
            "model=tiny",
            "model.num_hidden_layers=1",
            "blocks_per_layer=1",
            "workload=tiny",
            # a prefill takes as long as it has tokens, and nothing else takes any time
            "gpu.prefill_ms=0",
            "gpu.weights_efficiency=1e9",
            "gpu.attention_tflops=1e15",
            "policy=hack",
            "gpu.hack.wire_ratio=0",
            "host.handover_ms=0",
            f"cluster.prefill_nodes={nodes}",
            f"cluster.routing={routing}",
        )
        unit_s = base.cost.prefill_s(MEAN_TOKENS, 0)
        tokens = np.maximum(1, np.rint(services * MEAN_TOKENS)).astype(int).tolist()
        requests = tuple(
            Request(i, at * unit_s, prompt, 0, 1)
            for i, (at, prompt) in enumerate(zip(arrivals.tolist(), tokens, strict=True))
        )
        outcome = SimBackend().run(ask(base, requests))
        rows = merge(list(outcome.recorders)).requests
        waits = [rows[r.request_id].prefill_start_s - r.arrival_s for r in requests]
        return np.array(waits) / unit_s, np.array(tokens) / MEAN_TOKENS

    return run


@pytest.mark.parametrize("kind", ["constant", "exponential"])
@pytest.mark.parametrize("load", LOADS)
def test_one_prefill_node_is_m_g_1(prefilled, load, kind):
    arrivals, services = drawn(load, 1500, kind)
    waits, served = prefilled(arrivals, services, 1, "round_robin")
    # attention costs 1e-12 of a prefill, and times reach 5e3
    assert waits == pytest.approx(waits_alone(arrivals, served), abs=1e-8)
    mean, variance = single(load, kind)
    assert agrees(waits.mean(), mean, (variance / len(waits)) ** 0.5)

    many = waits_alone(*drawn(load, 1_000_000, kind, seed=2))
    error = (variance / len(many)) ** 0.5
    assert_only(many.mean(), lambda other: single(other, kind)[0], load, error)


@pytest.mark.parametrize("load", LOADS)
def test_four_prefill_nodes_in_turn_are_e_4_m_1_each_and_no_m_m_4(prefilled, load):
    arrivals, services = drawn(4 * load, 1500, "exponential")
    waits, served = prefilled(arrivals, services, 4, "round_robin")
    assert waits == pytest.approx(waits_in_turn(arrivals, served, 4), abs=1e-8)

    many = waits_in_turn(*drawn(4 * load, 1_000_000, "exponential", seed=2), 4)
    error = batch_error(many)
    assert_only(many.mean(), lambda other: in_turn(other, 4), load, error)
    assert not agrees(many.mean(), shared(load, 4), error)


@pytest.mark.parametrize("load", LOADS)
def test_four_least_loaded_nodes_wait_hardly_longer_than_m_m_4(prefilled, load):
    """Between one queue for all and nodes in turn, on the same arrivals."""
    arrivals, services = drawn(4 * load, 3000, "exponential")
    waits, served = prefilled(arrivals, services, 4, "least_loaded")
    together, turns = (f(arrivals, served, 4).mean() for f in (waits_shared, waits_in_turn))
    assert together < waits.mean() < turns
    # of what one queue saves over nodes in turn, this saves nine tenths
    assert waits.mean() - together < 0.1 * (turns - together)


@pytest.mark.parametrize("load", LOADS)
def test_one_queue_for_four_nodes_is_m_m_4(load):
    """The lower bound above is what the theory says of it."""
    many = waits_shared(*drawn(4 * load, 200_000, "exponential", seed=3), 4)
    assert_only(many.mean(), lambda other: shared(other, 4), load, batch_error(many))
