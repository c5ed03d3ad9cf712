"""The order in which a request's blocks are pushed: a permutation of layer-major ids."""

import numpy as np
from numpy.typing import NDArray

from smartgen.kv import Geometry
from smartgen.kv.geometry import Int
from smartgen.policy.policy import Policy

SINK_RATIO = 0.01
"""Share of the prompt StreamingLLM keeps as attention sinks (a guess)."""


def order_blocks(
    policy: Policy,
    geometry: Geometry,
    importance: NDArray[np.float64],
    rng: np.random.Generator,
) -> Int:
    """Return every block id (layer * M + block) once, the first to be pushed first.

    importance has shape [L, M]: the profile for ``profile``, this request's own frequencies for
    ``optimal``; other orders ignore it. Ties go to the lower layer, then the lower block.
    """
    layers, blocks = geometry.num_layers, geometry.blocks_per_layer
    ids = np.arange(geometry.num_blocks, dtype=np.int64)
    layer, block = ids // blocks, ids % blocks
    match policy.order:
        case "profile" | "optimal":
            order = np.argsort(-importance.reshape(-1), kind="stable")
        case "random":
            order = rng.permutation(ids)
        case "streaming_llm":
            is_sink = block < SINK_RATIO * blocks
            recency = np.where(is_sink, block, 2 * blocks - block)
            order = np.lexsort((layer, recency))
        case "even":
            # protected layers are sent whole, so only the others take part in the even spread
            order = np.lexsort((layer, block))
        case _:  # sequential
            order = ids
    protected = layer[order] < min(policy.protect_layers, layers)
    return np.concatenate([np.sort(order[protected]), order[~protected]])
