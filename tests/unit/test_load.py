"""Open runs: load within the window, saturation, goodput, and the table that shows them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from smartgen.compose import experiment_of
from smartgen.experiment import Experiment, Outcome, Targets
from smartgen.metrics.attribution import Shares
from smartgen.metrics.compare import comparison_table, summary_csv_rows
from smartgen.metrics.load import Steps
from smartgen.metrics.records import ActRow, IterationRow, Recorder, RequestRow, TokenSpan
from smartgen.metrics.summary import summarize
from smartgen.metrics.tables import Tables, make_tables
from smartgen.workload import Closed, Request


@dataclass(frozen=True, kw_only=True)
class Asked(Closed):
    """A workload of given requests."""

    given: Sequence[Request]

    @property
    def closed(self) -> bool:
        return False

    @property
    def asked(self) -> tuple[Request, ...]:  # type: ignore[override]
        return tuple(self.given)


def experiment(
    arrivals_s: Sequence[float], prompt_tokens: int = 100, output_tokens: int = 3, **room: int
) -> Experiment:
    """One prefill node, one decoding node, and requests that arrive so."""
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        made = experiment_of(compose("config", ["model=tiny", "workload=tiny", "cluster=dp1"]))
    given = [
        Request(number, at_s, prompt_tokens, 0, output_tokens)
        for number, at_s in enumerate(arrivals_s)
    ]
    asked = Asked(
        name="given",
        requests=len(given),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_ratio=0,
        given=given,
    )
    return replace(made, workload=asked, cluster=replace(made.cluster, **room))


def served(number: int, start_s: float, **told: Any) -> RequestRow:
    """Prefilled in a second, done after three."""
    times = {"prefill_start_s": start_s, "first_token_s": start_s + 1, "finish_s": start_s + 3}
    names = {"prefill_node": "prefill0", "decode_node": "decode0", "status": "finished"}
    return RequestRow(number, **(names | times | told))


def iteration(number: int, start_s: float, end_s: float, batch_size: int) -> IterationRow:
    shares = Shares(attend_s=end_s - start_s)
    return IterationRow(
        "decode0", number, start_s, end_s, batch_size, 9, shares, 1, 0, 0, 0, 0, 0, 0
    )


def metrics_of(
    asked: Experiment,
    rows: Sequence[RequestRow],
    iterations: Sequence[IterationRow] = (),
    makespan_s: float = 20.0,
    **busy_s: float,
) -> dict[str, Any]:
    recorder = Recorder(requests={row.request_id: row for row in rows}, iterations=[*iterations])
    tables = make_tables(asked, Outcome([recorder], makespan_s))
    return summarize(tables, asked, "sim", makespan_s, busy_s)


def two() -> tuple[Experiment, list[RequestRow]]:
    """Arrivals at 0 and 10, the window; each takes three seconds, the second waits one."""
    return experiment([0.0, 10.0]), [served(0, 0.0), served(1, 11.0)]


# -- step functions


def test_a_step_function_has_means_and_a_peak() -> None:
    steps = Steps(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 5.0]), np.array([1.0, 2.0, 9.0]))
    assert steps.means(np.array([0.0, 2.0, 4.0])).tolist() == [2.0, 1.0]
    assert steps.mean((-2.0, 6.0)) == pytest.approx(6 / 8)
    assert steps.peak((0.0, 9.0)) == 3.0  # what takes no time is no peak
    assert steps.peak((2.5, 2.6)) == 2.0 and steps.peak((3.0, 9.0)) == 0.0
    assert steps.mean((1.0, 1.0)) is None


def test_a_step_function_of_nothing_is_zero() -> None:
    nothing = Steps(np.array([]), np.array([]))
    assert nothing.mean((0.0, 1.0)) == 0.0 and nothing.peak((0.0, 1.0)) == 0.0


# -- utilisation


def test_use_is_counted_within_the_window_only() -> None:
    asked, rows = two()
    iterations = [iteration(1, 1.0, 3.0, 1), iteration(2, 8.0, 12.0, 3)]
    use = metrics_of(asked, rows, iterations, decode0=4.0, host0=1.0)["utilisation"]
    assert use["gpu"] == {"prefill0": pytest.approx(0.1), "decode0": pytest.approx(0.4)}
    assert use["nic"] == {"decode0": 0.4, "host0": 0.1}


def test_a_closed_batch_has_the_whole_run_for_a_window() -> None:
    asked = experiment([0.0, 0.0])
    metrics = metrics_of(asked, [served(0, 0.0), served(1, 1.0)], makespan_s=4.0)
    assert metrics["utilisation"]["gpu"]["prefill0"] == pytest.approx(0.5)
    assert metrics["arrivals_per_s"] is None and metrics["goodput_per_s"] is None


def test_a_prefill_that_made_no_token_counts_until_the_request_ended() -> None:
    asked, rows = two()
    rows[0].first_token_s, rows[0].status = None, "aborted"
    use = metrics_of(asked, rows)["utilisation"]["gpu"]["prefill0"]
    assert use == pytest.approx(0.3)


def test_without_seconds_of_links_bytes_stand_for_them() -> None:
    asked, rows = two()
    rows[0].add_bytes("proactive", 1_000_000)
    metrics = metrics_of(asked, rows)
    rate = asked.network.receiver_bytes_per_s
    assert metrics["utilisation"]["nic"]["decode0"] == pytest.approx(1e6 / (rate * 20))
    assert metrics["nic_busy_ratio"] == metrics["utilisation"]["nic"]


def test_pools_count_what_was_asked_for_from_the_grant_to_the_release() -> None:
    asked = experiment([0.0, 10.0], decode_pool_tokens=206)
    rows = [
        served(0, 0.0, reserved_s=0.0, released_s=5.0, prefill_released_s=2.0),
        served(1, 4.0, reserved_s=4.0),  # never given back
    ]
    metrics = metrics_of(asked, rows)
    assert metrics["utilisation"]["pool"]["decode0"] == pytest.approx((5 + 6) * 103 / 10 / 206)
    assert metrics["load"]["pool_tokens"]["decode0"] == {"mean": pytest.approx(113.3), "peak": 206}
    assert metrics["utilisation"]["pool"]["prefill0"] is None  # unlimited
    assert metrics["load"]["pool_tokens"]["prefill0"]["peak"] == 100


def test_pools_that_nobody_noted_are_null() -> None:
    metrics = metrics_of(*two())
    assert metrics["utilisation"]["pool"] == {"decode0": None, "prefill0": None}
    assert metrics["load"]["pool_tokens"] == {"decode0": None, "prefill0": None}


def test_batches_are_compared_with_their_limit() -> None:
    asked, rows = experiment([0.0, 10.0], decode_batch=4), two()[1]
    metrics = metrics_of(asked, rows, [iteration(1, 0.0, 5.0, 4), iteration(2, 5.0, 10.0, 2)])
    assert metrics["utilisation"]["batch"] == {"decode0": pytest.approx(0.75)}
    assert metrics["load"]["batch_size"]["decode0"] == {"mean": pytest.approx(3.0), "peak": 4.0}
    assert metrics_of(*two())["utilisation"]["batch"] == {"decode0": None}


# -- saturation


def steady(service_s: float, prefill_share: float = 0.5) -> dict[str, Any]:
    """Forty requests, one a second, served one after the other."""
    arrivals_s = [float(number) for number in range(40)]
    free_s, rows = 0.0, []
    for number, at_s in enumerate(arrivals_s):
        start_s = max(free_s, at_s)
        free_s = start_s + service_s
        rows.append(
            served(
                number,
                start_s,
                first_token_s=start_s + service_s * prefill_share,
                joined_s=start_s + service_s * prefill_share,
                finish_s=free_s,
            )
        )
    return metrics_of(experiment(arrivals_s), rows, makespan_s=free_s)


def test_a_queue_that_grows_is_saturation() -> None:
    assert steady(0.9)["saturated_by"] == []
    assert steady(1.2)["saturated_by"] == ["growth"]  # waits grow, though few are left waiting
    assert steady(1.3)["saturated_by"] == ["growth"]
    assert steady(2.0, 1.0)["saturated_by"] == ["gpu.prefill0", "growth"]


def test_decoding_gpus_are_always_busy_and_say_nothing() -> None:
    asked, rows = two()
    metrics = metrics_of(asked, rows, [iteration(1, 0.0, 10.0, 1)])
    assert metrics["utilisation"]["gpu"]["decode0"] == pytest.approx(1.0)
    assert not metrics["saturated"]


def test_full_links_pools_and_batches_are_named() -> None:
    asked = experiment([0.0, 10.0], decode_batch=1, decode_pool_tokens=103)
    rows = [served(0, 0.0, reserved_s=0.0, released_s=10.0), served(1, 11.0)]
    metrics = metrics_of(asked, rows, [iteration(1, 0.0, 10.0, 1)], decode0=1.0, host0=9.9)
    assert metrics["saturated_by"] == ["nic.host0", "pool.decode0", "batch.decode0"]


# -- goodput


def test_goodput_counts_finished_requests_that_kept_every_target() -> None:
    asked, rows = two()
    asked = replace(asked, targets=Targets(ttft_s=1.5, tbt_s=0.1))
    metrics = metrics_of(asked, rows)  # a TTFT of 1 and of 2; too few tokens for TBT
    assert metrics["attained_ratio"] == 0.5
    assert metrics["arrivals_per_s"] == pytest.approx(0.1)
    assert metrics["goodput_per_s"] == pytest.approx(1 / 14)  # the last one ends at 14
    rows[0].status = "failed"
    assert metrics_of(asked, rows)["attained_ratio"] == 0.0
    assert metrics_of(*two())["attained_ratio"] is None


def test_queueing_and_the_whole_life_have_percentiles() -> None:
    metrics = metrics_of(*two())
    assert metrics["queue_s"]["mean"] == 0.5 and metrics["queue_s"]["p50"] == 0.5
    assert metrics["e2e_s"] == {"mean": 3.5, "p50": 3.5, "p90": 3.9, "p99": 3.99}


# -- tables


def test_what_was_found_out_at_run_time_goes_before_the_workload() -> None:
    asked, rows = two()
    rows[0].cached_tokens, rows[0].held_tokens = 40, 30
    recorder = Recorder(requests={row.request_id: row for row in rows})
    told = make_tables(asked, Outcome([recorder], 20.0)).requests.to_pylist()
    assert [row["cached_tokens"] for row in told] == [40, 0]
    assert [row["held_tokens"] for row in told] == [30, 0]


def test_tokens_of_two_nodes_are_put_in_order() -> None:
    asked, rows = two()
    rows[1].decode_node = "decode1"
    nodes = [
        Recorder(
            requests={number: rows[number]},
            iterations=[iteration(i, start_s + i, start_s + i + 0.5, 1) for i in (1, 2, 3)],
            spans=[TokenSpan(number, 2, 3)],
        )
        for number, start_s in ((1, 12.0), (0, 1.0))
    ]
    tables = make_tables(asked, Outcome(nodes, 20.0))
    told = [tuple(row.values()) for row in tables.tokens.to_pylist()]
    assert told == [
        (0, 1, 1.0, None, None, None),
        (0, 2, 3.5, 2.5, 2, None),
        (0, 3, 4.5, 1.0, 3, None),
        (1, 1, 12.0, None, None, None),
        (1, 2, 14.5, 2.5, 2, None),
        (1, 3, 15.5, 1.0, 3, None),
    ]


def test_acts_are_kept_if_they_are_wanted() -> None:
    asked, rows = two()
    recorder = Recorder(requests={row.request_id: row for row in rows})
    recorder.acts.append(ActRow("decode0", 1, None, "logits", 1.0, 2.0))

    def tables(wanted: bool) -> Tables:
        record = replace(asked.record, acts=wanted)
        return make_tables(replace(asked, record=record), Outcome([recorder], 20.0))

    assert tables(False).acts is None
    acts = tables(True).acts
    assert acts is not None
    assert acts.to_pylist() == [recorder.acts[0]._asdict()]


# -- the comparison


def test_an_open_comparison_shows_percentiles_use_and_what_is_saturated() -> None:
    good, bad = steady(0.9), steady(2.0, 1.0)
    lines = comparison_table([("good", good), ("bad", bad)]).splitlines()
    header = ["run", "ttft_s", "ttst_s", "tbt_s", "req/s", "GPU", "%", "NIC", "%", "batch"]
    assert lines[0].split() == header
    assert lines[1].split()[:2] == ["good", "0.45/0.45"]
    assert lines[2].endswith("saturated (gpu, growth)")
    assert lines[3].startswith("(p50/p99 over finished requests")
    assert max(map(len, lines)) <= 130


def test_causes_of_saturation_are_one_cell_of_the_csv() -> None:
    header, row = summary_csv_rows([({"policy": "full"}, steady(2.0, 1.0))])
    assert row[header.index("saturated_by")] == "gpu.prefill0 growth"
    assert row[header.index("utilisation.gpu.decode0")] == "0.0"
