"""What a request does to its own logits before a token is chosen, in the order of transformers' processors.

Logit bias, repetition penalty, presence and frequency penalty, then `min_tokens`. The grammar's mask comes after all
of them (`grammar`), temperature and filters after that (`draws`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from core_engine.contracts import SamplingParams
from core_engine.llm.draws import Row
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import NO_TOKENS


class TokenCounts:
    """How often each token stands in a sequence from place `start` on. It catches up with the sequence by itself."""

    def __init__(self, start: int) -> None:
        self._seen = start
        self._places: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.intp)
        self._counts = np.zeros(64, dtype=np.float32)

    def update(self, token_ids: list[int]) -> None:
        for token, count in Counter(token_ids[self._seen :]).items():
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token
            self._counts[place] += count
        self._seen = max(self._seen, len(token_ids))

    @property
    def ids(self) -> NDArray[np.intp]:
        """The different tokens, [num_different]."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of `ids` stands there."""
        return self._counts[: len(self._places)]


class Penalties:
    """Bias, penalties and `min_tokens` of one sequence."""

    def __init__(self, sequence: Sequence, eos_token_ids: frozenset[int]) -> None:
        sampling = sequence.request.sampling
        self._sampling = sampling
        self._all = TokenCounts(0)
        self._completion = TokenCounts(sequence.num_prompt_tokens)
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.intp)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
        self._ends = np.array(sorted(ends), dtype=np.intp)

    @staticmethod
    def needed(sampling: SamplingParams) -> bool:
        return bool(
            sampling.logit_bias
            or sampling.min_tokens
            or sampling.repetition_penalty != 1
            or sampling.presence_penalty
            or sampling.frequency_penalty
        )

    def apply(self, logits: Row, sequence: Sequence, ahead: list[int] = NO_TOKENS) -> None:
        """Change one row of logits [vocab] in place: that of the token after the sequence and the tokens `ahead`.

        Those ahead are certain to be the sequence's next ones.

        Source: Keskar et al., "CTRL", 2019, section 4.1 (repetition penalty); OpenAI's API reference, "Frequency and
        presence penalties": logit - count * frequency - (count > 0) * presence.
        """
        sampling = self._sampling
        token_ids = sequence.token_ids + ahead if ahead else sequence.token_ids
        logits[self._bias_ids] += self._bias
        if sampling.repetition_penalty != 1:
            self._all.update(token_ids)
            logits[self._all.ids] = _repelled(logits[self._all.ids], sampling.repetition_penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            self._completion.update(token_ids)
            penalty = self._completion.counts * sampling.frequency_penalty + sampling.presence_penalty
            logits[self._completion.ids] -= penalty
        if sequence.num_completion_tokens + len(ahead) < sampling.min_tokens:
            logits[self._ends] = -np.inf


def _repelled(logits: Row, penalty: float) -> Row:
    """Less likely for a penalty above 1, whatever their sign."""
    factor = np.float32(penalty)
    return np.where(logits < 0, logits * factor, logits / factor)
