"""What a suspended layer waits for: attention over given rows, or over a whole prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from smartgen.emu.runner.decoder import Attention


def attend_prefill(waiting: Attention) -> Tensor:
    """Causal attention of all new tokens over themselves, [B, T, H, d]."""
    groups = waiting.q.shape[1] // waiting.k.shape[1]
    keys, values = (new.repeat_interleave(groups, dim=1) for new in (waiting.k, waiting.v))
    with torch.inference_mode():
        attended = torch.nn.functional.scaled_dot_product_attention(
            waiting.q, keys, values, is_causal=True, scale=waiting.scale
        )
    return attended.transpose(1, 2)


def attend_rows(waiting: Attention, keys: Tensor, values: Tensor, valid: Tensor) -> Tensor:
    """Attention of one new token over given entries and its own, [B, 1, H, d].

    keys, values: [B, Hkv, k, d], each KV head's own entries in any order, the new token's not among
    them. valid [B, Hkv, k] says which of them count; the others may hold anything finite.
    """
    batch, heads, _, width = waiting.q.shape
    kv_heads = waiting.k.shape[1]
    with torch.inference_mode():
        query = waiting.q.reshape(batch, kv_heads, heads // kv_heads, width)
        keys = torch.cat([keys, waiting.k], dim=2)
        values = torch.cat([values, waiting.v], dim=2)
        counts = torch.nn.functional.pad(valid, (0, 1), value=True)[:, :, None]  # over query heads
        scores = (query @ keys.transpose(2, 3)) * waiting.scale
        weights = torch.softmax(scores.masked_fill(~counts, -torch.inf), dim=-1)
        return (weights @ values).reshape(batch, 1, heads, -1)


def weigh(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    """How much each KV head's query heads attend to each key, added up: [Hkv, n].

    query [H, d], keys [Hkv, n, d]. What selects exactly takes the greatest of these.
    """
    with torch.inference_mode():
        grouped = query.reshape(len(keys), -1, query.shape[-1])
        scores = (grouped @ keys.transpose(1, 2)) * scale
        return torch.softmax(scores, dim=-1).sum(dim=1)
