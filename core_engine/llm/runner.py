"""Turns a plan into tensors, runs the decoder over the paged cache, and samples. Only it sees both worlds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from core_engine.llm.decoder import Chunk, Decoder, StepInput
from core_engine.llm.sampler import Sampler
from core_engine.llm.scheduler import Scheduled, StepPlan
from core_engine.llm.sequence import Sequence
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

    def run(self, plan: StepPlan, between: Callable[[], None]) -> dict[str, int]:
        """Compute the plan's tokens; the next token of every sequence that samples, by attempt id."""
        sampling = [item.sequence for item in plan.scheduled if item.samples]
        logits = self._forward(self.step_input(plan.scheduled), between)
        if not sampling:
            return {}
        tokens = self.sampler.sample(logits, [s.id for s in sampling], [s.request.sampling for s in sampling])
        return dict(zip((s.id for s in sampling), tokens, strict=True))

    @torch.inference_mode()
    def _forward(self, step: StepInput, between: Callable[[], None]) -> torch.Tensor:
        """Logits [num_sampling, vocab] of the sequences that sample, in plan order; writes the cache."""
        return self.decoder.forward(step, self.cache, between)

    def step_input(self, scheduled: list[Scheduled]) -> StepInput:
        """The step's tensors; decode rows must come first in `scheduled`."""
        decode = [item.sequence for item in scheduled if item.sequence.is_decoding]
        token_ids: list[int] = []
        positions: list[int] = []
        new_slots: list[int] = []
        logit_rows: list[int] = []
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
            if item.samples:
                logit_rows.append(len(token_ids) - 1)
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
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        )

    def _slots(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """The cache slots of a sequence's first `num_tokens` tokens."""
        size = self.block_size
        slots = [block * size + offset for block in sequence.block_table for offset in range(size)]
        return slots[:num_tokens]
