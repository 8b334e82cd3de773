"""Turns a plan into tensors, runs the decoder over the paged cache, and samples. Only it sees both worlds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch

from core_engine.llm.decoder import Chunk, Decoder, StepInput
from core_engine.llm.grammar import Grammars
from core_engine.llm.heads import Heads
from core_engine.llm.logprobs import PromptLogprobs, wants_prompt_logprobs
from core_engine.llm.sampler import Sampler
from core_engine.llm.scheduler import Scheduled, StepPlan
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_result import StepResult
from kernels.paged_attention import causal_bias, length_bias


class Runner:
    """One decoder, its KV cache of `num_blocks` blocks, and the sampler.

    Without `grammars` no request may ask for a `json_schema`.
    """

    def __init__(
        self,
        decoder: Decoder,
        num_blocks: int,
        block_size: int,
        *,
        eos_token_ids: frozenset[int],
        grammars: Grammars | None = None,
    ) -> None:
        config = decoder.config
        self.decoder = decoder
        self.sampler = Sampler(eos_token_ids, grammars)
        self.prompt_logprobs = PromptLogprobs()
        self.grammars = grammars
        self.heads = Heads(decoder)
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
        result = StepResult(heads=self.heads.run(plan.scheduled, hidden))
        self._sample(plan.scheduled, hidden, result)
        return result

    def _sample(self, scheduled: list[Scheduled], hidden: torch.Tensor, result: StepResult) -> None:
        """Tokens and log-probabilities of what generates, from its rows of `hidden` [num_outputs, hidden]."""
        last_rows: list[int] = []
        sequences: list[Sequence] = []
        ends = accumulate(item.num_outputs for item in scheduled)
        for item, end in zip(scheduled, ends, strict=True):
            sequence = item.sequence
            if sequence.request.head is not None:
                continue
            if wants_prompt_logprobs(sequence):
                rows = hidden[end - item.num_outputs : end]
                if (entries := self.prompt_logprobs.add(sequence, rows, self.decoder.logits)) is not None:
                    result.prompt_logprobs[sequence.id] = entries
            if item.samples:
                last_rows.append(end - 1)
                sequences.append(sequence)
        if sequences:
            sampled = self.sampler.sample(self.decoder.logits(hidden[last_rows]), sequences)
            result.tokens, result.logprobs = sampled.tokens, sampled.logprobs
            result.failures |= sampled.failures

    def forget(self, sequence_id: str) -> None:
        """Let go of what is kept for a sequence that has ended, or has to begin again."""
        self.sampler.forget(sequence_id)
        self.prompt_logprobs.forget(sequence_id)
        self.heads.forget(sequence_id)

    def _slots_of(self, block: int) -> torch.Tensor:
        """A view of one block's slots in all layers, [num_layers, 2, block_size, num_kv_heads, head_dim]."""
        return self.cache[:, :, block * self.block_size : (block + 1) * self.block_size]

    def step_input(self, scheduled: list[Scheduled]) -> StepInput:
        """The step's tensors; decode rows must come first in `scheduled`."""
        token_ids: list[int] = []
        positions: list[int] = []
        output_rows: list[int] = []
        chunks: list[Chunk] = []
        for item in scheduled:
            sequence, start = item.sequence, item.sequence.num_computed_tokens
            end, row = start + item.num_tokens, len(token_ids)
            if not sequence.is_decoding:
                chunks.append(self._chunk(sequence, start, end, row))
            token_ids += sequence.token_ids[start:end]
            positions += range(start, end)
            output_rows += range(row + item.num_tokens - item.num_outputs, row + item.num_tokens)
        decode_slots, lengths = self._decode_rows([i.sequence for i in scheduled if i.sequence.is_decoding])
        own = [chunk.slots[chunk.start - chunk.end :] for chunk in chunks]
        return StepInput(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            new_slots=torch.cat((decode_slots.gather(1, lengths.unsqueeze(1) - 1).flatten(), *own)),
            num_decode=len(decode_slots),
            decode_slots=decode_slots,
            decode_bias=length_bias(lengths, decode_slots.shape[1], self.decoder.dtype),
            chunks=tuple(chunks),
            output_rows=torch.tensor(output_rows, dtype=torch.int64),
            rope_lengths=self._rope_lengths(scheduled),
        )

    def _chunk(self, sequence: Sequence, start: int, end: int, row: int) -> Chunk:
        """Tokens [start, end) of a sequence, in rows from `row` on."""
        first = self._first_seen(start)
        window = self.decoder.config.sliding_window
        slots = self._slots([sequence.block_table], torch.tensor([first]), end - first)[0]
        bias = causal_bias(end - start, end - first, self.decoder.dtype, window)
        return Chunk(row, row + end - start, slots, bias)

    def _decode_rows(self, sequences: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots [num_rows, max_context] that each sequence's newest token sees, and how many they are."""
        first = [self._first_seen(s.num_tokens - 1) for s in sequences]
        lengths = [s.num_tokens - seen for s, seen in zip(sequences, first, strict=True)]
        tables = [s.block_table for s in sequences]
        slots = self._slots(tables, torch.tensor(first, dtype=torch.int64), max(lengths, default=0))
        return slots, torch.tensor(lengths, dtype=torch.int64)

    def _first_seen(self, position: int) -> int:
        """The first position that the token at `position` sees."""
        window = self.decoder.config.sliding_window
        return 0 if window is None else max(0, position + 1 - window)

    def _slots(self, block_tables: list[list[int]], first: torch.Tensor, length: int) -> torch.Tensor:
        """Cache slots [num_tables, length] of `length` positions from each `first` on; slot 0 beyond a table."""
        most = max((len(table) for table in block_tables), default=0)
        blocks = torch.tensor([table + [0] * (most - len(table)) for table in block_tables], dtype=torch.int64)
        positions = first.unsqueeze(1) + torch.arange(length)
        index = (positions // self.block_size).clamp(max=max(0, most - 1))
        return blocks.view(len(block_tables), most).gather(1, index) * self.block_size + positions % self.block_size

    def _rope_lengths(self, scheduled: list[Scheduled]) -> torch.Tensor | None:
        """Each row's length for dynamic RoPE; None while all lie within the trained context."""
        rope = self.decoder.config.rope
        if rope.type != "dynamic" or all(i.sequence.num_tokens <= rope.original_positions for i in scheduled):
            return None
        spans = [(i.sequence, i.sequence.num_computed_tokens, i.num_tokens) for i in scheduled]
        return torch.tensor([max(s.num_prompt_tokens, p + 1) for s, start, n in spans for p in range(start, start + n)])
