"""Durations of models that are not dense or do not attend everything, against sums by hand."""

import numpy as np
import pytest

from smartgen.model import FeedForward
from smartgen.nodes.batch import Batch
from smartgen.nodes.landings import Landings
from smartgen.nodes.slot import Slot
from smartgen.workload import Request

WINDOWED = ("model.model_type=gemma3_text", "+model.sliding_window=64")
"""Layers 0 to 4 of the tiny model slide, its layer 5 does not."""

MIXTURE = (
    "model.model_type=qwen3_moe",
    "+model.num_experts=8",
    "+model.num_experts_per_tok=2",
    "+model.moe_intermediate_size=64",
    "+model.mlp_only_layers=[0]",
)


def slot_of(experiment, number, tokens):
    request = Request(number, 0.0, tokens, 0, 9)
    plan = experiment.planner().plans_of([request])[0]
    landings = Landings(None, experiment.geometry.num_layers)
    draw = experiment.draw(number, tokens)
    return Slot(number, request, 0, experiment.mask(plan), draw, landings, 0)


@pytest.mark.parametrize(("cached", "new"), [(0, 10), (0, 300), (50, 100), (64, 5), (500, 100)])
def test_prefill_attends_no_more_than_the_window(tiny, cached, new):
    cost = tiny(
        *WINDOWED, "gpu.attention_tflops=0.001", "gpu.prefill_ms=0", "gpu.weights_efficiency=1e9"
    ).cost
    positions = cached + (np.arange(100 * new) + 0.5) / 100  # an integral, as for full attention
    pairs = 5 * np.minimum(positions, 64).sum() / 100 + positions.sum() / 100
    matmul = 2 * 6 * (256 * 16 * (4 + 2 + 2 + 4) + 3 * 256 * 512) * new
    attention = 2 * 4 * (16 + 16) * pairs
    assert cost.prefill_s(cached + new, cached) == pytest.approx(
        matmul / 114.6e12 + attention / 1e9, rel=1e-5
    )
    assert attention / 1e9 > matmul / 114.6e12


def test_a_batch_reads_the_experts_that_its_tokens_choose():
    layer = FeedForward(params=7, expert_params=100, num_experts=8, experts_per_token=2)
    assert layer.read_params(1) == pytest.approx(7 + 200)
    assert layer.read_params(2) == pytest.approx(7 + 8 * (1 - 0.75**2) * 100)
    assert layer.read_params(1000) == pytest.approx(layer.total_params)
    rng = np.random.default_rng(0)
    drawn = [
        len({expert for _ in range(3) for expert in rng.choice(8, 2, replace=False).tolist()})
        for _ in range(4000)
    ]
    assert layer.read_params(3) == pytest.approx(7 + 100 * np.mean(drawn), rel=0.01)


def test_feed_forward_takes_longer_for_more_tokens_only_where_there_are_experts(tiny):
    cost = tiny(*MIXTURE).cost
    one, many = cost.feed_forward_s(1).tolist(), cost.feed_forward_s(6).tolist()
    assert one[0] == many[0] and all(a < b for a, b in zip(one[1:], many[1:], strict=True))
    params = 256 * 8 + 8 * (1 - 0.75**6) * 3 * 256 * 64
    assert many[1] == pytest.approx(params * 2 / (0.82 * 864e9))
    dense = tiny().cost
    assert dense.feed_forward_s(1).tolist() == dense.feed_forward_s(6).tolist()


def test_quantised_layers_are_read_faster_and_the_head_is_not(tiny):
    plain, quantised = tiny().cost, tiny("+model.quantization_config={quant_method: fp8}").cost
    assert quantised.project_s == plain.project_s / 2
    assert quantised.feed_forward_s(1)[0] == plain.feed_forward_s(1)[0] / 2
    assert quantised.head_s == plain.head_s


@pytest.mark.parametrize("window_only", ["true", "false"])
def test_decoding_reaches_no_more_than_the_window_of_each_request(tiny, window_only):
    experiment = tiny(*WINDOWED, f"model.window_only={window_only}", "selector=all")
    cost = experiment.cost
    batch = Batch(experiment.geometry, grows=True)
    batch.join([slot_of(experiment, i, tokens) for i, tokens in enumerate((40, 300))])
    batch.advance()
    select_s = cost.select_s(batch.reached).tolist()
    assert select_s == [cost.select_s(104)] * 5 + [cost.select_s(340)]
    for kind in ("blocks", "exponent"):
        chosen = tiny(*WINDOWED, f"selection={kind}", "mask_update=iteration", "selector=all")
        for tokens in (40, 64, 300):
            draw = chosen.draw(0, tokens)
            for generated in (0, 5, 100):
                reached = min(tokens + generated, 64)
                expected = [reached] * 5 + [tokens + generated]
                assert draw.selected_at(generated).tolist() == expected


def test_blocks_outside_a_window_are_never_selected(tiny):
    for only in ("true", "false"):
        experiment = tiny(*WINDOWED, f"model.window_only={only}")
        geometry, draw = experiment.geometry, experiment.draw(0, 301)
        reached = geometry.reached_sizes(301).reshape(6, 32)
        assert (reached[:5].sum(axis=1) == 64).all() and reached[5].sum() == 301
        for step in (1, 2, 7):
            counts = draw.counts(step)
            assert (counts <= reached).all() and (counts.sum(axis=1) == draw.selected).all()
        ratios = experiment.selector.layer_ratios(6, np.random.default_rng([experiment.seed, 0, 1]))
        assert draw.selected.tolist() == np.rint(ratios * [64, 64, 64, 64, 64, 301]).tolist()
        importance = experiment.selection.profile(geometry, experiment.selector, 0).importance
        calibrated = geometry.reached_sizes(8 * 32).reshape(6, 32)
        assert (importance[calibrated == 0] == 0).all()
        assert (importance[:2][calibrated[:2] > 0] > 0).all()  # dense layers


def test_windows_alone_are_transferred_if_asked_to(tiny):
    whole, only = tiny(*WINDOWED), tiny(*WINDOWED, "model.window_only=true")
    requests = whole.requests
    rate, pair = whole.network.receiver_bytes_per_s, whole.network.pair_bytes
    entries = sum(5 * min(r.prompt_tokens, 64) + r.prompt_tokens for r in requests)
    size = entries * whole.geometry.entry_bytes + 6 * 4 * 32 * pair
    assert only.budget.transfer_s(requests) == pytest.approx(size / rate)
    whole_entries = 6 * sum(r.prompt_tokens for r in requests)
    assert only.budget.metadata_s(requests) == pytest.approx(
        whole.budget.metadata_s(requests) * entries / whole_entries
    )
    assert only.budget.planned_blocks(requests) > whole.budget.planned_blocks(requests)


def test_a_prefill_of_few_tokens_takes_as_long_as_reading_the_weights_they_use(build):
    for model in ("qwen3_14b", "qwen3_30b_a3b"):
        cost = build(f"model={model}").cost
        layers = cost.model.num_hidden_layers
        for new in (1, 8):
            read_s = layers * cost.project_s + cost.feed_forward_s(new).sum()
            assert cost.prefill_s(4000, 4000 - new) > read_s + cost.gpu.prefill_ms * 1e-3
            assert cost.prefill_s(new, 0) == pytest.approx(
                read_s + cost.gpu.prefill_ms * 1e-3, rel=1e-3
            )
        matmul_s = 2 * cost.model.active_linear_params * 8000 / (cost.gpu.matmul_tflops * 1e12)
        assert cost.prefill_s(8000, 0) > matmul_s


def test_layers_that_keep_a_window_hold_nothing_for_a_longer_prompt(tiny):
    geometry = tiny(*WINDOWED, "model.window_only=true").geometry
    held = geometry.is_held(301, 200).reshape(6, -1)
    assert not held[:5].any() and held[5].sum() == (geometry.bounds(301)[5, 1:] <= 200).sum() > 0
