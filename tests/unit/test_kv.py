import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgen.errors import SmartGenError
from smartgen.kv import LOCAL, PADDED, REMOTE, BlockMask, Geometry, PrefixCache, split_index


@given(st.integers(0, 5000), st.integers(1, 1000))
def test_blocks_cover_every_token_once_and_differ_by_at_most_one(tokens, blocks):
    geometry = Geometry(2, 2, 4, 2, blocks)
    bounds = geometry.bounds(tokens)
    sizes = geometry.sizes(tokens).reshape(2, blocks)
    assert (bounds[:, 0] == 0).all() and (bounds[:, -1] == tokens).all()
    assert (sizes == np.diff(bounds, axis=1)).all() and (sizes[0] == sizes[1]).all()
    assert sizes[0].sum() == tokens and sizes.max() - sizes.min() <= 1
    assert geometry.entries(tokens) == 2 * tokens


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 400))
def test_a_windows_blocks_cover_the_last_tokens_of_the_window_once(tokens, blocks, window):
    geometry = Geometry(2, 2, 4, 2, blocks, (None, window), window_only=True)
    kept = min(tokens, window)
    bounds = geometry.bounds(tokens)
    assert bounds[1, 0] == tokens - kept and (bounds[:, -1] == tokens).all()
    sizes = geometry.sizes(tokens).reshape(2, blocks)
    assert (sizes == np.diff(bounds, axis=1)).all()
    assert sizes.sum(axis=1).tolist() == geometry.layer_tokens(tokens).tolist() == [tokens, kept]
    assert sizes[1].max() - sizes[1].min() <= 1 and geometry.entries(tokens) == tokens + kept
    assert (geometry.reached_sizes(tokens) == geometry.sizes(tokens)).all()


def test_a_window_reaches_the_ends_of_blocks_that_are_cached_whole():
    """Ten tokens in blocks of 2, 3, 2, 3; the last four lie in the last two."""
    geometry = Geometry(2, 1, 1, 2, 4, (4, None))
    assert geometry.bounds(10).tolist() == [[0, 2, 5, 7, 10]] * 2
    assert geometry.sizes(10).tolist() == [2, 3, 2, 3] * 2 and geometry.entries(10) == 20
    assert geometry.reached_sizes(10).tolist() == [0, 0, 1, 3, 2, 3, 2, 3]
    assert geometry.reach(10).tolist() == [4, 10] and geometry.reach(3).tolist() == [3, 3]
    only = Geometry(2, 1, 1, 2, 4, (4, None), window_only=True)
    assert only.bounds(10).tolist() == [[6, 7, 8, 9, 10], [0, 2, 5, 7, 10]]
    assert only.sizes(10).tolist() == [1, 1, 1, 1, 2, 3, 2, 3] and only.entries(10) == 14


def test_what_a_geometry_hands_out_cannot_be_changed():
    geometry = Geometry(2, 1, 1, 2, 4)
    for shared in (geometry.sizes(10), geometry.bounds(10), geometry.reached_sizes(10)):
        with pytest.raises(ValueError, match="read-only"):
            shared[0] = 1


def test_qwen3_14b_has_163840_bytes_a_token_over_all_layers():
    geometry = Geometry(num_layers=40, num_kv_heads=8, row_values=256)
    assert geometry.entry_bytes == 4096 and geometry.row_bytes == 512
    assert geometry.num_layers * geometry.entry_bytes == 163_840


def test_the_masks_of_64k_tokens_weigh_two_and_a_half_mib():
    assert 40 * 64 * 1024 == 2.5 * 2**20  # one byte a token and layer


def test_a_geometry_of_no_layers_is_refused_by_name():
    with pytest.raises(SmartGenError, match="num_layers=0 must be an integer of 1 or more"):
        Geometry(0, 8, 128)


@st.composite
def indices_and_masks(draw):
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    tokens, k = draw(st.integers(1, 20)), draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    index = rng.integers(0, tokens, size=(batch * heads, k))
    mask = rng.choice([PADDED, LOCAL, REMOTE], size=(batch, tokens)).astype(np.int8)
    return index, mask, heads


@given(indices_and_masks())
def test_a_split_is_a_permutation_with_remote_entries_first_then_local_ones(case):
    index, mask, heads = case
    split = split_index(index, mask, heads)
    for row in range(len(index)):
        assert sorted(split.index[row]) == sorted(index[row])
        status = mask[row // heads][split.index[row]]
        remote, local = split.num_remote[row], split.num_local[row]
        assert (status[:remote] == REMOTE).all()
        assert (status[remote : remote + local] == LOCAL).all()
        assert (status[remote + local :] == PADDED).all()


def test_a_block_delivered_twice_is_noticed():
    mask = BlockMask(Geometry(3, 1, 1, 2, 4), np.arange(2, 12), dense_layers=1)
    mask.land(np.array([5, 6]))
    with pytest.raises(RuntimeError, match="delivered twice"):
        mask.land(np.array([6]))


def test_a_block_mask_counts_what_is_left_in_each_layer():
    mask = BlockMask(Geometry(3, 1, 1, 2, 4), np.arange(4, 12), dense_layers=1)
    mask.land(np.array([4, 8, 9]))
    assert mask.left.tolist() == [0, 3, 2] and mask.num_left == 5 and mask.sparse_ratio == 3 / 8


def test_what_a_prefix_cache_holds():
    cache = PrefixCache(capacity_tokens=12)
    assert cache.hit_tokens([1, 2], 4, 8) == 0
    cache.add([1, 2, 3], 4, 11)  # the last block is partial, and of no use to others
    assert cache.hit_tokens([1, 2, 3, 4], 4, 16) == 8
    assert cache.hit_tokens([1, 2, 3, 4], 4, 7) == 7
    cache.add([1, 5, 6], 4, 12)  # 2 is the least recently used, and goes
    assert cache.hit_tokens([1, 2], 4, 8) == 4
    assert cache.hit_tokens([1, 5, 6], 4, 12) == 12
    assert cache.held_tokens == 12


def test_a_prefix_cache_without_room_holds_nothing():
    cache = PrefixCache(capacity_tokens=0)
    cache.add([1], 4, 4)
    assert cache.hit_tokens([1], 4, 4) == 0
