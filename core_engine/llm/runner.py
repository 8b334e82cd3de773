"""Turns a plan into tensors, runs the decoder over the paged cache, and samples. Only it sees both worlds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from core_engine.llm.decoder import Chunk, Decoder, StepInput
from core_engine.llm.sampler import Sampler
from core_engine.llm.scheduler import Scheduled, StepPlan
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_result import StepResult
from kernels.paged_attention import causal_bias, length_bias


class Runner:
    """One decoder, its KV cache of `num_blocks` blocks, and the sampler."""

    def __init__(self, decoder: Decoder, num_blocks: int, block_size: int) -> None:
        config = decoder.config
        self.decoder = decoder
        self.sampler = Sampler()
        self.block_size = block_size
        shape = (config.num_layers, 2, num_blocks * block_size, config.num_kv_heads, config.head_dim)
        # zeros, not empty: a padding slot that held NaN would survive the mask (NaN * 0)
        self.cache = torch.zeros(shape, dtype=decoder.dtype)

    @torch.inference_mode()
    def run(self, plan: StepPlan, between: Callable[[], None]) -> StepResult:
        """Compute the plan's tokens: what each sequence's rows give, by attempt id."""
        for source, copy in plan.copies:
            self._slots_of(copy).copy_(self._slots_of(source))
        hidden = self.decoder.forward(self.step_input(plan.scheduled), self.cache, between)
        sampling = [item for item in plan.scheduled if item.samples]
        result = StepResult()
        if sampling:
            logits = self.decoder.logits(hidden)
            ids = [item.sequence.id for item in sampling]
            tokens = self.sampler.sample(logits, ids, [item.sequence.request.sampling for item in sampling])
            result.tokens = dict(zip(ids, tokens, strict=True))
        return result

    def forget(self, sequence_id: str) -> None:
        """Let go of what is kept for a sequence that has ended, or has to begin again."""
        self.sampler.forget(sequence_id)

    def _slots_of(self, block: int) -> torch.Tensor:
        """A view of one block's slots in all layers, [num_layers, 2, block_size, num_kv_heads, head_dim]."""
        return self.cache[:, :, block * self.block_size : (block + 1) * self.block_size]

    def step_input(self, scheduled: list[Scheduled]) -> StepInput:
        """The step's tensors; decode rows must come first in `scheduled`."""
        decode = [item.sequence for item in scheduled if item.sequence.is_decoding]
        token_ids: list[int] = []
        positions: list[int] = []
        new_slots: list[int] = []
        output_rows: list[int] = []
        chunks: list[Chunk] = []
        for item in scheduled:
            sequence, start = item.sequence, item.sequence.num_computed_tokens
            end = start + item.num_tokens
            slots = self._slots(sequence, end)
            if not sequence.is_decoding:
                bias = causal_bias(item.num_tokens, end, self.decoder.dtype)
                row = len(token_ids)
                chunks.append(Chunk(row, row + item.num_tokens, torch.tensor(slots), bias))
            token_ids += sequence.token_ids[start:end]
            positions += range(start, end)
            new_slots += slots[start:]
            output_rows += range(len(token_ids) - item.num_outputs, len(token_ids))
        lengths = [s.num_tokens for s in decode]
        longest = max(lengths, default=0)
        padded = [self._slots(s, s.num_tokens) + [0] * (longest - s.num_tokens) for s in decode]
        return StepInput(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            new_slots=torch.tensor(new_slots),
            num_decode=len(decode),
            decode_slots=torch.tensor(padded, dtype=torch.int64).view(len(decode), longest),
            decode_bias=length_bias(torch.tensor(lengths, dtype=torch.int64), longest, self.decoder.dtype),
            chunks=tuple(chunks),
            output_rows=torch.tensor(output_rows, dtype=torch.int64),
        )

    def _slots(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """The cache slots of a sequence's first `num_tokens` tokens."""
        size = self.block_size
        slots = [block * size + offset for block in sequence.block_table for offset in range(size)]
        return slots[:num_tokens]
