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
    sizes = geometry.block_entries(tokens)
    assert bounds[0] == 0 and bounds[-1] == tokens and len(sizes) == blocks
    assert sizes.sum() == tokens and sizes.max() - sizes.min() <= 1


def test_qwen3_14b_has_163840_bytes_a_token_over_all_layers():
    geometry = Geometry(num_layers=40, num_kv_heads=8, head_dim=128)
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
