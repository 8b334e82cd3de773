"""A decoder run step by step on its rows, without a scheduler: any batch, any chunks, any blocks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from core_engine.contracts import Deadline, GenerateRequest, SamplingParams
from core_engine.llm import sequence as sequences
from core_engine.llm.model_decoder import AnyDecoder
from core_engine.llm.scheduler import Scheduled
from core_engine.llm.step_rows import step_rows


class Stepper:
    """Keeps the cache and hands out blocks; everything else is the decoder's and the runner's own code."""

    def __init__(self, decoder: AnyDecoder, num_blocks: int = 257, block_size: int = 4) -> None:
        self.decoder, self.block_size = decoder, block_size
        self.cache = decoder.new_cache(num_blocks, block_size)
        self._free = list(range(1, num_blocks))  # block 0 is padding, as in the block pool
        random.Random(0).shuffle(self._free)

    def sequence(self, prompt: Sequence[int], max_tokens: int = 64) -> sequences.Sequence:
        request = GenerateRequest("", tuple(prompt), SamplingParams(max_tokens=max_tokens), Deadline.never())
        sequence = sequences.Sequence(request, arrival_s=0.0)
        num_blocks = -(-(len(prompt) + max_tokens) // self.block_size)
        sequence.block_table = [self._free.pop() for _ in range(num_blocks)]
        return sequence

    def release(self, sequence: sequences.Sequence) -> None:
        """Take its blocks back; they are handed out again last, still holding what it wrote."""
        self._free = sequence.block_table + self._free
        sequence.block_table = []

    def copy(self, sequence: sequences.Sequence) -> sequences.Sequence:
        """Another one, as far as this one is: its full blocks are shared, what it has of the next one is copied."""
        twin = self.sequence(sequence.request.prompt_token_ids, sequence.request.sampling.max_tokens)
        twin.token_ids, twin.num_computed_tokens = list(sequence.token_ids), sequence.num_computed_tokens
        num_full = sequence.num_computed_tokens // self.block_size
        twin.block_table[:num_full] = sequence.block_table[:num_full]
        if sequence.num_computed_tokens % self.block_size:
            self.cache.copy_block(sequence.block_table[num_full], twin.block_table[num_full])
        return twin

    @torch.inference_mode()
    def step(self, *work: tuple[sequences.Sequence, int]) -> list[torch.Tensor]:
        """Compute so many more tokens of each sequence, decode rows first; the logits of all its rows, in order."""
        rows = step_rows([Scheduled(sequence, n, 0.0) for sequence, n in work])
        every = list(range(len(rows.token_ids)))
        hidden = self.decoder.forward(replace(rows, output_rows=every), self.cache)
        for sequence, num_tokens in work:
            sequence.num_computed_tokens += num_tokens
        return list(torch.split(self.decoder.logits(hidden), [n for _, n in work]))

    def prefill(self, prompt: Sequence[int], chunk: int | None = None) -> torch.Tensor:
        """Logits of every position, [num_tokens, vocab], alone and in chunks of one size."""
        return torch.cat([rows for _, rows in self.chunks(self.sequence(prompt), chunk or len(prompt))])

    def chunks(self, sequence: sequences.Sequence, chunk: int) -> Iterable[tuple[int, torch.Tensor]]:
        while (left := sequence.num_uncomputed_tokens) > 0:
            num_tokens = min(chunk, left)
            yield num_tokens, self.step((sequence, num_tokens))[0]

    def decode(self, sequence: sequences.Sequence, token_id: int) -> torch.Tensor:
        """Append a token and compute it; its logits, [vocab]."""
        sequence.token_ids.append(token_id)
        return self.step((sequence, 1))[0][0]
