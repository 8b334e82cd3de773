"""Small models for the gate: a toy decoder, its damaged copy, and logits that are simply given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from core_engine.llm.decoder import Decoder
from core_engine.quality.gate import Findings
from core_engine.quality.greedy import GreedyReport
from core_engine.quality.needles import NeedleReport
from core_engine.quality.report import TokenPlaces, report
from core_engine.quality.scores import Scores
from tests.core_engine.llm.tiny import CONFIG, tiny_weights

IDS = [(7 * i * i + 3 * i) % CONFIG.vocab_size for i in range(240)]


def tiny_decoder(noise: float = 0.0) -> Decoder:
    """With `noise` on each of its layers' matrices, relative to the matrix."""
    generator = torch.Generator().manual_seed(1)
    weights = tiny_weights()
    for name, weight in weights.items():
        if weight.dim() == 2 and name.startswith("blk."):
            weights[name] = weight + noise * weight.std() * torch.randn(weight.shape, generator=generator)
    return Decoder(CONFIG, weights)


class Given:
    """A model whose logits [num_tokens, vocab] are given for every sequence, in pieces of some size."""

    def __init__(self, logits: Mapping[tuple[int, ...], torch.Tensor], piece: int) -> None:
        self._logits, self._piece = logits, piece

    def logits(self, token_ids: Sequence[int], first: int = 0) -> Iterator[torch.Tensor]:
        yield from torch.split(self._logits[tuple(token_ids)][first:], self._piece)


def scores(num_tokens: int = 400, seed: int = 0, **changed: torch.Tensor) -> Scores:
    """Random ones, of a candidate that is a little worse than its reference."""
    generator = torch.Generator().manual_seed(seed)
    nll = 3 * torch.rand(num_tokens, generator=generator)
    made = {
        "kl": 0.01 * torch.rand(num_tokens, generator=generator),
        "reference_nll": nll,
        "nll": nll + 0.001,
        "margin": 4 * torch.rand(num_tokens, generator=generator),
        "is_flipped": torch.zeros(num_tokens, dtype=torch.bool),
    }
    return Scores(**made | changed)


def places(num_tokens: int = 400, num_sequences: int = 4) -> TokenPlaces:
    length = num_tokens // num_sequences + 1
    return TokenPlaces.of([[i * j % 50 for i in range(length)] for j in range(1, num_sequences + 1)])


def findings(needles: NeedleReport | None = None, **changed: torch.Tensor) -> Findings:
    greedy = GreedyReport(num_tokens=64, lengths=(64, 20, 30), mean_kl=0.0, worst_percent_kl=0.0, confident_flips=0.0)
    return Findings(report(scores(400, 0, **changed), places()), needles or NeedleReport(()), greedy)
