"""A Hugging Face decoder whose forward is a coroutine: it stops wherever a layer attends.

The forward is the library's, unmodified. One attention function is registered under a name of ours;
called, it leaves the forward's greenlet with q, k and v, and goes on with whatever it is given as
the attention's output. So no family's code is repeated here, and none has to be named.

A forward must be advanced on one thread. It is called without a cache and without a mask: what is
attended, causality included, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from smartgen.emu.runner.attention import attend_prefill
from smartgen.errors import SmartGenError

_NAME = "smartgen"
_HARMLESS = frozenset({"position_ids", "use_cache", "output_router_logits", "is_causal"})
"""Arguments of an attention that change nothing about its result."""

_PROBE_TOKENS = 9
_TOLERANCE = 1e-4
"""Of the greatest logit: float32 models differ from their own eager forward by 1e-7 to 6e-6."""


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """A layer waits for its attention's output. d is a head's width, H and Hkv count heads.

    x: what enters the layer's attention, for selectors that look ahead. k, v: the new entries only.
    q and k are as attention wants them, normed and rotated.
    """

    layer: int
    x: Tensor  # [B, T, D]
    q: Tensor  # [B, H, T, d]
    k: Tensor  # [B, Hkv, T, d]
    v: Tensor  # [B, Hkv, T, d]
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """A forward has come to its end."""

    logits: Tensor  # [B, 1, V], of each sequence's last token


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What the library handed to the attention function."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float


class _Suspended(greenlet):
    """Code that stops at the next attention."""

    def resume(self, out: Tensor | None = None) -> Any:
        """Run to the next attention or to the end; an error of the code is raised here."""
        self.parent = getcurrent()
        with torch.inference_mode():  # thread-local: around every stretch, never inside
            return self.switch() if out is None else self.switch(out)


class _Pass(_Suspended):
    """One pass of a model, and what its hooks have seen of it."""

    x: Tensor
    arguments: dict[str, Any]

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__(run)
        self.rotations: dict[nn.Module, Any] = {}
        """The last output of every rotary embedding."""


def _attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **named: Any
) -> tuple[Tensor, None]:
    """Leave the forward; what it is resumed with is the attention's output."""
    forward = getcurrent()
    if not isinstance(forward, _Suspended):
        raise RuntimeError(
            "this model is suspended at its attentions: call it through Decoder.forward, or set "
            "its attention implementation back"
        )
    scale, dropout = named.pop("scaling", None), named.pop("dropout", 0.0)
    unknown = [name for name, value in named.items() if value is not None and name not in _HARMLESS]
    if mask is not None:
        unknown.append("attention_mask")
    if dropout:
        unknown.append("dropout")
    if unknown:
        raise SmartGenError(
            f"the attention of {type(module).__name__} takes {', '.join(unknown)}, which "
            "compute=model does not know"
        )
    call = _Call(module, q, k, v, q.shape[-1] ** -0.5 if scale is None else scale)
    assert forward.parent is not None
    out: Tensor = forward.parent.switch(call)
    return out, None


class Forward:
    """One pass over tokens at given positions. Advance it on one thread only."""

    def __init__(self, run: Callable[[], Any], layers: dict[nn.Module, int]) -> None:
        self._pass, self._layers = _Pass(run), layers

    def advance(self, out: Tensor | None = None) -> Attention | Logits:
        """Go on to the next attention, or to the end. out [B, T, H, d]: of the one that waits."""
        call = self._pass.resume(out)
        if not isinstance(call, _Call):
            return Logits(call.logits)
        layer = self._layers[call.module]
        return Attention(layer, self._pass.x, call.q, call.k, call.v, call.scale)

    def close(self) -> None:
        """Abandon it midway."""
        if not self._pass.dead:
            self._pass.parent = getcurrent()
            self._pass.throw()


class Decoder:
    """A causal decoder, prepared: it can be called through forward only.

    Which module attends in which layer is found by a short pass; a second one is compared with the
    library's eager forward. A model that attends in a way that is not known here is refused.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        model.train(False)
        self._check_kind()
        config = model.config.get_text_config()
        self.num_layers: int = config.num_hidden_layers
        ids = (torch.arange(_PROBE_TOKENS) * 7 + 1)[None] % config.vocab_size
        positions = torch.arange(_PROBE_TOKENS)[None]
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            right = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        AttentionInterface.register(_NAME, _attention)
        model.set_attn_implementation(_NAME)
        self._modules = self._find_modules(ids, positions)
        self._layers = {module: layer for layer, module in enumerate(self._modules)}
        self._hook()
        self._rotations: list[nn.Module | None] = []
        self._check(right, ids, positions)

    def forward(self, ids: Tensor, positions: Tensor) -> Forward:
        """A pass over ids [B, T] at positions [B, T], not begun yet."""
        return Forward(lambda: self._run(ids, positions), self._layers)

    def project_q(self, forward: Forward, layer: int, x: Tensor) -> Tensor:
        """The queries of a layer for what entered another one's attention in this pass.

        x [B, T, D]; returns [B, H, T, d]. Of the same layer's x it is the layer's own q.
        """
        arguments, rotation = dict(forward._pass.arguments), self._rotations[layer]
        arguments["hidden_states"] = x
        if rotation is not None:
            arguments["position_embeddings"] = forward._pass.rotations[rotation]
        module = self._modules[layer]
        peek = _Suspended(lambda: module(**arguments))
        call = peek.resume()
        peek.throw()
        query: Tensor = call.q
        return query

    # -- preparation

    def _run(self, ids: Tensor, positions: Tensor) -> Any:
        return self._model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1)

    def _check_kind(self) -> None:
        config = self._model.config
        kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
        changing = _rope_types(config.to_dict()) & {"dynamic", "longrope"}
        what = None
        if getattr(config, "is_encoder_decoder", False):
            what = "an encoder"
        elif kinds - {"full_attention", "sliding_attention"}:
            what = f"layers of type {', '.join(sorted(kinds))}"
        elif getattr(config.get_text_config(), "num_kv_shared_layers", 0):
            what = "layers that share their cache"
        elif changing:  # keys stored before the change no longer match queries made after it
            what = f"{changing.pop()} rotations, which depend on the batch's longest sequence"
        if what is not None:
            raise SmartGenError(
                f"{type(self._model).__name__} has {what}; compute=model runs decoders whose "
                "layers all attend to a cache of their own, of keys that do not change"
            )

    def _find_modules(self, ids: Tensor, positions: Tensor) -> list[nn.Module]:
        """Which module attends in which layer."""
        found: list[nn.Module] = []
        probe = _Pass(lambda: self._run(ids, positions))
        call = probe.resume()
        while isinstance(call, _Call):
            found.append(call.module)
            self.num_kv_heads, self.head_dim = call.k.shape[1], call.k.shape[-1]
            self.dtype_bytes = call.k.element_size()
            call = probe.resume(torch.zeros_like(call.q).transpose(1, 2))
        if len(found) != self.num_layers or len(set(found)) != self.num_layers:
            raise SmartGenError(
                f"{type(self._model).__name__} attends {len(found)} times in a pass; it must once "
                f"in each of its {self.num_layers} layers"
            )
        return found

    def _hook(self) -> None:
        """Have every pass note what enters its attentions, and what its rotary embeddings say."""
        for module in self._modules:
            module.register_forward_pre_hook(_note_input, with_kwargs=True)
        for module in self._model.modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                module.register_forward_hook(_note_rotation)

    def _check(self, right: Tensor, ids: Tensor, positions: Tensor) -> None:
        """Compare with the eager forward; learn on the way whose rotation each layer takes."""
        forward = self.forward(ids, positions)
        waiting = forward.advance()
        while isinstance(waiting, Attention):
            given = forward._pass.arguments.get("position_embeddings")
            rotations = forward._pass.rotations.items()
            self._rotations.append(next((m for m, made in rotations if made is given), None))
            waiting = forward.advance(attend_prefill(waiting))
        difference = float((waiting.logits - right).abs().max() / right.abs().max())
        if not difference <= _TOLERANCE:
            raise SmartGenError(
                f"{type(self._model).__name__} computes something else when its attention is "
                f"taken over: logits differ by {difference:.1e} of the greatest, {_TOLERANCE:.0e} "
                "are allowed"
            )


def _note_input(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    forward = getcurrent()
    if isinstance(forward, _Pass):
        forward.arguments = named
        forward.x = named["hidden_states"] if "hidden_states" in named else args[0]


def _note_rotation(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    forward = getcurrent()
    if isinstance(forward, _Pass):
        forward.rotations[module] = output


def _rope_types(keys: Any) -> set[str]:
    """Kinds of rotation that a configuration names, wherever its version puts them."""
    if not isinstance(keys, dict):
        return set()
    own = {keys[name] for name in ("rope_type", "type") if isinstance(keys.get(name), str)}
    return own.union(*(_rope_types(value) for value in keys.values()))
