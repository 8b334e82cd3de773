"""Chooses the next token of each sequence from its logits; all that a sequence needs for it lives here until it ends.

Order: bias, penalties and min_tokens (`penalties`), the grammar's mask (`grammar`), then greedy, or temperature, top-k,
top-p and min-p (`draws`). Everything is a function of the sequence's tokens and of its own seed: neighbours, place in
the batch and pre-emption change nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch

from core_engine.contracts import TokenLogprob
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm.draws import Row, draw, uniform
from core_engine.llm.grammar import Grammars, GrammarState
from core_engine.llm.logprobs import token_logprobs
from core_engine.llm.penalties import Penalties
from core_engine.llm.sequence import Sequence


@dataclass(slots=True)
class Sampled:
    """By attempt id: each sequence's token, its log-probability where asked for, or why it has none."""

    tokens: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprob] = field(default_factory=dict)
    failures: dict[str, HeadraceError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Dials:
    """What one sequence needs for its next token. None: that part is off."""

    seed: bytes | None
    penalties: Penalties | None
    schema: str | None
    num_top: int | None


class Sampler:
    """`eos_token_ids` end a generation; `grammars` compiles JSON schemas, None where none can be asked for."""

    def __init__(self, eos_token_ids: frozenset[int], grammars: Grammars | None = None) -> None:
        self._eos_token_ids = eos_token_ids
        self._grammars = grammars
        self._secret = secrets.token_bytes(16)  # of the draws that nobody gave a seed
        self._dials: dict[str, _Dials] = {}
        self._grammar_states: dict[str, GrammarState] = {}

    @property
    def num_sequences(self) -> int:
        """How many sequences something is kept for."""
        return len(self._dials)

    def sample(self, logits: torch.Tensor, sequences: Items[Sequence]) -> Sampled:
        """One token per row of `logits` [num_rows, vocab], float32; changes them in place."""
        dials = [self._dials.get(s.id) or self._begin(s) for s in sequences]
        sampled = Sampled()
        with_logprobs = [row for row, each in enumerate(dials) if each.num_top is not None]
        log_probs = torch.log_softmax(logits[with_logprobs], dim=-1) if with_logprobs else logits[:0]
        numbers = logits.numpy()  # the same memory
        for row, each in enumerate(dials):
            if each.penalties is not None or each.schema is not None:
                try:
                    self._adjust(numbers[row], each, sequences[row])
                except InvalidRequest as error:
                    sampled.failures[sequences[row].id] = error
        tokens = self._choose(logits, sequences, dials, sampled.failures)
        sampled.tokens = {s.id: t for s, t in zip(sequences, tokens, strict=True) if s.id not in sampled.failures}
        if with_logprobs:
            num_top = [dials[row].num_top or 0 for row in with_logprobs]
            found = token_logprobs(log_probs, [tokens[row] for row in with_logprobs], num_top)
            ids = [sequences[row].id for row in with_logprobs]
            sampled.logprobs = {i: each for i, each in zip(ids, found, strict=True) if i in sampled.tokens}
        return sampled

    def forget(self, sequence_id: str) -> None:
        self._dials.pop(sequence_id, None)
        self._grammar_states.pop(sequence_id, None)

    def _adjust(self, logits: Row, dials: _Dials, sequence: Sequence) -> None:
        if dials.penalties is not None:
            dials.penalties.apply(logits, sequence)
        if dials.schema is not None:
            if sequence.id not in self._grammar_states:
                assert self._grammars is not None, "a json_schema got past an engine without grammars"
                self._grammar_states[sequence.id] = self._grammars.state(dials.schema)
            self._grammar_states[sequence.id].apply(logits, sequence)

    def _choose(
        self, logits: torch.Tensor, sequences: Items[Sequence], dials: Items[_Dials], failures: dict[str, HeadraceError]
    ) -> list[int]:
        """A token per row; rows without a number to choose by are noted in `failures`."""
        best = logits.argmax(dim=-1, keepdim=True)
        tokens: list[int] = best[:, 0].tolist()
        is_finite = logits.gather(-1, best).isfinite()  # NaN and +inf win an argmax, -inf only where nothing is left
        if not is_finite.all():
            for sequence, finite in zip(sequences, is_finite[:, 0].tolist(), strict=True):
                if not finite:
                    failures.setdefault(sequence.id, HeadraceError("the model gave no finite logit to choose by"))
        numbers = logits.numpy()
        for row, (each, sequence) in enumerate(zip(dials, sequences, strict=True)):
            if each.seed is not None and sequence.id not in failures:
                quantile = uniform(each.seed, sequence.num_completion_tokens)
                tokens[row] = draw(numbers[row], sequence.request.sampling, quantile)
        return tokens

    def _begin(self, sequence: Sequence) -> _Dials:
        sampling = sequence.request.sampling
        dials = _Dials(
            seed=self._seed(sequence) if sampling.temperature > 0 else None,
            penalties=Penalties(sequence, self._eos_token_ids) if Penalties.needed(sampling) else None,
            schema=sampling.json_schema,
            num_top=sampling.logprobs,
        )
        self._dials[sequence.id] = dials
        return dials

    def _seed(self, sequence: Sequence) -> bytes:
        """The request's own, or one that nobody can know and that the sequence keeps whatever happens to it."""
        given = sequence.request.sampling.seed
        if given is not None:
            return f"given {given}".encode()
        own = f"{sequence.arrival_s!r} {sequence.id}".encode()
        return hashlib.blake2b(own, key=self._secret, digest_size=32).digest()
