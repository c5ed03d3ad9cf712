"""The suspended forward is the library's, whatever attends; mistakes in attending are seen."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

from smartgen.emu.runner import (  # noqa: E402
    Attention,
    Decoder,
    Logits,
    attend_prefill,
    attend_rows,
)
from smartgen.errors import SmartGenError  # noqa: E402

PROMPTS = (5, 13, 26)
ENOUGH = 1e-4
"""Of the logits' standard deviation: float32 sums in another order."""


def ids_of(length, vocab=97):
    return (torch.arange(length) * 31 + length)[None] % vocab


def prefill(decoder, ids):
    """Logits, and K and V of every layer, [Hkv, T, d]."""
    forward, kept = decoder.forward(ids, torch.arange(ids.shape[1])[None]), []
    at = forward.advance()
    while isinstance(at, Attention):
        kept.append((at.k[0], at.v[0]))
        at = forward.advance(attend_prefill(at))
    return at.logits[0, -1], kept


def padded(rows):
    """Rows of several requests, [B, Hkv, k, d], and which are there."""
    most = max(row.shape[1] for row in rows)
    out = torch.zeros(len(rows), rows[0].shape[0], most, rows[0].shape[2])
    valid = torch.zeros(out.shape[:3], dtype=torch.bool)
    for at, row in enumerate(rows):
        out[at, :, : row.shape[1]], valid[at, :, : row.shape[1]] = row, True
    return out, valid


class Batch:
    """Sequences of several lengths, decoded together over what choose selects."""

    def __init__(self, decoder, choose, shift=0):
        self.decoder, self.choose, self.shift = decoder, choose, shift
        self.ids = [ids_of(length) for length in PROMPTS]
        self.logits = [[] for _ in PROMPTS]
        self.cache = []
        for at, ids in enumerate(self.ids):
            logits, kept = prefill(decoder, ids)
            self.cache.append(kept)
            self.take(at, logits)

    def take(self, at, logits):
        self.logits[at].append(logits)
        self.ids[at] = torch.cat([self.ids[at], logits.argmax()[None, None]], dim=1)

    def step(self):
        new = torch.stack([ids[0, -1:] for ids in self.ids])
        positions = torch.tensor([[ids.shape[1] - 1 + self.shift] for ids in self.ids])
        forward = self.decoder.forward(new, positions)
        at = forward.advance()
        while isinstance(at, Attention):
            keys, values = [], []
            for row, kept in enumerate(self.cache):
                k, v = kept[at.layer]
                index = self.choose(row, at.layer, k.shape[1])[..., None].expand(-1, -1, k.shape[2])
                keys.append(k.gather(1, index))
                values.append(v.gather(1, index))
            (k_rows, valid), (v_rows, _) = padded(keys), padded(values)
            for row, kept in enumerate(self.cache):
                old = kept[at.layer]
                kept[at.layer] = tuple(
                    torch.cat([past, made[row]], dim=1)
                    for past, made in zip(old, (at.k, at.v), strict=True)
                )
            at = forward.advance(attend_rows(at, k_rows, v_rows, valid))
        for row in range(len(PROMPTS)):
            self.take(row, at.logits[row, -1])


def everything(row, layer, num_cached, heads=2):
    return torch.arange(num_cached).expand(heads, -1)


def four(row, layer, num_cached, heads=2):
    """Four entries of each head, the same whenever they are asked for."""
    rng = torch.Generator().manual_seed(1000 * row + 100 * layer + num_cached)
    return torch.stack([torch.randperm(num_cached, generator=rng)[:4] for _ in range(heads)])


def masks(choose, row, length, total, num_layers, groups):
    """[L, H, T, T]: prompts attend causally, later tokens themselves and what was chosen."""
    out = torch.full((num_layers, 2, total, total), -torch.inf)
    out[:, :, :length, :length] = torch.full((length, length), -torch.inf).triu(1)
    for layer in range(num_layers):
        for at in range(length, total):
            out[layer, :, at].scatter_(1, choose(row, layer, at), 0.0)
            out[layer, :, at, at] = 0.0
    return out.repeat_interleave(groups, dim=1)


def worst(batch, llama, masked, choose):
    """The greatest difference to the library's eager forward, over the logits' deviation."""
    difference = 0.0
    for row, (ids, length) in enumerate(zip(batch.ids, PROMPTS, strict=True)):
        seen = ids[:, :-1]
        mask = masks(choose, row, length, seen.shape[1], 3, 2)
        right = masked(llama, seen, mask)[length - 1 :]
        ours = torch.stack(batch.logits[row])
        assert torch.equal(ours.argmax(-1), ids[0, length:])
        difference = max(difference, float((ours - right).abs().max() / right.std()))
    return difference


@pytest.fixture(scope="module")
def decoder(llama):
    return Decoder(llama(3))


@pytest.fixture
def run(decoder):
    def decode(choose, shift=0):
        batch = Batch(decoder, choose, shift)
        for _ in range(8):
            batch.step()
        return batch

    return decode


def test_with_everything_selected_it_is_the_librarys_forward(run, llama, masked):
    assert worst(run(everything), llama(3), masked, everything) < ENOUGH


def test_with_everything_selected_it_makes_the_tokens_that_generate_makes(run, llama):
    batch, model = run(everything), llama(3)
    for ids, length in zip(batch.ids, PROMPTS, strict=True):
        prompt = ids[:, :length]
        seen = torch.ones_like(prompt)
        made = model.generate(
            prompt, attention_mask=seen, max_new_tokens=9, do_sample=False, pad_token_id=0
        )
        assert torch.equal(made, ids)


def test_an_explicit_selection_is_the_librarys_forward_under_an_explicit_mask(run, llama, masked):
    batch = run(four)
    assert worst(batch, llama(3), masked, four) < ENOUGH
    assert worst(batch, llama(3), masked, everything) > 1000 * ENOUGH  # it does matter


def test_entries_may_come_in_any_order(run):
    def reversed_four(*place):
        return four(*place).flip(1)

    for ours, other in zip(run(four).logits, run(reversed_four).logits, strict=True):
        assert torch.stack(ours).sub(torch.stack(other)).abs().max() < ENOUGH


@pytest.mark.parametrize(
    ("choose", "shift"),
    [
        (lambda *place: torch.cat([four(*place), four(*place)[:, :1]], 1), 0),
        (lambda *place: four(*place).flip(0), 0),
        (lambda *place: (four(*place) + 1) % place[2], 0),
        (four, 1),
    ],
    ids=["a row too many", "a permuted head", "other entries", "a wrong position"],
)
def test_a_mistake_in_attending_is_found(run, llama, masked, choose, shift):
    batch = run(choose, shift)
    assert worst(batch, llama(3), masked, four) > 100 * ENOUGH


def test_a_query_looked_ahead_from_a_layers_own_input_is_its_own_query(decoder):
    ids = ids_of(7)
    forward = decoder.forward(ids, torch.arange(7)[None])
    at = forward.advance()
    while isinstance(at, Attention):
        assert torch.equal(decoder.project_q(forward, at.layer, at.x), at.q)
        following = (at.layer + 1) % 3
        assert not torch.allclose(decoder.project_q(forward, following, at.x), at.q)
        at = forward.advance(attend_prefill(at))
    assert isinstance(at, Logits)


def test_forwards_may_be_interleaved_and_abandoned(decoder):
    right, _ = prefill(decoder, ids_of(5))
    left = decoder.forward(ids_of(5), torch.arange(5)[None])
    other = decoder.forward(ids_of(13), torch.arange(13)[None])
    at, _ = left.advance(), other.advance()
    while isinstance(at, Attention):
        at = left.advance(attend_prefill(at))
    other.close()
    other.close()
    assert torch.equal(at.logits[0, -1], right)


def test_an_error_in_the_forward_is_raised_where_it_is_advanced(decoder):
    forward = decoder.forward(ids_of(5), torch.arange(5)[None])
    forward.advance()
    with pytest.raises(RuntimeError):
        forward.advance(torch.zeros(1, 2, 3, 4))


def test_a_prepared_model_refuses_to_be_called_plainly(llama):
    model = llama(3)
    Decoder(model)
    with pytest.raises(RuntimeError, match="suspended at its attentions"):
        model(input_ids=ids_of(5))


# -- what is refused


def test_a_fault_in_attention_is_found_when_the_model_is_loaded(llama, monkeypatch):
    import smartgen.emu.runner.decoder as module

    def wrong(at):
        return attend_prefill(at) * 1.01

    monkeypatch.setattr(module, "attend_prefill", wrong)
    with pytest.raises(SmartGenError, match="computes something else"):
        Decoder(llama(3))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"sliding_window": 8}, "takes sliding_window"),
        ({"s_aux": 1}, "takes s_aux"),
        ({"dropout": 0.1}, "takes dropout"),
    ],
)
def test_an_argument_of_attention_that_is_not_known_is_refused(llama, named, message):
    from smartgen.emu.runner import decoder as module

    attention = module._attention
    q = torch.zeros(1, 4, 2, 8)
    suspended = module._Suspended(partial(attention, torch.nn.Linear(1, 1), q, q, q, None, **named))
    with pytest.raises(SmartGenError, match=message):
        suspended.resume()


def test_rotations_that_depend_on_the_longest_sequence_are_refused(llama):
    model = llama(3, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(SmartGenError, match="has dynamic rotations"):
        Decoder(model)


def test_a_model_that_does_not_attend_once_in_each_layer_is_refused(llama):
    model = llama(3)
    model.model.layers[1] = model.model.layers[0]
    with pytest.raises(SmartGenError, match="attends 3 times"):
        Decoder(model)
