"""Attention over a paged KV cache: keys and values live in slots, a block table says which slots are a sequence's.

A cache of one layer is [num_slots, num_kv_heads, head_dim]; slot = block * block_size + offset. Two shapes of work come
in one step: decode rows (one new token each, any context) and prefill chunks (many new tokens of one sequence).
Grouped query heads are packed as extra query rows of their KV head, so that K and V are gathered once.

Source: Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention", 2023, section 4.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def write_kv(cache: torch.Tensor, new: torch.Tensor, slots: torch.Tensor) -> None:
    """Reference. Writes `new` [num_tokens, num_kv_heads, head_dim] into `cache` at `slots` [num_tokens], in place."""
    cache.index_copy_(0, slots, new)


def decode_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Reference for decode rows.

    `query` [num_rows, num_heads, head_dim]; `keys`, `values` one layer's cache; `slots` [num_rows, max_context], padded
    with any valid slot; `bias` [num_rows, 1, 1, max_context] in query's dtype, 0 within the context and -inf beyond.
    Returns [num_rows, num_heads, head_dim].
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    flat = slots.flatten()
    # [num_rows, num_kv_heads, max_context, head_dim]
    k = keys.index_select(0, flat).view(num_rows, -1, num_kv_heads, head_dim).transpose(1, 2)
    v = values.index_select(0, flat).view(num_rows, -1, num_kv_heads, head_dim).transpose(1, 2)
    q = query.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).reshape(num_rows, num_heads, head_dim)


def prefill_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Reference for one prefill chunk.

    `query` [num_tokens, num_heads, head_dim]; `slots` [context] with context >= num_tokens, the chunk's own last;
    `bias` [num_tokens, context] in query's dtype, from `causal_bias`. Returns [num_tokens, num_heads, head_dim].
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    k = keys.index_select(0, slots).transpose(0, 1).unsqueeze(1)  # [num_kv_heads, 1, context, head_dim]
    v = values.index_select(0, slots).transpose(0, 1).unsqueeze(1)
    q = query.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, tokens, dim]
    out = F.scaled_dot_product_attention(
        q, k.expand(-1, group, -1, -1), v.expand(-1, group, -1, -1), attn_mask=bias.expand(num_kv_heads, group, -1, -1)
    )
    return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)


def causal_bias(num_tokens: int, context: int, dtype: torch.dtype, window: int | None = None) -> torch.Tensor:
    """[num_tokens, context]: 0 where a chunk's token may look, -inf where not; the chunk is the context's end.

    With a `window` a token sees that many tokens at most, itself included.

    Source: Jiang et al., "Mistral 7B", 2023, section 2 (sliding window).
    """
    allowed = torch.ones(num_tokens, context, dtype=torch.bool).tril_(context - num_tokens)
    if window is not None:
        allowed.triu_(context - num_tokens - window + 1)
    return torch.zeros(num_tokens, context, dtype=dtype).masked_fill_(~allowed, float("-inf"))


def length_bias(lengths: torch.Tensor, max_context: int, dtype: torch.dtype) -> torch.Tensor:
    """[num_rows, 1, 1, max_context]: 0 within each row's length, -inf beyond. `lengths` [num_rows], int64."""
    beyond = torch.arange(max_context).unsqueeze(0) >= lengths.unsqueeze(1)
    return torch.zeros(beyond.shape, dtype=dtype).masked_fill_(beyond, float("-inf"))[:, None, None, :]
