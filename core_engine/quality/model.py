"""A model as the gate sees it: token ids in, logits out. `PagedModel` is ours, stepped as the engine does."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import torch

from core_engine.errors import ConfigurationError
from core_engine.llm.kv_cache import KvCache
from core_engine.llm.step_rows import Span, StepRows

BLOCK_SIZE = 16
CHUNK = 128  # rows of a step: 25 MB of logits for 49,152 tokens, and every sequence reads what an earlier step wrote


class Model(Protocol):
    def logits(self, token_ids: Sequence[int], first: int = 0) -> Iterable[torch.Tensor]:
        """Of one sequence, what follows each position from `first` on: float32 [num_rows, vocab], piece by piece."""
        ...


class StepDecoder(Protocol):
    """What `Decoder` and `CpuDecoder` have in common."""

    def new_cache(self, num_blocks: int, block_size: int) -> KvCache: ...

    def forward(self, rows: StepRows, cache: KvCache) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class PagedModel:
    """The engine's decoder over its own paged cache: prompts in chunks, then one row a step for each sequence.

    Blocks lie in no order and still hold what was in them before, as in an engine that has served for a while.
    """

    def __init__(self, decoder: StepDecoder, max_tokens: int, chunk: int = CHUNK) -> None:
        """`max_tokens`: the most that the sequences of one call hold together."""
        self._decoder, self._chunk = decoder, chunk
        self._blocks = list(range(1, max_tokens // BLOCK_SIZE + 2))  # block 0 is padding, as in the block pool
        random.Random(0).shuffle(self._blocks)
        self._cache = decoder.new_cache(len(self._blocks) + 1, BLOCK_SIZE)

    def logits(self, token_ids: Sequence[int], first: int = 0) -> Iterator[torch.Tensor]:
        return self._prefill(token_ids, self._tables([len(token_ids)])[0], first)

    def decode(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> DecodeBatch:
        """Prompts that grow side by side, by `num_tokens` at most."""
        tables = self._tables([len(prompt) + num_tokens for prompt in prompts])
        last = [torch.cat(list(self._prefill(p, t, len(p) - 1))) for p, t in zip(prompts, tables, strict=True)]
        return DecodeBatch(self, [len(prompt) for prompt in prompts], tables, torch.cat(last))

    @torch.inference_mode()
    def step(self, rows: StepRows) -> torch.Tensor:
        """Logits of the step's output rows, float32 [num_outputs, vocab]."""
        hidden = self._decoder.forward(rows, self._cache)
        return self._decoder.logits(hidden)

    def _prefill(self, token_ids: Sequence[int], table: list[int], first: int) -> Iterator[torch.Tensor]:
        for start in range(0, len(token_ids), self._chunk):
            ids = list(token_ids[start : start + self._chunk])
            wanted = list(range(max(0, first - start), len(ids)))
            rows = StepRows(ids, [Span(start, len(ids), table, len(token_ids))], wanted)
            if wanted:
                yield self.step(rows)
            else:
                self._fill(rows)

    @torch.inference_mode()
    def _fill(self, rows: StepRows) -> None:
        self._decoder.forward(rows, self._cache)

    def _tables(self, lengths: Sequence[int]) -> list[list[int]]:
        """Block tables for sequences of these lengths. Raises `ConfigurationError` if they are longer than promised."""
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        if sum(counts) > len(self._blocks):
            room = len(self._blocks) * BLOCK_SIZE
            raise ConfigurationError(f"sequences of {sum(lengths)} tokens together, room for {room}: give max_tokens")
        blocks = iter(self._blocks)
        return [list(islice(blocks, count)) for count in counts]


class DecodeBatch:
    """Sequences in decode. `logits` float32 [num_sequences, vocab]: what follows the last token of each."""

    def __init__(self, model: PagedModel, lengths: list[int], tables: list[list[int]], logits: torch.Tensor) -> None:
        self._model, self._prompt_lengths, self._tables = model, lengths, tables
        self._num_appended = 0
        self.logits = logits

    def append(self, token_ids: Sequence[int]) -> None:
        """One more token for each sequence, computed in one step."""
        spans = [
            Span(length + self._num_appended, 1, table, length)
            for length, table in zip(self._prompt_lengths, self._tables, strict=True)
        ]
        self.logits = self._model.step(StepRows(list(token_ids), spans, list(range(len(spans)))))
        self._num_appended += 1
