"""The protocols move a real model's K and V: its tokens are those of the library's own forward.

Reference: Hugging Face's eager forward over each finished sequence, under a mask that hides in
every layer and KV head what the recorded index did not select.
"""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

from smartgen.emu.clock import run as run_virtually  # noqa: E402
from smartgen.emu.model_nodes import (  # noqa: E402
    ModelCompute,
    ModelDecodeNode,
    ModelPrefillNode,
    ModelStep,
    random_prompt,
)
from smartgen.emu.runner import Attention, Decoder  # noqa: E402
from smartgen.emu.runtime import EmuRuntime  # noqa: E402
from smartgen.emu.step import Reply  # noqa: E402
from smartgen.errors import SmartGenError  # noqa: E402
from smartgen.metrics.records import merge  # noqa: E402
from smartgen.metrics.tokens import token_rows  # noqa: E402
from smartgen.nodes.world import World  # noqa: E402
from smartgen.workload import Request  # noqa: E402

LAYERS, HEADS, VOCAB, TOKENS = 4, 2, 97, 16
ENOUGH = 1e-4
"""Of the logits' standard deviation; the library differs from itself by as much as we do."""

MODEL = (
    f"model.num_hidden_layers={LAYERS}",
    "model.hidden_size=64",
    "model.intermediate_size=128",
    f"model.vocab_size={VOCAB}",
    "model.torch_dtype=float32",
    f"workload.output_tokens={TOKENS}",
    "selector.metadata_ratio=0.5",
)


class RecordingStep(ModelStep):
    """Notes what the index says, by request, position of the query and layer; and the logits."""

    def index(self, layer):
        rows = super().index(layer)
        for at, (slot, position) in enumerate(zip(self._slots, self._newest, strict=True)):
            own = rows[at * HEADS : (at + 1) * HEADS]
            ahead = int(len(own[0]) > position)  # layer 0, brought for the next iteration
            key = slot.request.request_id, position + ahead, layer
            self._node.indices[key] = own
        return rows

    def append_tokens(self):
        for slot, position, logits in zip(self._slots, self._newest, self._at.logits, strict=True):
            self._node.logits[slot.request.request_id, position] = logits[-1]
        super().append_tokens()


class RecordingNode(ModelDecodeNode):
    steps = RecordingStep

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.indices, self.logits = {}, {}

    def step(self):
        return self.steps(self)


class Decoded:
    """A run: what finished, [P + TOKENS] by request, and what the decoding node recorded."""

    def __init__(self, experiment, world):
        self.experiment, (node,) = experiment, world.decode_nodes
        self.indices, self.logits = node.indices, node.logits
        self.outcome = world.outcome()
        merged = merge(list(self.outcome.recorders))
        self.iterations = merged.iterations
        made = {}
        for recorder in self.outcome.recorders:
            for row in recorder.token_ids:
                made.setdefault(row.request_id, {})[row.token] = row.token_id
        self.sequences = {}
        for request in experiment.requests:
            own = made.get(request.request_id, {})
            if merged.requests[request.request_id].status != "finished":
                continue
            assert sorted(own) == list(range(1, TOKENS + 1))
            prompt = random_prompt(0, VOCAB, request.request_id, request.prompt_tokens)
            self.sequences[request.request_id] = [*prompt.tolist(), *map(own.get, sorted(own))]


@pytest.fixture(scope="module")
def compute(llama):
    torch.set_num_threads(1)
    return ModelCompute(Decoder(llama(LAYERS)), partial(random_prompt, 0, VOCAB))


@pytest.fixture
def decode(tiny, compute):
    """Runs the tiny workload with the model's values."""

    def run(*overrides, node=RecordingNode, of=lambda experiment: experiment):
        experiment = of(tiny(*MODEL, *overrides))
        compute.check(experiment)
        worlds = []

        async def main():
            prefill = partial(ModelPrefillNode, compute=compute)
            world = World(experiment, EmuRuntime(), prefill, partial(node, compute=compute))
            await world.run()
            worlds.append(world)

        run_virtually(main())
        return Decoded(experiment, worlds[0])

    return run


def mask_of(decoded, request, total):
    """[L, H, T, T] for the library: what each position sees; nothing recorded is everything."""
    length, groups = request.prompt_tokens, 2
    mask = torch.full((total, total), -torch.inf).triu(1).repeat(LAYERS, HEADS, 1, 1)
    for (request_id, position, layer), rows in decoded.indices.items():
        if request_id == request.request_id and position < total:
            assert position >= length
            for head, tokens in enumerate(rows):
                mask[layer, head, position, :position] = -torch.inf
                mask[layer, head, position, torch.from_numpy(tokens)] = 0.0
    return mask.repeat_interleave(groups, dim=1)


def worst(decoded, model, masked):
    """The greatest difference of logits over their deviation, and whether all tokens are right."""
    difference, same = 0.0, True
    for request in decoded.experiment.requests:
        if request.request_id not in decoded.sequences:
            continue
        sequence = decoded.sequences[request.request_id]
        ids, length = torch.tensor(sequence[:-1])[None], request.prompt_tokens
        right = masked(model, ids, mask_of(decoded, request, ids.shape[1]))
        same = same and right[length - 1 :].argmax(-1).tolist() == sequence[length:]
        for position in range(length, ids.shape[1]):
            ours = decoded.logits[request.request_id, position]
            difference = max(
                difference, float((ours - right[position]).abs().max() / right[length:].std())
            )
    return difference, same


POLICIES = ("smartgen", "full", "partial", "on_demand_only")
SELECTORS = {
    "in turn": ("selector=hata", "selector.dense_layers=1"),
    "looking ahead": ("selector=infinigen", "selector.dense_layers=1"),
}
SLOW = "network.gbps=0.01"


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_and_logits_are_the_librarys_under_a_mask_of_what_was_selected(
    decode, llama, masked, policy, selector
):
    decoded = decode(f"policy={policy}", *SELECTORS[selector], SLOW)
    difference, same = worst(decoded, llama(LAYERS), masked)
    assert same
    assert difference < ENOUGH
    if policy != "full":  # hiding what was not selected matters, or nothing would be shown
        decoded.indices = {}
        assert worst(decoded, llama(LAYERS), masked)[0] > 1000 * ENOUGH


@pytest.mark.parametrize("selector", SELECTORS)
def test_much_is_fetched_at_first_and_nothing_in_the_end(decode, selector):
    decoded = decode("policy=smartgen", *SELECTORS[selector], SLOW)
    fetched = [row.remote_entries for row in decoded.iterations]
    assert fetched[0] > 100
    assert sorted(fetched, reverse=True) == fetched
    assert fetched[-1] == 0


@pytest.mark.parametrize("policy", ["smartgen", "full", "on_demand_only"])
def test_with_everything_selected_the_tokens_are_those_that_generate_makes(decode, llama, policy):
    decoded, model = decode(f"policy={policy}", "selector=all", SLOW), llama(LAYERS)
    for request in decoded.experiment.requests:
        ids = torch.tensor(decoded.sequences[request.request_id])[None]
        prompt = ids[:, : request.prompt_tokens]
        made = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        assert torch.equal(made, ids)


def kept_over_left_out(decoded, decoder, request):
    """Of every index: the least that a selected entry weighs over the most one left out does.

    Weights come from a forward over the finished sequence whose attention is masked. An index has
    as many entries as the selector's share says.
    """
    ids = torch.tensor(decoded.sequences[request.request_id][:-1])[None]
    looks_ahead, length = decoded.experiment.selector.looks_ahead, request.prompt_tokens
    draw = decoded.experiment.draw(request.request_id, length)
    mask = mask_of(decoded, request, ids.shape[1])
    forward = decoder.forward(ids, torch.arange(ids.shape[1])[None])
    at, queries = forward.advance(), None
    while isinstance(at, Attention):
        queries = at.q if queries is None or not looks_ahead else queries
        for position in range(length, ids.shape[1]):
            own = decoded.indices.get((request.request_id, position, at.layer))
            for head in range(HEADS if own is not None else 0):
                group = queries[0, 2 * head : 2 * head + 2, position]
                scores = group @ at.k[0, head, :position].T * at.scale
                weights = scores.softmax(-1).sum(0)
                kept = torch.zeros(position, dtype=torch.bool)
                kept[own[head]] = True
                share = draw.selected_at(position - length)[at.layer]
                assert kept.sum() == len(own[head]) == share
                yield 1.0 if kept.all() else float(weights[kept].min() / weights[~kept].max())
        if at.layer + 1 < LAYERS:
            queries = decoder.project_q(forward, at.layer + 1, at.x)
        k, v = (part.repeat_interleave(2, 1) for part in (at.k, at.v))
        out = torch.nn.functional.scaled_dot_product_attention(
            at.q, k, v, mask[None, at.layer], scale=at.scale
        )
        at = forward.advance(out.transpose(1, 2))


@pytest.fixture
def ratios(decode, compute):
    def of(selector):
        decoded = decode("policy=smartgen", *SELECTORS[selector], SLOW)
        requests = decoded.experiment.requests
        return [
            ratio for r in requests for ratio in kept_over_left_out(decoded, compute.decoder, r)
        ]

    return of


@pytest.mark.parametrize("selector", SELECTORS)
def test_what_is_selected_is_what_the_queries_attend_most_of_all_keys(ratios, selector):
    found = ratios(selector)
    # in turn every layer of every step has an index; ahead layer 0 of the first step needs none
    most = 4 * (TOKENS - 1) * LAYERS * HEADS
    assert most - 4 * HEADS <= len(found) <= most
    assert min(found) > 1 - ENOUGH


def test_keys_that_arrive_wrong_select_something_else(ratios, monkeypatch):
    store = ModelDecodeNode.store

    def damaged(node, slot, write, blocks):
        store(node, slot, write, blocks)
        if write.parcel.layer == 2:
            keys = node.metadata[2].view(np.float32)
            keys[slot.pages] = -keys[slot.pages]

    monkeypatch.setattr(ModelDecodeNode, "store", damaged)
    assert min(ratios("in turn")) < 0.5


# -- mistakes are seen


class OneRowMore(RecordingStep):
    def attended(self, layer):
        for row in super().attended(layer):
            yield row._replace(
                tokens=np.append(row.tokens, row.tokens[:1]),
                entries=np.concatenate([row.entries, row.entries[:1]]),
            )


class PermutedHeads(RecordingStep):
    def _gather(self, layer):
        keys, values, valid = super()._gather(layer)
        return keys.flip(1), values.flip(1), valid.flip(1)


class NewestForgotten(RecordingStep):
    def _append(self, layer, entries):
        super()._append(layer, 0 * entries)


class WrongPosition(RecordingStep):
    def __init__(self, node):
        super().__init__(node)
        ids = [[node.last_tokens[slot.number]] for slot in self._slots]
        positions = torch.tensor(self._newest)[:, None] + 1
        self._forward = self._decoder.forward(torch.tensor(ids), positions)
        self._at = self._forward.advance()


@pytest.mark.parametrize("steps", [OneRowMore, PermutedHeads, NewestForgotten, WrongPosition])
def test_a_mistake_of_the_decoding_node_is_found(decode, llama, masked, steps):
    node = type("Mistaken", (RecordingNode,), {"steps": steps})
    decoded = decode("policy=smartgen", *SELECTORS["in turn"], SLOW, node=node)
    assert worst(decoded, llama(LAYERS), masked)[0] > 100 * ENOUGH


def test_fetched_rows_in_the_wrong_order_are_found(decode, llama, masked, monkeypatch):
    receive = Reply.receive
    monkeypatch.setattr(
        Reply, "receive", lambda reply, slot, rows: receive(reply, slot, rows[::-1])
    )
    decoded = decode("policy=smartgen", *SELECTORS["in turn"], SLOW)
    assert worst(decoded, llama(LAYERS), masked)[0] > 100 * ENOUGH


# -- requests that come and go


@pytest.mark.parametrize("selector", SELECTORS)
def test_requests_that_join_leave_and_fail_do_not_touch_the_tokens_of_others(
    decode, ask, llama, masked, selector
):
    comes = {0.0: 180, 0.04: 90, 0.08: 61, 0.12: 97, 0.3: 40}
    given = [
        Request(i, arrival_s, length, 0, TOKENS, abort_s=0.37 if i == 1 else None)
        for i, (arrival_s, length) in enumerate(comes.items())
    ]
    decoded = decode(
        "policy=smartgen",
        *SELECTORS[selector],
        "network.gbps=0.02",
        "cluster.lost_s=[[2, 0.34]]",
        of=lambda experiment: ask(experiment, given),
    )
    merged = merge(list(decoded.outcome.recorders))
    ends = {row.status for row in merged.requests.values() if row.joined_s is not None}
    assert ends == {"finished", "aborted", "failed"}
    assert len({row.batch_size for row in decoded.iterations}) > 1
    assert all(row.token_id is not None for row in merged.tokens)
    difference, same = worst(decoded, llama(LAYERS), masked)
    assert len(decoded.sequences) == 3
    assert same
    assert difference < ENOUGH


def test_the_tokens_table_names_the_tokens(decode):
    decoded = decode("policy=smartgen", *SELECTORS["in turn"], SLOW)
    rows = token_rows(merge(list(decoded.outcome.recorders))).to_pylist()
    for request in decoded.experiment.requests:
        own = [row["token_id"] for row in rows if row["request_id"] == request.request_id]
        assert own == decoded.sequences[request.request_id][request.prompt_tokens :]


# -- what is refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_hidden_layers=3", "model.num_hidden_layers=3 must be 4"),
        ("model.num_key_value_heads=4", "model.num_key_value_heads=4 must be 2"),
        ("model.head_dim=8", "values in a row of model=16 must be 32"),
        ("model.torch_dtype=bfloat16", "bytes of a value of model=2 must be 4"),
        ("selector.metadata_ratio=0.1", "selector.metadata_ratio=0.1 must be 0.5"),
        ("selector.dense_layers=0", "selector.dense_layers=0 must be at least 1"),
        ("policy=hack", "policy.codec=hack cannot be emulated"),
        ("policy.reuse=true", "policy.reuse=True cannot be emulated"),
        ("workload.grows=false", "workload.grows=False cannot be emulated"),
    ],
)
def test_what_the_model_cannot_compute_is_refused(tiny, compute, override, message):
    compute.check(tiny(*MODEL))
    with pytest.raises(SmartGenError, match=message):
        compute.check(tiny(*MODEL, override))
