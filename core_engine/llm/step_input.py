"""A step's rows as the tensors that the plain torch decoder takes: slots to read and write, and what masks them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core_engine.llm.model_config import ModelConfig
from core_engine.llm.step_rows import Span, StepRows
from kernels.paged_attention import causal_bias, length_bias


@dataclass(frozen=True, slots=True)
class Chunk:
    """One prefill chunk: its rows in the step, [start, end), and what they may see.

    `slots` hold the tokens up to the chunk's last, from the first one that anybody in it sees.
    """

    start: int
    end: int
    slots: torch.Tensor  # [context]
    bias: torch.Tensor  # [end - start, context]


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step's tensors. Decode rows come first, prefill chunks after them."""

    token_ids: torch.Tensor  # [num_tokens]
    positions: torch.Tensor  # [num_tokens]
    new_slots: torch.Tensor  # [num_tokens], where each token's K and V go
    num_decode: int
    decode_slots: torch.Tensor  # [num_decode, max_context]
    decode_bias: torch.Tensor  # [num_decode, 1, 1, max_context]
    chunks: tuple[Chunk, ...]
    output_rows: torch.Tensor  # [num_outputs], rows whose hidden state is wanted
    rope_lengths: torch.Tensor | None = None  # [num_tokens], of dynamic RoPE: see `rope_scaling`


def step_input(rows: StepRows, config: ModelConfig, block_size: int, dtype: torch.dtype) -> StepInput:
    """Tensors of `rows`; masks are in `dtype`. The leading spans of one row are attended together."""
    num_decode = next((i for i, span in enumerate(rows.spans) if span.num_rows > 1), len(rows.spans))
    chunks: list[Chunk] = []
    row = num_decode
    for span in rows.spans[num_decode:]:
        chunks.append(_chunk(span, row, config.sliding_window, block_size, dtype))
        row += span.num_rows
    decode_slots, lengths = _decode_rows(rows.spans[:num_decode], config.sliding_window, block_size)
    own = [chunk.slots[chunk.start - chunk.end :] for chunk in chunks]
    return StepInput(
        token_ids=torch.tensor(rows.token_ids),
        positions=torch.tensor(rows.positions),
        new_slots=torch.cat((decode_slots.gather(1, lengths.unsqueeze(1) - 1).flatten(), *own)),
        num_decode=num_decode,
        decode_slots=decode_slots,
        decode_bias=length_bias(lengths, decode_slots.shape[1], dtype),
        chunks=tuple(chunks),
        output_rows=torch.tensor(rows.output_rows, dtype=torch.int64),
        rope_lengths=rope_lengths(rows, config),
    )


def rope_lengths(rows: StepRows, config: ModelConfig) -> torch.Tensor | None:
    """Each row's length for dynamic RoPE, int64 [num_tokens]; None while all lie within the trained context."""
    rope = config.rope
    if rope.type != "dynamic" or all(max(s.num_prompt_tokens, s.end) <= rope.original_positions for s in rows.spans):
        return None
    return torch.tensor([max(s.num_prompt_tokens, p + 1) for s in rows.spans for p in range(s.position, s.end)])


def _chunk(span: Span, row: int, window: int | None, block_size: int, dtype: torch.dtype) -> Chunk:
    first = _first_seen(span.position, window)
    slots = _slots([span.block_table], torch.tensor([first]), span.end - first, block_size)[0]
    bias = causal_bias(span.num_rows, span.end - first, dtype, window)
    return Chunk(row, row + span.num_rows, slots, bias)


def _decode_rows(spans: list[Span], window: int | None, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots [num_rows, max_context] that each span's one token sees, and how many they are."""
    first = [_first_seen(span.position, window) for span in spans]
    lengths = [span.end - seen for span, seen in zip(spans, first, strict=True)]
    tables = [span.block_table for span in spans]
    slots = _slots(tables, torch.tensor(first, dtype=torch.int64), max(lengths, default=0), block_size)
    return slots, torch.tensor(lengths, dtype=torch.int64)


def _first_seen(position: int, window: int | None) -> int:
    """The first position that the token at `position` sees."""
    return 0 if window is None else max(0, position + 1 - window)


def _slots(block_tables: list[list[int]], first: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """Cache slots [num_tables, length] of `length` positions from each `first` on; slot 0 beyond a table."""
    most = max((len(table) for table in block_tables), default=0)
    blocks = torch.tensor([table + [0] * (most - len(table)) for table in block_tables], dtype=torch.int64)
    positions = first.unsqueeze(1) + torch.arange(length)
    index = (positions // block_size).clamp(max=max(0, most - 1))
    return blocks.view(len(block_tables), most).gather(1, index) * block_size + positions % block_size
