"""Shared by all tests: experiments from configuration overrides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hypothesis import settings

from smartgen.compose import experiment_of
from smartgen.experiment import Experiment
from smartgen.workload import Closed, Request

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=400)
settings.load_profile("repeatable")  # pytest --hypothesis-profile=explore looks for more

TINY = (
    "model=tiny",
    "workload=tiny",
    "blocks_per_layer=32",
    "cluster.prefill_nodes=3",
    "network.gbps=0.02",
)
"""A workload that the emulator moves in a moment, over a link slow enough to matter."""

CLOSED = ("selection=exponent", "mask_update=iteration")
"""The mode in which the recursion holds."""


PUBLISHED = {
    "gpu": (
        "gpu.launch_overhead_us=1800",
        "gpu.prefill_ms=25",
        "gpu.hack.saved_us=1224.75",
        "gpu.hack.unpack_batch_ns_per_byte=0.0328613",
        "gpu.hack.unpack_request_ns_per_byte=0.1470337",
        "gpu.hack.handover_ns_per_byte=0.0105713",
    ),
    "host": (
        "host.load_gbytes_per_s=4.8",
        "host.dense_load_gbytes_per_s=4.8",
        "host.gather_gbytes_per_s=1.25",
        "host.rpc_us=500",
        "host.handover_ms=105",
    ),
    "network": ("network.pair_us=0.6",),
    "selector": (
        "selector.metadata_ratio=0.107",
        "selector.natural_ratio=0.38",
        "selector.scale=0.7524",
    ),
}
"""The constants of the anchors, with which tests were worked out; cards may be fitted again."""


@lru_cache(maxsize=256)
def _build(overrides: tuple[str, ...]) -> Experiment:
    named = {override.partition("=")[0] for override in overrides}
    published = [key for group, keys in PUBLISHED.items() if group not in named for key in keys]
    laws = [override for override in overrides if override.startswith("selection=")]
    if laws and laws[-1] == "selection=exponent":
        published += ["selection.exponents.profile=1.4", "selection.exponents.even=1.4"]
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        return experiment_of(compose("config", [*published, *overrides]))


@pytest.fixture(scope="session")
def build() -> Callable[..., Experiment]:
    """An experiment from Hydra overrides."""
    return lambda *overrides: _build(overrides)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Experiment]:
    """The same, for the tiny model and workload."""
    return lambda *overrides: _build((*TINY, *overrides))


@pytest.fixture(scope="session")
def closed() -> Callable[..., Experiment]:
    """The same, in the mode in which the recursion holds."""
    return lambda *overrides: _build((*CLOSED, *overrides))


@pytest.fixture(scope="session")
def cards() -> Experiment:
    """The closed law with the constants of the cards as they are."""
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        return experiment_of(compose("config", list(CLOSED)))


@dataclass(frozen=True, kw_only=True)
class Asked(Closed):
    """Given requests, which arrive one by one."""

    given: Sequence[Request]

    @property
    def closed(self) -> bool:
        """Each is planned alone."""
        return False

    @property
    def asked(self) -> tuple[Request, ...]:  # type: ignore[override]
        """The requests."""
        return tuple(self.given)


def _ask(experiment: Experiment, given: Sequence[Request]) -> Experiment:
    asked = Asked(
        name="asked", requests=1, prompt_tokens=1, output_tokens=1, cached_ratio=0, given=given
    )
    return replace(experiment, workload=asked)


@pytest.fixture(scope="session")
def ask() -> Callable[[Experiment, Sequence[Request]], Experiment]:
    """The same experiment with these requests for its workload, numbered in order of arrival."""
    return _ask


def _llama(num_layers: int, **keys: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=num_layers,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=97,
        eos_token_id=None,
        bos_token_id=None,
        attn_implementation="eager",
        **keys,
    )
    rng = torch.Generator().manual_seed(3)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            drawn = torch.randn(weights.shape, generator=rng)
            weights.copy_(1 + 0.3 * drawn if "norm" in name else drawn * weights.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="session")
def llama() -> Callable[..., Any]:
    """A new tiny random Llama of so many layers, norms drawn too: always the same."""
    return _llama


def _masked(model: Any, ids: Any, mask: Any) -> Any:
    import torch

    def hide(module: Any, args: Any, named: dict[str, Any]) -> Any:
        return args, {**named, "attention_mask": mask[None, module.layer_idx]}

    attentions = [layer.self_attn for layer in model.model.layers]
    hooks = [module.register_forward_pre_hook(hide, with_kwargs=True) for module in attentions]
    try:
        with torch.inference_mode():
            return model(input_ids=ids, use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()


@pytest.fixture(scope="session")
def masked() -> Callable[..., Any]:
    """The library's own eager forward of ids [1, T] under an additive mask [L, H, T, T]: [T, V]."""
    return _masked
