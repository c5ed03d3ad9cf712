"""Models read from Hugging Face's keys: their cache, their weights, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import smartgen
from smartgen.errors import SmartGenError
from smartgen.model import FeedForward, read_model, resolve

CONF = Path(smartgen.__file__).parent / "conf" / "model"
FILES = Path(__file__).parents[3] / "shared" / "data" / "model_configs"

needs_files = pytest.mark.skipif(
    not FILES.is_dir(), reason="the published config.json files do not lie beside this checkout"
)

KV_BYTES_PER_TOKEN = {  # layers x KV heads x (K and V) x head_dim x 2 bytes, or the latent row
    "DeepSeek-V2": 60 * (512 + 64) * 2,
    "DeepSeek-V2-Lite": 27 * (512 + 64) * 2,
    "DeepSeek-V3": 70_272,
    "Gemma-3-12B": 393_216,
    "Meta-Llama-3.1-8B": 131_072,
    "Mistral-7B-v0.3": 32 * 8 * 2 * 128 * 2,
    "Qwen2.5-14B-Instruct": 48 * 8 * 2 * 128 * 2,
    "Qwen2.5-7B-Instruct": 28 * 4 * 2 * 128 * 2,
    "Qwen3-14B": 163_840,
    "Qwen3-235B-A22B": 94 * 4 * 2 * 128 * 2,
    "Qwen3-30B-A3B": 48 * 4 * 2 * 128 * 2,
    "Qwen3-32B": 64 * 8 * 2 * 128 * 2,
    "Qwen3-8B": 147_456,
}

PARAMS = {  # all, active, in billions as published
    "qwen3_14b": (14.8, 14.8),
    "qwen3_8b": (8.2, 8.2),
    "llama31_8b": (8.03, 8.03),
    "qwen25_7b": (7.61, 7.61),
    "mistral_7b": (7.25, 7.25),
    "phi4": (14.7, 14.7),
    "qwen3_30b_a3b": (30.5, 3.3),
    "deepseek_v3": (671, 37),
}

SHIPPED = {
    "qwen3_14b": "Qwen3-14B",
    "qwen3_8b": "Qwen3-8B",
    "llama31_8b": "Meta-Llama-3.1-8B",
    "qwen25_7b": "Qwen2.5-7B-Instruct",
    "mistral_7b": "Mistral-7B-v0.3",
    "gemma3_12b": "Gemma-3-12B",
    "qwen3_30b_a3b": "Qwen3-30B-A3B",
    "deepseek_v2_lite": "DeepSeek-V2-Lite",
    "deepseek_v3": "DeepSeek-V3",
}

SMALL = {
    "name": "small",
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def small(**keys):
    return read_model({**SMALL, **keys})


def shipped(option, **keys):
    return read_model({**keys_of(option), **keys})


def keys_of(option):
    """Keys of a file, over those of the file that it takes its defaults from."""
    keys = OmegaConf.to_container(OmegaConf.load(CONF / f"{option}.yaml"))
    base = [other for other in keys.pop("defaults", []) if other != "_self_"]
    return {**(keys_of(base[0]) if base else {}), **keys}


# -- the files that exist, and the models that ship


@needs_files
@pytest.mark.parametrize("name", KV_BYTES_PER_TOKEN)
def test_kv_bytes_per_token_are_exact_for_every_published_file(name):
    model = read_model({"config": str(FILES / f"{name}.json")})
    assert model.name == name
    assert model.kv_bytes_per_token == KV_BYTES_PER_TOKEN[name]
    geometry = model.geometry(1000)
    assert geometry.num_layers * geometry.entry_bytes == KV_BYTES_PER_TOKEN[name]
    assert model.kv_bytes_per_layer * model.num_hidden_layers == KV_BYTES_PER_TOKEN[name]


@needs_files
def test_every_published_file_is_known_here():
    assert sorted(path.stem for path in FILES.glob("*.json")) == sorted(KV_BYTES_PER_TOKEN)


@needs_files
@pytest.mark.parametrize(("option", "name"), SHIPPED.items())
def test_a_shipped_model_is_that_of_its_published_file(option, name):
    of_file = read_model({"config": str(FILES / f"{name}.json")})
    assert replace(shipped(option), name=name) == of_file


@pytest.mark.parametrize(("option", "published"), PARAMS.items())
def test_parameters_are_those_that_publishers_count(option, published):
    model = shipped(option)
    assert model.params == pytest.approx(published[0] * 1e9, rel=0.01)
    assert model.active_params == pytest.approx(published[1] * 1e9, rel=0.02)


def test_some_count_otherwise():
    assert shipped("qwen3_14b").linear_params == pytest.approx(13.21e9, rel=0.001)
    lite = shipped("deepseek_v2_lite")  # of 15.7B 2.4B are active: without the embeddings' table
    assert lite.params == pytest.approx(15.7e9, rel=0.005)
    assert lite.active_params - lite.head_params == pytest.approx(2.4e9, rel=0.025)
    gemma = shipped("gemma3_12b")  # 12.2B with 0.42B of the vision tower
    assert gemma.params == pytest.approx(11.77e9, rel=0.001)


def test_the_page_on_models_tells_what_ships():
    page = Path(__file__).parents[2] / "docs" / "models.md"
    rows = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) == 6 and cells[0].startswith("`") and cells[1].isdigit():
            rows[cells[0].split("`")[1]] = cells[1:]
    models = {path.stem: path for path in CONF.glob("*.yaml")}
    assert sorted(rows) == sorted(models.keys() - {"config", "tiny"})
    for option, told in rows.items():
        model = shipped(option)
        assert told == [
            str(model.num_hidden_layers),
            f"{model.attention.num_kv_heads} x {model.attention.row_values}",
            f"{model.kv_bytes_per_token:,}",
            f"{model.params / 1e9:.2f}",
            f"{model.active_params / 1e9:.2f}",
        ]


def test_phi_4_has_204800_bytes_a_token():
    assert shipped("phi4").kv_bytes_per_token == 204_800


def test_gemma_caches_only_its_full_layers_beyond_the_window_if_asked_to():
    whole, windows = (shipped("gemma3_12b", window_only=only) for only in (False, True))
    assert whole.windows == ((1024,) * 5 + (None,)) * 8

    def kv_bytes(model, tokens):
        geometry = model.geometry(1000)
        return geometry.entries(tokens) * geometry.entry_bytes

    assert kv_bytes(whole, 5001) - kv_bytes(whole, 5000) == 393_216
    assert kv_bytes(windows, 5001) - kv_bytes(windows, 5000) == 65_536
    assert kv_bytes(windows, 1024) == kv_bytes(whole, 1024) == 1024 * 393_216
    assert kv_bytes(windows, 5000) == 1024 * 393_216 + (5000 - 1024) * 65_536


# -- odd files


def written(tmp_path, keys, name="config.json"):
    (tmp_path / name).write_text(json.dumps(keys), encoding="utf-8")
    return str(tmp_path / name)


GEMMA_4B = {  # as published: what is left out are the defaults of its class
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}


def test_a_nested_file_without_what_its_class_says_is_read_with_that(tmp_path):
    model = read_model({"config": written(tmp_path, GEMMA_4B)})
    assert model.kv_bytes_per_token == 34 * 4 * 2 * 256 * 2
    assert model.windows == (((1024,) * 5 + (None,)) * 6)[:34]
    assert model.tied_embeddings and model.dtype_bytes == 2
    assert model.max_position_embeddings == 131_072
    assert model.params == pytest.approx(3.88e9, rel=0.01)  # 4.3B with 0.42B of the vision tower


def test_what_stands_beside_a_nested_decoder_holds_for_it(tmp_path):
    keys = {**GEMMA_4B, "torch_dtype": "float32", "tie_word_embeddings": False}
    model = read_model({"config": written(tmp_path, keys)})
    assert model.dtype_bytes == model.weight_bytes == 4 and not model.tied_embeddings


def test_a_folder_and_a_name_in_the_cache_of_hugging_face_are_found(tmp_path):
    folder = tmp_path / "models--Qwen--Qwen3-14B" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    written(folder, {**SMALL, "rope_theta": 10_000.0})
    assert read_model({"config": str(folder)}).name == "Qwen3-14B"
    (tmp_path / "mine").mkdir()
    assert read_model({"config": written(tmp_path / "mine", SMALL)}).name == "mine"
    assert read_model({"config": written(tmp_path, SMALL, "other.json")}).name == "other"


def test_a_file_replaces_the_keys_of_the_section_and_is_kept_in_it(tmp_path):
    path = written(tmp_path, {**SMALL, "rope_theta": 10_000.0})
    section = {"name": "x", "config": path, "window_only": True, "head_dim": 99, "hidden_size": 1}
    resolved = resolve(section)
    assert resolved == {**SMALL, "name": tmp_path.name, "config": path, "window_only": True}
    assert resolve(resolved) == resolved
    assert read_model(section).attention.row_values == 2 * 16


@pytest.mark.parametrize("keys", [{}, {"head_dim": None}])
def test_heads_share_the_hidden_size_where_no_width_is_given(keys):
    assert small(**keys).attention.row_values == 2 * 16
    assert small(**keys, num_key_value_heads=None).attention.num_kv_heads == 4


def test_a_width_of_heads_that_is_given_counts():
    assert small(head_dim=32).attention.params == 64 * 32 * (4 + 2 + 2 + 4)


QWEN = {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 2}
GEMMA = {"model_type": "gemma3_text", "sliding_window": 8}
KINDS = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({}, None),
        ({**QWEN}, None),
        ({**QWEN, "use_sliding_window": False}, None),
        ({**QWEN, "use_sliding_window": True}, (None, None, 8, 8)),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 4}, None),
        ({**QWEN, "use_sliding_window": True, "sliding_window": None}, None),
        ({**QWEN, "use_sliding_window": True, "layer_types": KINDS}, (8, None, None, 8)),
        ({"model_type": "mistral", "sliding_window": 8}, (8, 8, 8, 8)),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral"}, (4096,) * 4),
        ({"model_type": "phi3"}, None),
        ({"model_type": "phi3", "sliding_window": 8}, (8, 8, 8, 8)),
        ({**GEMMA, "sliding_window_pattern": 2}, (8, None, 8, None)),
        ({**GEMMA}, (8, 8, 8, 8)),
        ({**GEMMA, "layer_types": KINDS}, (8, None, None, 8)),
        ({"model_type": "gemma2", "sliding_window": 8}, (8, None, 8, None)),
    ],
)
def test_a_window_counts_where_it_is_switched_on(keys, windows):
    assert small(**keys).windows == windows


def test_a_mixture_counts_router_and_experts_of_the_layers_that_have_them():
    keys = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
    model = small(model_type="qwen3_moe", **keys, mlp_only_layers=[1], decoder_sparse_step=2)
    dense, sparse = FeedForward(params=3 * 64 * 128), 64 * 8 + 8 * 3 * 64 * 10
    assert [layer.total_params for layer in model.feed_forwards] == [dense.params] * 3 + [sparse]
    assert model.feed_forwards[3].active_params == 64 * 8 + 2 * 3 * 64 * 10
    mixtral = small(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert mixtral.feed_forwards[0].total_params == 64 * 8 + 8 * 3 * 64 * 128


LATENT = {
    **{key: SMALL[key] for key in SMALL if key != "num_key_value_heads"},
    "model_type": "deepseek_v2",
    "kv_lora_rank": 20,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 1,
}


def test_latent_attention_caches_one_row_and_counts_every_projection():
    model = read_model(LATENT)
    geometry = model.geometry(10)
    assert (geometry.num_kv_heads, geometry.row_values, geometry.entry_bytes) == (1, 24, 48)
    rest = 64 * (20 + 4) + 20 * 4 * (8 + 6) + 4 * 6 * 64
    assert model.attention.params == 64 * 4 * 12 + rest
    low_rank = read_model({**LATENT, "q_lora_rank": 5}).attention
    assert low_rank.params == 64 * 5 + 5 * 4 * 12 + rest
    assert low_rank.pair_flops == 2 * 4 * (12 + 6)
    sparse = 64 * 8 + (2 + 8) * 3 * 64 * 10
    totals = [layer.total_params for layer in model.feed_forwards]
    assert totals == [3 * 64 * 128, sparse, sparse, sparse]
    every_other = read_model({**LATENT, "moe_layer_freq": 2}).feed_forwards
    assert [layer.num_experts for layer in every_other] == [0, 0, 8, 0]
    assert read_model({**LATENT, "n_routed_experts": None}).feed_forwards[3].num_experts == 0


def test_quantised_weights_weigh_less_and_the_cache_does_not():
    model = small(quantization_config={"quant_method": "fp8", "fmt": "e4m3"})
    assert (model.weight_bytes, model.dtype_bytes) == (1, 2)
    assert small(dtype="float16", torch_dtype="float32").dtype_bytes == 2


# -- refusals


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "mamba2"}, "model.model_type='mamba2' must be one of llama, mistral"),
        ({"model_type": "gpt_oss"}, "model.model_type='gpt_oss' must be one of"),
        ({"model_type": ["llama"]}, "must be one of llama"),
        ({"model_type": "???"}, "model.model_type is missing; it must be given"),
        ({"hidden_size": "???"}, "model.hidden_size is missing; it must be given"),
        ({"hidden_size": 66}, "model.hidden_size=66 must be a multiple of model.num_attention"),
        ({"num_key_value_heads": 3}, "must be a multiple of model.num_key_value_heads=3"),
        ({"hidden_size": "64"}, "model.hidden_size='64' must be an integer of 1 or more"),
        ({"num_hidden_layers": 0}, "model.num_hidden_layers=0 must be an integer of 1 or more"),
        ({"max_position_embeddings": -1}, "model.max_position_embeddings=-1 must be an integer"),
        ({"head_dims": 3}, "model.head_dims=3 is no key; model has name, config, window_only"),
        ({"kv_lora_rank": 3}, "model.kv_lora_rank=3 is no key"),
        ({"name": ""}, "model.name='' must be a name"),
        ({"window_only": 1}, "model.window_only=1 must be true or false"),
        ({"tie_word_embeddings": None}, "model.tie_word_embeddings=None must be true or false"),
        ({"torch_dtype": "int4"}, "model.torch_dtype='int4' must be one of float32, bfloat16"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method='awq' is not modelled"),
        ({"layer_types": ["linear_attention"] * 4}, "model.layer_types names 'linear_attention'"),
        ({"layer_types": ["full_attention"] * 3}, "lists 3 layers; it must list model.num_hidden"),
        ({"layer_types": "full_attention"}, "must be a list, one kind a layer"),
        ({"layer_types": KINDS}, "model.sliding_window must say how wide"),
        ({**QWEN, "use_sliding_window": "no"}, "model.use_sliding_window='no' must be true"),
        ({"model_type": "mistral", "sliding_window": 0}, "model.sliding_window=0 must be"),
        ({"attention_chunk_size": 8192}, "model.attention_chunk_size=8192 is not modelled"),
        ({"model_type": "mixtral"}, "model.num_local_experts is missing"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "model.num_experts_per_tok=3 must be at most model.num_local_experts=2",
        ),
    ],
    ids=str,
)
def test_what_is_not_modelled_is_refused_by_name(keys, words):
    with pytest.raises(SmartGenError) as refused:
        small(**keys)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused_with_its_path(tmp_path):
    for path, words in (
        ("nowhere.json", "cannot be read (No such file or directory); it must be a Hugging Face"),
        (written(tmp_path, [1], "list.json"), "holds no keys"),
        (written(tmp_path, {"model_type": "jamba"}, "jamba.json"), "model_type='jamba' must be"),
        (written(tmp_path, {"hidden_size": 1}, "none.json"), "model.model_type is missing"),
        (written(tmp_path, {**SMALL, "hidden_size": 1.5}, "x.json"), "model.hidden_size=1.5 must"),
        (written(tmp_path, {**SMALL, "mamba_d_state": 16}, "y.json"), "is not modelled: state"),
        (7, "model.config=7 must be the path of a config.json"),
    ):
        with pytest.raises(SmartGenError) as refused:
            read_model({"config": path})
        assert words in str(refused.value) and repr(path) in str(refused.value)
    (tmp_path / "text.json").write_text("no json", encoding="utf-8")
    with pytest.raises(SmartGenError, match="cannot be read"):
        read_model({"config": str(tmp_path / "text.json")})
