"""What heads make of hidden states: log-probabilities of choices, classes of a trained linear head, or an embedding.

The runner hands over a step's wanted rows; a head whose prompt's last token is among them is complete. Rows of one
prompt may come over several steps: what they gave is kept here until then, or until `forget`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from core_engine.contracts import Head, HeadKind, Normalise, Pooling
from core_engine.llm.head_plan import BranchHead
from core_engine.llm.linear_head import LinearHead, load_linear_head
from core_engine.llm.model_decoder import AnyDecoder
from core_engine.llm.step_plan import Scheduled

MAX_VOCAB_ROWS = 64  # full rows of logits at a time: 64 x 49,152 float32 are 12.6 MB


@dataclass(frozen=True, slots=True)
class Asked:
    """One choice whose hidden state is `row` of the step's."""

    sequence_id: str
    position: int
    token_ids: tuple[int, ...]
    row: int


class Heads:
    """The linear heads of one decoder, and what unfinished heads have gathered so far."""

    def __init__(self, decoder: AnyDecoder) -> None:
        self._decoder = decoder
        self._linear: dict[str, LinearHead] = {}
        self._logprobs: dict[str, dict[int, list[float]]] = defaultdict(dict)  # of a score's choices, by position
        self._sums: dict[str, Tensor] = {}  # [hidden] float32, of a mean-pooled prompt's rows

    @property
    def names(self) -> tuple[str, ...]:
        """The linear heads that are held."""
        return tuple(sorted(self._linear))

    def load(self, name: str, path: Path, sha256: str) -> None:
        """Hold the linear head of a file under `name`; one that is held already stays. Raises `ModelFileError`."""
        if name not in self._linear:
            config, device = self._decoder.config, self._decoder.embedding.device
            self._linear[name] = load_linear_head(path, sha256, config.hidden_size, device)

    def run(self, scheduled: list[Scheduled], hidden: Tensor) -> dict[str, tuple[float, ...]]:
        """The values of every head that this step completes, by sequence id; log-probabilities for a score's branch.

        `hidden` is [num_outputs of all, hidden], rows in the order of `scheduled`, those without a head included.
        """
        asked: dict[Normalise, list[Asked]] = {normalise: [] for normalise in Normalise}
        ends: list[tuple[str, Head, int]] = []  # of complete ones: sequence id, head, last row
        for item, head, start in _with_head(scheduled):
            sequence_id, end = item.sequence.id, start + item.num_outputs
            if isinstance(head, BranchHead):
                asked[head.normalise] += _asked(item, head, start)
            elif head.pooling is Pooling.MEAN and head.kind is HeadKind.EMBED:
                self._add(sequence_id, hidden[start:end])
            if item.samples:
                ends.append((sequence_id, head, end - 1))
        self._choose(asked[Normalise.LABELS], hidden)
        self._choose_of_all(asked[Normalise.VOCAB], hidden)
        return {sequence_id: self._value(sequence_id, head, hidden[row]) for sequence_id, head, row in ends}

    def forget(self, sequence_id: str) -> None:
        """Let go of what a sequence that has ended, or has to begin again, had gathered."""
        self._logprobs.pop(sequence_id, None)
        self._sums.pop(sequence_id, None)

    def _add(self, sequence_id: str, rows: Tensor) -> None:
        total = rows.float().sum(dim=0)
        before = self._sums.get(sequence_id)
        self._sums[sequence_id] = total if before is None else before + total

    def _choose(self, asked: list[Asked], hidden: Tensor) -> None:
        """Over the choice's own tokens: one small product for all rows that ask for the same ones."""
        groups: dict[tuple[int, ...], list[Asked]] = defaultdict(list)
        for ask in asked:
            groups[ask.token_ids].append(ask)
        for token_ids, group in groups.items():
            ids = torch.tensor(token_ids, device=hidden.device)
            logits = self._decoder.logits(hidden[[ask.row for ask in group]], ids)  # [group, num_choices]
            for ask, logprobs in zip(group, logits.log_softmax(dim=-1).tolist(), strict=True):
                self._logprobs[ask.sequence_id][ask.position] = logprobs

    def _choose_of_all(self, asked: list[Asked], hidden: Tensor) -> None:
        """Over the whole vocabulary."""
        for start in range(0, len(asked), MAX_VOCAB_ROWS):
            group = asked[start : start + MAX_VOCAB_ROWS]
            logprobs = self._decoder.logits(hidden[[ask.row for ask in group]]).log_softmax(dim=-1)  # [group, vocab]
            for ask, row in zip(group, logprobs, strict=True):
                self._logprobs[ask.sequence_id][ask.position] = row[list(ask.token_ids)].tolist()

    def _value(self, sequence_id: str, head: Head, last: Tensor) -> tuple[float, ...]:
        """Of a complete one; `last` [hidden] is the hidden state of its last token."""
        match head.kind:
            case HeadKind.SCORE:
                found = self._logprobs.pop(sequence_id)
                return tuple(value for position in sorted(found) for value in found[position])
            case HeadKind.CLASSIFY:
                return tuple(self._linear[head.name].probabilities(last).tolist())
            case HeadKind.EMBED:
                # unit length makes the mean of the rows and their sum the same vector
                pooled = self._sums.pop(sequence_id) if head.pooling is Pooling.MEAN else last.float()
                return tuple(F.normalize(pooled, dim=0).tolist())


def _with_head(scheduled: list[Scheduled]) -> Iterator[tuple[Scheduled, Head, int]]:
    """Items with a head and wanted rows, and the first of their rows among the step's wanted ones."""
    row = 0
    for item in scheduled:
        head = item.sequence.request.head
        if head is not None and item.num_outputs:
            yield item, head, row
        row += item.num_outputs


def _asked(item: Scheduled, head: BranchHead, start: int) -> Iterator[Asked]:
    """The choices among the item's rows, of which `start` is the first."""
    end = item.sequence.num_computed_tokens + item.num_tokens
    first = end - item.num_outputs  # position of that row
    for choice in head.choices:
        if first <= choice.position < end:
            yield Asked(item.sequence.id, choice.position, choice.token_ids, start + choice.position - first)
