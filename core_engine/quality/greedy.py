"""Greedy continuations, both models in decode side by side on the reference's tokens.

Up to the first token that they choose differently the candidate alone would have written the same; after it its logits
are still compared, so that decode rows are judged as prompts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from core_engine.quality.model import PagedModel
from core_engine.quality.report import CONFIDENT_NATS, worst_mean
from core_engine.quality.scores import ReferenceRows, Scores

NUM_PROMPTS = 16
PROMPT_TOKENS = 64
NUM_TOKENS = 64


@dataclass(frozen=True, slots=True)
class GreedyReport:
    """`lengths`: tokens of each completion before the first different one, `num_tokens` where there is none.

    KL and flips are those of `Report`, over all rows in decode.
    """

    num_tokens: int
    lengths: tuple[int, ...]
    mean_kl: float
    worst_percent_kl: float
    confident_flips: float

    @property
    def median_length(self) -> float:
        return median(self.lengths)


def prompts(token_ids: Sequence[int]) -> list[list[int]]:
    """Pieces of a text, evenly spread over it."""
    stride = max(1, (len(token_ids) - PROMPT_TOKENS) // NUM_PROMPTS)
    starts = range(0, max(1, len(token_ids) - PROMPT_TOKENS), stride)[:NUM_PROMPTS]
    return [list(token_ids[start : start + PROMPT_TOKENS]) for start in starts]


def greedy(
    reference: PagedModel, candidate: PagedModel, of: Sequence[Sequence[int]], num_tokens: int = NUM_TOKENS
) -> GreedyReport:
    """What both write after the prompts `of`."""
    expected, found = reference.decode(of, num_tokens), candidate.decode(of, num_tokens)
    parts: list[Scores] = []
    for step in range(num_tokens):
        rows = ReferenceRows.of(expected.logits)
        parts.append(Scores.of(rows, found.logits, rows.top))
        if step < num_tokens - 1:
            expected.append(rows.top.tolist())
            found.append(rows.top.tolist())
    flipped = torch.stack([part.is_flipped for part in parts], dim=1)  # [num_prompts, num_tokens]
    scores = Scores.cat(parts)
    confident = scores.margin > CONFIDENT_NATS
    return GreedyReport(
        num_tokens=num_tokens,
        lengths=tuple((flipped.cumsum(1) == 0).sum(1).tolist()),
        mean_kl=scores.kl.mean().item(),
        worst_percent_kl=worst_mean(scores.kl.sort(descending=True).values, 0.01),
        confident_flips=int(scores.is_flipped[confident].sum()) / max(1, int(confident.sum())),
    )
