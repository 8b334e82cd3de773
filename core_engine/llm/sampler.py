"""Chooses the next token of each sequence from its logits: greedy, or temperature, then top-k, then top-p.

Each sequence draws from a generator of its own, so what it gets does not depend on its neighbours in the batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Items

import torch

from core_engine.contracts import SamplingParams


class Sampler:
    """Keeps one random generator per living sequence that samples."""

    def __init__(self) -> None:
        self._draws: dict[str, random.Random] = {}

    def sample(self, logits: torch.Tensor, ids: Items[str], params: Items[SamplingParams]) -> list[int]:
        """One token id per row of `logits` [num_rows, vocab], float32."""
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        for row, (sequence_id, sampling) in enumerate(zip(ids, params, strict=True)):
            if sampling.temperature > 0:
                uniform = self._generator(sequence_id, sampling.seed).random()
                tokens[row] = draw(logits[row], sampling, uniform)
        return tokens

    def forget(self, sequence_id: str) -> None:
        self._draws.pop(sequence_id, None)

    def _generator(self, sequence_id: str, seed: int | None) -> random.Random:
        if sequence_id not in self._draws:
            self._draws[sequence_id] = random.Random(seed)
        return self._draws[sequence_id]


def draw(logits: torch.Tensor, sampling: SamplingParams, uniform: float) -> int:
    """The token at quantile `uniform` in [0, 1) of the filtered distribution, most likely tokens first.

    `logits` [vocab]. Filters as in transformers: temperature, then the `top_k` most likely, then the smallest set whose
    probability reaches `top_p` (its last member included; at least one token always stays).

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020, section 3.1 (top-p).
    """
    num_kept = min(sampling.top_k, logits.numel()) if sampling.top_k > 0 else logits.numel()
    values, indices = torch.topk(logits.double() / sampling.temperature, num_kept)  # sorted, descending
    probabilities = torch.softmax(values, dim=-1)
    cumulative = probabilities.cumsum(-1)
    if sampling.top_p < 1.0:
        before = cumulative - probabilities  # what more likely tokens already hold
        num_kept = max(1, int((before < sampling.top_p).sum()))
        cumulative = cumulative[:num_kept]
    position = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return int(indices[min(position, num_kept - 1)])
