"""What a candidate does to each single token: everything that the gate says is a mean or a tail of these numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """The reference's view of some rows, computed once for every candidate."""

    log_probs: torch.Tensor  # float32 [num_rows, vocab]
    top: torch.Tensor  # int64 [num_rows]
    margin: torch.Tensor  # float32 [num_rows]: how much likelier, in nats, the top token is than the second

    @classmethod
    def of(cls, logits: torch.Tensor) -> ReferenceRows:
        """`logits` float32 [num_rows, vocab]."""
        best = logits.topk(2, dim=-1)
        return cls(logits.log_softmax(-1), best.indices[:, 0], best.values[:, 0] - best.values[:, 1])


@dataclass(frozen=True, slots=True)
class Scores:
    """One number per row, float32 but for `is_flipped`; NLL in nats, of the token that really follows."""

    kl: torch.Tensor  # of the candidate's distribution from the reference's: sum of p (log p - log q)
    reference_nll: torch.Tensor
    nll: torch.Tensor
    margin: torch.Tensor
    is_flipped: torch.Tensor  # bool: another token is the likeliest

    @classmethod
    def of(cls, reference: ReferenceRows, logits: torch.Tensor, targets: torch.Tensor) -> Scores:
        """Of rows with `logits` float32 [num_rows, vocab], followed by `targets` int64 [num_rows]."""
        log_probs = logits.log_softmax(-1)
        differences = reference.log_probs - log_probs
        return cls(
            kl=differences.mul_(reference.log_probs.exp()).sum(-1),
            reference_nll=_nll(reference.log_probs, targets),
            nll=_nll(log_probs, targets),
            margin=reference.margin,
            is_flipped=logits.argmax(-1) != reference.top,
        )

    @classmethod
    def blank(cls, num_rows: int) -> Scores:
        """Room for so many; what is never put there is no number, which no limit lets pass."""
        numbers = {each.name: torch.full((num_rows,), torch.nan) for each in fields(cls)}
        return cls(**numbers | {"is_flipped": torch.ones(num_rows, dtype=torch.bool)})

    def put(self, start: int, part: Scores) -> None:
        """Write `part` over the rows from `start` on."""
        for each in fields(self):
            getattr(self, each.name)[start : start + len(part.kl)] = getattr(part, each.name)

    @classmethod
    def cat(cls, parts: Sequence[Scores]) -> Scores:
        return cls(*(torch.cat([getattr(part, each.name) for part in parts]) for each in fields(cls)))


def _nll(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -log_probs.gather(1, targets[:, None])[:, 0]
