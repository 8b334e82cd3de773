"""Paged attention against the softmax formula in float64 over the very tokens of each sequence."""

from __future__ import annotations

import pytest
import torch

from kernels.paged_attention import causal_bias, decode_attention, length_bias, prefill_attention, write_kv
from tests.kernels.tolerance import TOLERANCE, assert_close, relative_rms

DTYPES = sorted(TOLERANCE, key=str)
NUM_SLOTS = 200


def formula(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query row [num_heads, head_dim] over its context [context, num_kv_heads, head_dim], float64."""
    group = query.shape[0] // keys.shape[1]
    k, v = keys.double().repeat_interleave(group, 1), values.double().repeat_interleave(group, 1)
    scores = torch.einsum("hd,chd->hc", query.double(), k) / query.shape[1] ** 0.5
    return torch.einsum("hc,chd->hd", scores.softmax(-1), v)


def cache_with_poison(
    dtype: torch.dtype, kv_heads: int, dim: int, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys and values in `used` slots, NaN everywhere else but slot 0, the padding slot."""
    generator = torch.Generator().manual_seed(3)
    caches = []
    for _ in range(2):
        cache = torch.full((NUM_SLOTS, kv_heads, dim), float("nan"), dtype=dtype)
        cache[0] = 0
        write_kv(cache, torch.randn(len(used), kv_heads, dim, generator=generator).to(dtype), used)
        caches.append(cache)
    return caches[0], caches[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (5, 1, 10), (1, 1, 2)])
@pytest.mark.parametrize("lengths", [[1], [7, 1, 30], [16, 17, 15, 64]])
def test_decode_rows_see_their_own_context_and_nothing_else(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, lengths: list[int]
) -> None:
    free = 1 + torch.randperm(NUM_SLOTS - 1, generator=torch.Generator().manual_seed(1))
    own = list(torch.split(free[: sum(lengths)], lengths))
    keys, values = cache_with_poison(dtype, kv_heads, dim, torch.cat(own))
    query = torch.randn(len(lengths), heads, dim, generator=torch.Generator().manual_seed(2)).to(dtype)
    longest = max(lengths)
    padded = torch.stack([torch.nn.functional.pad(slots, (0, longest - len(slots))) for slots in own])
    out = decode_attention(query, keys, values, padded, length_bias(torch.tensor(lengths), longest, dtype))
    expected = [formula(query[i], keys[slots], values[slots]) for i, slots in enumerate(own)]
    assert_close(out, torch.stack(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (6, 2, 10)])
@pytest.mark.parametrize(("computed", "new"), [(0, 1), (0, 33), (17, 5), (1, 16)])
def test_a_chunk_sees_what_is_computed_and_itself_up_to_each_token(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, computed: int, new: int
) -> None:
    context = computed + new
    slots = 1 + torch.randperm(NUM_SLOTS - 1, generator=torch.Generator().manual_seed(1))[:context]
    keys, values = cache_with_poison(dtype, kv_heads, dim, slots)
    query = torch.randn(new, heads, dim, generator=torch.Generator().manual_seed(2)).to(dtype)
    out = prefill_attention(query, keys, values, slots, causal_bias(new, context, dtype))
    seen = [slots[: computed + i + 1] for i in range(new)]
    assert_close(out, torch.stack([formula(query[i], keys[s], values[s]) for i, s in enumerate(seen)]))


@pytest.mark.parametrize("window", [1, 3, 16, 100])
@pytest.mark.parametrize(("computed", "new"), [(0, 1), (0, 33), (17, 5), (1, 16)])
def test_a_chunk_s_token_sees_a_window_that_ends_with_itself(computed: int, new: int, window: int) -> None:
    context = computed + new
    slots = 1 + torch.randperm(NUM_SLOTS - 1, generator=torch.Generator().manual_seed(1))[:context]
    keys, values = cache_with_poison(torch.float32, 2, 10, slots)
    query = torch.randn(new, 6, 10, generator=torch.Generator().manual_seed(2))
    out = prefill_attention(query, keys, values, slots, causal_bias(new, context, torch.float32, window))
    ends = [computed + i + 1 for i in range(new)]
    seen = [slots[max(0, end - window) : end] for end in ends]
    assert_close(out, torch.stack([formula(query[i], keys[s], values[s]) for i, s in enumerate(seen)]))


def test_a_window_that_leaves_whole_blocks_of_the_library_s_kernel_dark_gives_numbers() -> None:
    """It takes 512 keys at a time; of the first ones the last token sees none."""
    slots = torch.arange(1300)
    generator = torch.Generator().manual_seed(4)
    keys, values = (torch.randn(1300, 1, 8, generator=generator) for _ in range(2))
    query = torch.randn(1300, 2, 8, generator=generator)
    out = prefill_attention(query, keys, values, slots, causal_bias(1300, 1300, torch.float32, 5))
    assert_close(out[-1:], formula(query[-1], keys[-5:], values[-5:]).unsqueeze(0))
    assert out.isfinite().all()


def test_a_mask_off_by_one_fails_the_table() -> None:
    slots = torch.arange(1, 9)
    keys, values = cache_with_poison(torch.float32, 1, 8, slots)
    query = torch.randn(1, 2, 8, generator=torch.Generator().manual_seed(2))
    short = length_bias(torch.tensor([7]), 8, torch.float32)
    wrong = decode_attention(query, keys, values, slots.unsqueeze(0), short)
    expected = formula(query[0], keys[slots], values[slots]).unsqueeze(0)
    assert relative_rms(wrong, expected) > TOLERANCE[torch.float32]
    for window in (3, 5):
        wide = prefill_attention(query, keys, values, slots, causal_bias(1, 8, torch.float32, window))
        narrow = formula(query[0], keys[slots[-4:]], values[slots[-4:]]).unsqueeze(0)
        assert relative_rms(wide, narrow) > TOLERANCE[torch.float32]


def test_write_kv_changes_only_its_slots() -> None:
    cache = torch.zeros(6, 1, 2)
    write_kv(cache, torch.ones(2, 1, 2), torch.tensor([4, 1]))
    assert cache.sum(dim=(1, 2)).tolist() == [0, 2, 0, 0, 2, 0]
