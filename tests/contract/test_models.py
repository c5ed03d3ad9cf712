"""Contracts (1) to (3) and (5) for every kind of model that is read."""

import numpy as np
import pytest

from smartgen.cost.recursion import closed_batch_times
from smartgen.emu.nodes import EmuDecodeNode
from smartgen.emu.pool import pattern
from smartgen.emu.virtual import VirtualBackend
from smartgen.metrics.records import merge
from smartgen.sim import SimBackend

SLIDING = ("model.model_type=gemma3_text", "+model.sliding_window=64")
MODELS = {
    "grouped": (),
    "sliding": (*SLIDING, "+model.sliding_window_pattern=3"),
    "windows only": (*SLIDING, "+model.sliding_window_pattern=3", "model.window_only=true"),
    "all sliding": ("model.model_type=mistral", "+model.sliding_window=97"),
    "mixture": (
        "model.model_type=qwen3_moe",
        "+model.num_experts=8",
        "+model.num_experts_per_tok=2",
        "+model.moe_intermediate_size=64",
        "+model.mlp_only_layers=[1]",
    ),
    "latent": (
        "model.model_type=deepseek_v2",
        "~model.num_key_value_heads",
        "~model.head_dim",
        "+model.kv_lora_rank=24",
        "+model.qk_rope_head_dim=8",
        "+model.qk_nope_head_dim=16",
        "+model.v_head_dim=16",
        "+model.q_lora_rank=null",
        "+model.n_routed_experts=8",
        "+model.n_shared_experts=1",
        "+model.num_experts_per_tok=2",
        "+model.moe_intermediate_size=64",
        "+model.first_k_dense_replace=1",
    ),
}
SCHEMES = ("full", "partial", "smartgen", "on_demand_only", "order_optimal", "hack")


def story(outcome):
    """Everything that both worlds must agree on but times."""
    merged = merge(list(outcome.recorders))
    requests = [
        (r.request_id, r.status, r.proactive_bytes, r.metadata_bytes, r.on_demand_bytes)
        for r in sorted(merged.requests.values(), key=lambda row: row.request_id)
    ]
    iterations = [
        (i.selected_entries, i.remote_entries, i.local_bytes, i.speculative_bytes)
        for i in merged.iterations
    ]
    return requests, iterations, [recorder.decisions for recorder in outcome.recorders]


def ends(outcome):
    return [row.end_s for recorder in outcome.recorders for row in recorder.iterations]


@pytest.mark.parametrize("selector", ["infinigen", "hata"])
@pytest.mark.parametrize("policy", SCHEMES)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_emulator_equals_the_simulator_for_every_kind_of_model(tiny, model, policy, selector):
    experiment = tiny(
        *model, f"policy={policy}", f"selector={selector}", "record.decisions=true",
        "network.gbps=0.005",
    )  # fmt: skip
    sim, emu = SimBackend().run(experiment), VirtualBackend(memory_gib=1.0).run(experiment)
    assert ends(emu) == pytest.approx(ends(sim), rel=1e-9)
    assert emu.makespan_s == pytest.approx(sim.makespan_s, rel=1e-9)
    assert story(emu) == story(sim)


@pytest.mark.parametrize("blocks", [1, 7, 100])
@pytest.mark.parametrize("model", ["sliding", "windows only"])
def test_they_are_equal_for_prompts_shorter_than_a_window_or_than_its_blocks(tiny, model, blocks):
    experiment = tiny(
        *MODELS[model], f"blocks_per_layer={blocks}", "workload.prompt_tokens=[1,63,64,400]",
        "network.gbps=0.003", "record.decisions=true", "network.discipline=queue_pair",
    )  # fmt: skip
    sim, emu = SimBackend().run(experiment), VirtualBackend(memory_gib=1.0).run(experiment)
    assert ends(emu) == pytest.approx(ends(sim), rel=1e-9)
    assert story(emu) == story(sim)


@pytest.mark.parametrize("selector", ["infinigen", "hata"])
@pytest.mark.parametrize("policy", ["full", "partial", "smartgen", "proactive_only", "hack"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_simulator_equals_the_recursion_for_every_kind_of_model(tiny, model, policy, selector):
    experiment = tiny(
        *model, f"policy={policy}", f"selector={selector}", "selection=exponent",
        "mask_update=iteration", "cluster.gpus_per_host=1",
    )  # fmt: skip
    expected = closed_batch_times(experiment.closed()).iteration_end_s
    assert ends(SimBackend().run(experiment)) == pytest.approx(expected, rel=1e-9)


def test_only_windows_cross_the_network_if_asked_to(tiny, monkeypatch):
    """Their bytes arrive whole, and nothing else does."""
    seen = []

    def compare(node, slot):
        held, geometry = node.slots[slot], node.experiment.geometry
        tokens = np.arange(held.request.prompt_tokens)
        for layer, kept in enumerate(geometry.layer_tokens(len(tokens)).tolist()):
            right = pattern(geometry, held.request.request_id, layer, tokens)
            right[: len(tokens) - kept] = 0
            seen.append(np.array_equal(node.pool.entries[layer, held.pages[tokens]], right))
        release(node, slot)

    release = EmuDecodeNode.release
    monkeypatch.setattr(EmuDecodeNode, "release", compare)
    experiment = tiny(*MODELS["windows only"], "workload.output_tokens=30", "network.gbps=0.1")
    merged = merge(list(VirtualBackend(memory_gib=1.0).run(experiment).recorders))
    assert len(seen) == 4 * 6 and all(seen)
    geometry = experiment.geometry
    for request_id, tokens in enumerate(experiment.workload.lengths):
        row = merged.requests[request_id]
        sent = (row.proactive_bytes or 0) + (row.speculative_bytes or 0)
        assert sent == (4 * min(tokens, 64) + 2 * tokens) * geometry.entry_bytes
        assert sent == geometry.entries(tokens) * geometry.entry_bytes


def test_a_window_makes_decoding_faster_whether_or_not_the_rest_is_cached(tiny):
    long = ("workload.prompt_tokens=3000", "policy=full", "network.gbps=10")
    steps_s = {}
    for name in ("grouped", "sliding", "windows only"):
        merged = merge(list(SimBackend().run(tiny(*MODELS[name], *long)).recorders))
        steps_s[name] = merged.iterations[-1].end_s - merged.iterations[-1].start_s
    assert steps_s["sliding"] == pytest.approx(steps_s["windows only"], rel=1e-9)
    assert steps_s["sliding"] < 0.98 * steps_s["grouped"]
