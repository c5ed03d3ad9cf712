"""Emulated nodes that compute: K and V of a real model are what moves, and tokens are its own.

Acts still take the cost model's time; only values are real. A layer's selector metadata are all
keys of the prompt, and a selection is the exact one: for each KV head the entries to which its
query heads attend most. How many that are is still the selector's share of what is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smartgen.emu.nodes import EmuDecodeNode, EmuPrefillNode, EmuSlot
from smartgen.emu.pool import Bytes
from smartgen.emu.runner import Attention, Decoder, Forward, Logits, attend_prefill, attend_rows
from smartgen.emu.runner.attention import weigh
from smartgen.emu.step import EmuStep
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment
from smartgen.kv import LOCAL, PADDED
from smartgen.kv.geometry import Int
from smartgen.metrics.records import TokenId
from smartgen.nodes.timed_prefill import WaitingRuntime

_KEY_RATIO = 0.5
"""Keys over K and V: the metadata of a selector that sees every key."""

_PROMPT_STREAM = 20


@dataclass(frozen=True, eq=False)
class ModelCompute:
    """What nodes compute with: a model, and each request's prompt by its number and length."""

    decoder: Decoder
    prompt: Callable[[int, int], Int]

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment whose values this cannot compute."""
        decoder, geometry = self.decoder, experiment.geometry
        for name, asked, has in (
            ("model.num_hidden_layers", geometry.num_layers, decoder.num_layers),
            ("model.num_key_value_heads", geometry.num_kv_heads, decoder.num_kv_heads),
            ("values in a row of model", geometry.row_values, 2 * decoder.head_dim),
            ("bytes of a value of model", geometry.dtype_bytes, decoder.dtype_bytes),
        ):
            if asked != has:
                raise SmartGenError(f"{name}={asked} must be {has}, as of the model that computes")
        selector, policy = experiment.selector, experiment.policy
        whole = selector.selection_ratio == 1 and selector.natural_ratio is None
        if policy.selects and experiment.metadata_ratio != _KEY_RATIO:
            raise SmartGenError(
                f"selector.metadata_ratio={experiment.metadata_ratio} must be {_KEY_RATIO} with "
                "compute=model, whose selection sees every key"
            )
        if policy.selects and selector.looks_ahead and not selector.dense_layers and not whole:
            raise SmartGenError(
                "selector.dense_layers=0 must be at least 1 with compute=model and a selector "
                "that looks ahead: layer 0 has no layer before it"
            )
        _refuse(experiment)


def _refuse(experiment: Experiment) -> None:
    """Refuse what changes values that nobody computes here."""
    policy = experiment.policy
    held = any(request.held_tokens or request.prefix for request in experiment.requests)
    for name, value, refused in (
        ("policy.codec", policy.codec, policy.codec != "none"),
        ("policy.reuse", policy.reuse, policy.reuse),
        ("workload.grows", experiment.workload.grows, not experiment.workload.grows),
        ("a sliding window of model", "true", experiment.geometry.windows is not None),
        ("a prefix held by the decoding node", "true", held),
    ):
        if refused:
            raise SmartGenError(f"{name}={value} cannot be emulated with compute=model")


def random_prompt(seed: int, vocab_size: int, request_id: int, num_tokens: int) -> Int:
    """Tokens drawn uniformly, the same in every process."""
    rng = np.random.default_rng([seed, _PROMPT_STREAM, request_id])
    return rng.integers(vocab_size, size=num_tokens)


class ModelPrefillNode(EmuPrefillNode):
    """A prefill node whose pages hold what the model has computed."""

    def __init__(
        self, runtime: WaitingRuntime, experiment: Experiment, *rest: Any, compute: ModelCompute
    ) -> None:
        super().__init__(runtime, experiment, *rest)
        self._compute = compute
        self._running: dict[int, tuple[Forward, Attention | Logits]] = {}

    def fill(self, request_id: int, layer: int) -> None:
        """Write a layer's K and V into the pages, its keys into the metadata; go on to the next."""
        if layer == 0:
            self._begin(request_id)
        forward, waiting = self._running[request_id]
        assert isinstance(waiting, Attention) and waiting.layer == layer
        entries = _entries(waiting)[0]
        self._entries[request_id][layer] = entries
        if self._experiment.metadata_ratio:
            keys = entries[:, :, : entries.shape[2] // 2]
            self._metadata[request_id][layer] = keys.reshape(len(keys), -1)
        self._running[request_id] = forward, forward.advance(attend_prefill(waiting))

    def _begin(self, request_id: int) -> None:
        num_tokens = self._entries[request_id].shape[1]
        ids = torch.from_numpy(self._compute.prompt(request_id, num_tokens))[None]
        forward = self._compute.decoder.forward(ids, torch.arange(num_tokens)[None])
        self._running[request_id] = forward, forward.advance()

    def first_token(self, request_id: int) -> int:
        """The model's most likely token after the prompt."""
        super().first_token(request_id)
        _, end = self._running.pop(request_id)
        assert isinstance(end, Logits)
        token = int(end.logits[0, -1].argmax())
        self.recorder.token_ids.append(TokenId(request_id, 1, token))
        return token

    def release(self, request_id: int) -> None:
        """Give the pages back, and abandon a prefill that is under way."""
        if request_id in self._running:
            self._running.pop(request_id)[0].close()
        super().release(request_id)


class ModelDecodeNode(EmuDecodeNode):
    """A decoding node that selects, attends and appends what the model computes."""

    def __init__(
        self, runtime: WaitingRuntime, experiment: Experiment, *rest: Any, compute: ModelCompute
    ) -> None:
        super().__init__(runtime, experiment, *rest)
        self.compute = compute
        self.last_tokens: dict[int, int] = {}
        """The last token made of each slot's request."""

    def handed_over(self, slot: int, first_token: int) -> None:
        """Keep the token that the first step starts from."""
        self.last_tokens[slot] = first_token

    def check_metadata(self, slot: EmuSlot, layer: int) -> None:
        """Keys have no pattern; wrong ones select what the model would not."""

    def release(self, slot: int) -> None:
        """Give the pages back."""
        self.last_tokens.pop(slot, None)
        super().release(slot)

    def step(self) -> ModelStep:
        """Make an iteration."""
        return ModelStep(self)


class ModelStep(EmuStep):
    """An iteration of the model: its forward waits wherever a layer attends."""

    _node: ModelDecodeNode

    def __init__(self, node: ModelDecodeNode) -> None:
        super().__init__(node)
        self._decoder = node.compute.decoder
        self._ahead: Tensor | None = None  # [B, H, d], the next layer's queries before their time
        ids = [[node.last_tokens[slot.number]] for slot in self._slots]
        self._forward = self._decoder.forward(
            torch.tensor(ids), torch.tensor(self._newest)[:, None]
        )
        self._at = self._forward.advance()

    @property
    def _newest(self) -> list[int]:
        """Positions of the tokens that this iteration takes in: as many are cached before them."""
        counts = zip(self._slots, self._generated, strict=True)
        return [slot.request.prompt_tokens + new for slot, new in counts]

    def index(self, layer: int) -> list[Int]:
        """Selected tokens of every row: all that are cached, or those that are attended most.

        All of layer 0 are brought for the next iteration, too; that is why a selector that looks
        ahead must load it whole.
        """
        rows: list[Int] = []
        for at, (slot, cached) in enumerate(zip(self._slots, self._newest, strict=True)):
            num_selected = int(slot.draw.selected_at(cached - slot.request.prompt_tokens)[layer])
            if num_selected >= cached:
                tokens = np.flatnonzero(slot.status[layer] != PADDED)
                rows += [tokens] * self._geometry.num_kv_heads
            else:
                rows += self._best(layer, at, num_selected)
        return rows

    def _best(self, layer: int, at: int, num_selected: int) -> list[Int]:
        """The tokens of each KV head to which the layer's queries attend most."""
        waiting = self._waiting(layer)
        query = waiting.q[:, :, 0] if self._ahead is None else self._ahead
        keys = self._keys(self._slots[at], layer, self._newest[at])
        weights = weigh(query[at], torch.from_numpy(keys), waiting.scale)
        best = weights.topk(num_selected, dim=-1).indices.sort(dim=-1).values
        return list(best.numpy())

    def _keys(self, slot: EmuSlot, layer: int, num_cached: int) -> NDArray[np.float32]:
        """All keys of a layer: the prompt's from the metadata, later ones from the pool."""
        heads, prompt_tokens = self._geometry.num_kv_heads, slot.request.prompt_tokens
        sent = self._node.metadata[layer, slot.pages[:prompt_tokens]].view(np.float32)
        prompt = sent.reshape(prompt_tokens, heads, -1)
        pages = slot.pages[prompt_tokens:num_cached]
        generated = self._node.pool.entries[layer, pages].view(np.float32)
        keys = np.concatenate([prompt, generated[:, :, : prompt.shape[2]]])
        return np.ascontiguousarray(keys.transpose(1, 0, 2))  # [Hkv, n, d]

    def use_rows(self, layer: int) -> None:
        """Attend over what was brought and the newest entry, keep that, go on to the next layer."""
        waiting, following = self._waiting(layer), layer + 1
        gathered = self._gather(layer)
        self._ahead = None
        if self._node.experiment.cost.looks_ahead and following < self._geometry.num_layers:
            self._ahead = self._decoder.project_q(self._forward, following, waiting.x)[:, :, 0]
        self._append(layer, _entries(waiting)[:, 0])
        self._at = self._forward.advance(attend_rows(waiting, *gathered))

    def _gather(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """K and V of all attended rows, [B, Hkv, k, d], and which of them count, [B, Hkv, k]."""
        rows = list(self.attended(layer))
        places = {slot.number: at for at, slot in enumerate(self._slots)}
        shape = (len(self._slots), self._geometry.num_kv_heads, max(_lengths(rows), default=0))
        entries = np.zeros((*shape, self._geometry.row_bytes), dtype=np.uint8)
        valid = np.zeros(shape, dtype=np.bool_)
        for row in rows:
            at = places[row.slot.number], row.head, slice(len(row.tokens))
            entries[at], valid[at] = row.entries, True
        values = torch.from_numpy(entries.view(np.float32))
        width = values.shape[-1] // 2
        return values[..., :width], values[..., width:], torch.from_numpy(valid)

    def _append(self, layer: int, entries: Bytes) -> None:
        """Append the newest entries, [B, Hkv, row_bytes]; they are local at once."""
        for slot, token, entry in zip(self._slots, self._newest, entries, strict=True):
            self._node.pool.entries[layer, slot.pages[token]] = entry
            slot.status[layer, token] = LOCAL

    def append_tokens(self) -> None:
        """Take the most likely tokens; their entries are made by the next iteration."""
        assert isinstance(self._at, Logits)
        tokens: Sequence[int] = self._at.logits[:, -1].argmax(dim=-1).tolist()
        for slot, token in zip(self._slots, tokens, strict=True):
            self._node.last_tokens[slot.number] = token
            if slot.awaits_token:
                number = self._batch.step_of(slot) + 1
                made = TokenId(slot.request.request_id, number, token)
                self._node.recorder.token_ids.append(made)

    def _waiting(self, layer: int) -> Attention:
        waiting = self._at
        if not isinstance(waiting, Attention) or waiting.layer != layer:
            raise RuntimeError(f"the model does not wait for layer {layer}'s attention")
        return waiting


def _entries(waiting: Attention) -> Bytes:
    """New entries as they lie in pages, [B, T, Hkv, row_bytes]: a row is K, then V."""
    rows = torch.cat([waiting.k, waiting.v], dim=-1).transpose(1, 2).contiguous()
    return rows.numpy().view(np.uint8)


def _lengths(rows: Sequence[Any]) -> list[int]:
    return [len(row.tokens) for row in rows]
