"""Each role's arena, how large and what lies where; both roles derive both from the experiment."""

from smartgen.emu.nodes import pool_tokens
from smartgen.emu.pool import metadata_token_bytes
from smartgen.emu.processes.arena import Layout
from smartgen.emu.settings import Settings
from smartgen.experiment import Experiment

BUFFERS = 3
"""Layers whose rows are in GPU memory at a time: one attended, one filled, one to spare."""


def num_buffers(experiment: Experiment, settings: Settings) -> int:
    """Buffers for gathered rows: those, and one to stage the replies of each peer, if need be."""
    return BUFFERS + (experiment.cluster.prefill_nodes if settings.lane == "staging" else 0)


def decode_layout(experiment: Experiment, settings: Settings) -> Layout:
    """The decoding process's arena."""
    moved = settings.moved(experiment.geometry)
    longest = max(r.prompt_tokens + r.output_tokens for r in experiment.requests)
    batch = experiment.cluster.decode_batch or len(experiment.requests)
    buffer = batch * moved.num_kv_heads * (longest + 1) * moved.row_bytes
    return Layout(
        moved,
        pool_tokens(experiment),
        metadata_token_bytes(moved, experiment.metadata_ratio),
        num_buffers(experiment, settings) * buffer if experiment.policy.selects else 0,
    )


def staging_at(layout: Layout, experiment: Experiment, settings: Settings, peer: int) -> int:
    """Where a peer's staged replies begin in the arena."""
    buffer = layout.gather_bytes // num_buffers(experiment, settings)
    return layout.gather_at + (BUFFERS + peer) * buffer


def prefill_layout(experiment: Experiment, settings: Settings) -> Layout:
    """A prefill process's arena: every prompt of the run has rows of its own."""
    moved = settings.moved(experiment.geometry)
    return Layout(
        moved,
        sum(request.prompt_tokens for request in experiment.requests),
        metadata_token_bytes(moved, experiment.metadata_ratio),
    )
