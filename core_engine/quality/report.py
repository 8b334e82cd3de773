"""What per-token scores add up to. Means hide a damaged tail, so every number here has a worse one beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from core_engine.quality.scores import Scores

CONFIDENT_NATS = 1.0  # the top token is e times likelier than the next: more than rounding should turn over
PERCENTILES = (0.5, 0.9, 0.99, 0.999)
RARITY_FROM = (1, 2, 10, 100)  # occurrences in the text itself
POSITION_FROM = (1, 16, 64, 256, 1024, 4096, 16384)
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Of every predicted token, in the order of its score."""

    sequence: torch.Tensor  # int64: which one
    position: torch.Tensor  # int64: how many tokens precede it
    occurrences: torch.Tensor  # int64: of this token id in all sequences

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> TokenPlaces:
        counts = Counter(token_id for each in sequences for token_id in each)
        return cls(
            torch.tensor([index for index, each in enumerate(sequences) for _ in each[1:]]),
            torch.tensor([position for each in sequences for position in range(1, len(each))]),
            torch.tensor([counts[token_id] for each in sequences for token_id in each[1:]]),
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens of one kind: by how many nats their mean NLL changed, and the standard error of that."""

    name: str
    num_tokens: int
    reference_nll: float
    change: float
    error: float

    @property
    def certain_change(self) -> float:
        """By how much it changed at least, up or down, whatever tokens the text happens to have."""
        return max(abs(self.change) - STANDARD_ERRORS * self.error, 0.0)  # in this order NaN stays NaN


@dataclass(frozen=True, slots=True)
class SequenceKl:
    index: int
    num_tokens: int
    mean_kl: float


@dataclass(frozen=True, slots=True)
class Report:
    """KL in nats. `worst_decile_kl`, `worst_percent_kl`: the mean over the worst tenth and hundredth of the tokens.

    `tail_ratio`: 99th percentile over median, the tail against the candidate's own noise, whatever its precision.
    `confident_flips`: of the `num_confident` tokens on which the reference is sure, the share with another top token.
    `nll_change` is relative. `worst_sequences`: the worst hundredth, at least one.
    """

    num_tokens: int
    num_sequences: int
    mean_kl: float
    kl_percentiles: dict[str, float]
    worst_decile_kl: float
    worst_percent_kl: float
    max_kl: float
    tail_ratio: float
    top1_agreement: float
    num_confident: int
    confident_flips: float
    reference_nll: float
    nll_change: float
    by_rarity: tuple[Bucket, ...]
    by_position: tuple[Bucket, ...]
    worst_sequences: tuple[SequenceKl, ...]

    @property
    def worst_sequence_kl(self) -> float:
        """Mean over the worst hundredth of the sequences."""
        return sum(each.mean_kl for each in self.worst_sequences) / len(self.worst_sequences)


def report(scores: Scores, places: TokenPlaces) -> Report:
    ranked = scores.kl.sort(descending=True).values  # NaN counts as the largest
    percentiles = {f"p{share * 100:g}": _percentile(ranked, share) for share in PERCENTILES}
    confident = scores.margin > CONFIDENT_NATS
    reference_nll = scores.reference_nll.mean().item()
    return Report(
        num_tokens=len(ranked),
        num_sequences=int(places.sequence.max()) + 1,
        mean_kl=ranked.mean().item(),
        kl_percentiles=percentiles,
        worst_decile_kl=worst_mean(ranked, 0.1),
        worst_percent_kl=worst_mean(ranked, 0.01),
        max_kl=ranked[0].item(),
        tail_ratio=_percentile(ranked, 0.99) / max(_percentile(ranked, 0.5), 1e-9),
        top1_agreement=1 - scores.is_flipped.float().mean().item(),
        num_confident=int(confident.sum()),
        confident_flips=int(scores.is_flipped[confident].sum()) / max(1, int(confident.sum())),
        reference_nll=reference_nll,
        nll_change=(scores.nll.mean().item() - reference_nll) / reference_nll,
        by_rarity=buckets(scores, places.occurrences, RARITY_FROM),
        by_position=buckets(scores, places.position, POSITION_FROM),
        worst_sequences=_worst_sequences(scores.kl, places.sequence),
    )


def worst_mean(ranked: torch.Tensor, share: float) -> float:
    """Mean of the first `share` of values that are sorted from the worst on; of one at least."""
    return ranked[: max(1, round(share * len(ranked)))].mean().item()


def buckets(scores: Scores, numbers: torch.Tensor, starts: Sequence[int]) -> tuple[Bucket, ...]:
    """The tokens by `numbers` [num_tokens], in ranges that begin at `starts`; those with tokens in them."""
    ranges = [*pairwise(starts), (starts[-1], None)]
    found = []
    for start, end in ranges:
        chosen = (numbers >= start) if end is None else (numbers >= start) & (numbers < end)
        if chosen.any():
            found.append(_bucket(_range_name(start, end), scores.reference_nll[chosen], scores.nll[chosen]))
    return tuple(found)


def _range_name(start: int, end: int | None) -> str:
    if end is None:
        return f"{start}+"
    return str(start) if end == start + 1 else f"{start}-{end - 1}"


def _bucket(name: str, reference_nll: torch.Tensor, nll: torch.Tensor) -> Bucket:
    changes = nll - reference_nll
    error = changes.std().item() / math.sqrt(len(changes)) if len(changes) > 1 else math.inf
    return Bucket(name, len(changes), reference_nll.mean().item(), changes.mean().item(), error)


def _worst_sequences(kl: torch.Tensor, sequence: torch.Tensor) -> tuple[SequenceKl, ...]:
    counts = sequence.bincount()
    means = torch.zeros(len(counts)).index_add_(0, sequence, kl) / counts
    worst = means.argsort(descending=True)[: math.ceil(len(means) / 100)]
    return tuple(SequenceKl(i, int(counts[i]), means[i].item()) for i in worst.tolist())


def _percentile(ranked: torch.Tensor, share: float) -> float:
    """The value that `share` of the values, sorted from the largest on, do not exceed."""
    return ranked[min(len(ranked) - 1, int((1 - share) * len(ranked)))].item()
