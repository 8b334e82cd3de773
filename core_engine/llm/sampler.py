"""Chooses the next token of each sequence from its logits; all that a sequence needs for it lives here until it ends.

Order: bias, penalties and min_tokens (`penalties`), the grammar's mask (`grammar`), then greedy, or temperature, top-k,
top-p and min-p (`draws`). Everything is a function of the sequence's tokens and of its own seed: neighbours, place in
the batch and pre-emption change nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from core_engine.contracts import TokenLogprob
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm.draws import Row, draw, uniform
from core_engine.llm.grammar import Grammars, GrammarState
from core_engine.llm.logprobs import token_logprobs
from core_engine.llm.penalties import Penalties
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.synthetic import SyntheticAcceptance
from core_engine.llm.step_plan import NO_TOKENS

NO_LOGIT = "the model gave no finite logit to choose by"


@dataclass(slots=True)
class Sampled:
    """By attempt id: each sequence's token, the part of its draft that comes before it, if any of that is right, and

    the log-probabilities of all of them where asked for; or why it has none.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    failures: dict[str, HeadraceError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Dials:
    """What one sequence needs for its next token. None: that part is off."""

    seed: bytes | None
    penalties: Penalties | None
    schema: str | None
    num_top: int | None

    @property
    def adjusts(self) -> bool:
        return self.penalties is not None or self.schema is not None

    @property
    def is_plain(self) -> bool:
        """Greedy, and nothing else."""
        return self.seed is None and not self.adjusts and self.num_top is None


class _Turn(NamedTuple):
    """One sequence in a step: its rows of logits are `row` and one more per token of `draft`."""

    sequence: Sequence
    dials: _Dials
    row: int
    draft: list[int]


class Sampler:
    """`eos_token_ids` end a generation; `grammars` compiles JSON schemas, None where none can be asked for.

    With `synthetic` drafts are right or wrong by chance, and what comes out is no text.
    """

    def __init__(
        self,
        eos_token_ids: frozenset[int],
        grammars: Grammars | None = None,
        synthetic: SyntheticAcceptance | None = None,
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._grammars = grammars
        self._synthetic = synthetic
        self._secret = secrets.token_bytes(16)  # of the draws that nobody gave a seed
        self._dials: dict[str, _Dials] = {}
        self._grammar_states: dict[str, GrammarState] = {}

    @property
    def num_sequences(self) -> int:
        """How many sequences something is kept for."""
        return len(self._dials)

    def sample(
        self, logits: torch.Tensor, sequences: Items[Sequence], drafts: Items[list[int]] | None = None
    ) -> Sampled:
        """The next token of each sequence, or several; changes `logits`, float32 [num_rows, vocab], in place.

        A sequence has one row, and one more for each token of its draft: that of the token after it. Each row's token
        is chosen as it would be if the draft's tokens before it were the sequence's, as they are, or nobody looks at
        it: the first one that differs from the draft ends what is taken. So the tokens are those that come without
        drafts, given the same logits, seeded ones included, and their distribution is the target's.

        Source: of a draft that is a certain token, this is the acceptance of Leviathan et al., "Fast Inference from
        Transformers via Speculative Decoding", 2023, appendix A.1: it is accepted with the target's probability of it.
        """
        turns = self._turns(sequences, drafts or [NO_TOKENS] * len(sequences))
        sampled = Sampled()
        with_logprobs = [turn for turn in turns if turn.dials.num_top is not None]
        rows = [turn.row + depth for turn in with_logprobs for depth in range(1 + len(turn.draft))]
        log_probs = torch.log_softmax(logits[rows], dim=-1) if rows else logits[:0]
        numbers = logits.numpy()  # the same memory
        for turn in turns:
            if turn.dials.adjusts:
                try:
                    self._adjust(numbers[turn.row], turn, NO_TOKENS)
                except InvalidRequest as error:
                    sampled.failures[turn.sequence.id] = error
        self._choose(logits, turns, sampled)
        self._note_logprobs(log_probs, with_logprobs, sampled)
        return sampled

    def wants_only_best(self, sequences: Items[Sequence]) -> bool:
        """Whether every sequence takes the most likely token and asks for nothing else: then nobody needs logits."""
        all_dials = (self._dials.get(s.id) or self._begin(s) for s in sequences)
        return self._synthetic is None and all(dials.is_plain for dials in all_dials)

    def take_best(
        self, best: Items[int], is_finite: Items[bool], sequences: Items[Sequence], drafts: Items[list[int]]
    ) -> Sampled:
        """As `sample`, for sequences that want only the most likely token of each row, and whether its logit is one."""
        sampled = Sampled()
        for turn in self._turns(sequences, drafts):
            name, draft, found = turn.sequence.id, turn.draft, list[int]()
            while is_finite[turn.row + len(found)]:
                found.append(best[turn.row + len(found)])
                if found != draft[: len(found)] or self._ends(turn.sequence, found):
                    break
            if not found:
                sampled.failures[name] = HeadraceError(NO_LOGIT)
                continue
            sampled.tokens[name] = found.pop()
            if found:
                sampled.accepted[name] = found
        return sampled

    def guess(self, logits: torch.Tensor, places: Items[tuple[Sequence, int]]) -> list[int]:
        """A draft model's token at a place (position in prompt and completion) of each sequence, a row of logits each.

        Penalties and grammars are left out. It is drawn by the number that the sequence's own token there will be drawn
        by: models that think alike then draw alike, and where they are one, every draft is right.
        """
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        for row, (sequence, position) in enumerate(places):
            seed = (self._dials.get(sequence.id) or self._begin(sequence)).seed
            if seed is not None and logits[row, tokens[row]].isfinite():
                quantile = uniform(seed, position - sequence.num_prompt_tokens)
                tokens[row] = draw(logits[row].numpy(), sequence.request.sampling, quantile)
        return tokens

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        """How many tokens of a draft, from the first on, the sequence's grammar takes; all, as long as it has none."""
        state = self._grammar_states.get(sequence.id)
        return len(draft) if state is None else state.num_allowed(_completion(sequence), draft)

    def forget(self, sequence_id: str) -> None:
        self._dials.pop(sequence_id, None)
        self._grammar_states.pop(sequence_id, None)

    def _turns(self, sequences: Items[Sequence], drafts: Items[list[int]]) -> list[_Turn]:
        turns, row = [], 0
        for sequence, draft in zip(sequences, drafts, strict=True):
            turns.append(_Turn(sequence, self._dials.get(sequence.id) or self._begin(sequence), row, draft))
            row += 1 + len(draft)
        return turns

    def _adjust(self, logits: Row, turn: _Turn, ahead: list[int]) -> None:
        sequence, dials = turn.sequence, turn.dials
        if dials.penalties is not None:
            dials.penalties.apply(logits, sequence, ahead)
        if dials.schema is not None:
            if sequence.id not in self._grammar_states:
                assert self._grammars is not None, "a json_schema got past an engine without grammars"
                self._grammar_states[sequence.id] = self._grammars.state(dials.schema)
            self._grammar_states[sequence.id].apply(logits, sequence, ahead)

    def _choose(self, logits: torch.Tensor, turns: Items[_Turn], sampled: Sampled) -> None:
        """Tokens of each sequence; those whose first row has no number to choose by are noted in `failures`."""
        best = logits.argmax(dim=-1, keepdim=True)
        tokens: list[int] = best[:, 0].tolist()
        # NaN and +inf win an argmax, -inf only where nothing is left
        is_finite: list[bool] = logits.gather(-1, best)[:, 0].isfinite().tolist()
        numbers = logits.numpy()
        for turn in turns:
            name, draft = turn.sequence.id, turn.draft
            if not is_finite[turn.row]:
                sampled.failures.setdefault(name, HeadraceError(NO_LOGIT))
            if name in sampled.failures:
                continue
            token = self._token(numbers[turn.row], tokens[turn.row], turn, 0)
            if draft and token == draft[0]:
                accepted = self._verify(numbers, tokens, turn)
                sampled.accepted[name], token = accepted[:-1], accepted[-1]
            sampled.tokens[name] = token

    def _verify(self, numbers: NDArray[np.float32], best: list[int], turn: _Turn) -> list[int]:
        """What of the draft is right, its first token known to be, and the token after that."""
        sequence, draft = turn.sequence, turn.draft
        found = [draft[0]]
        while found[-1] == draft[len(found) - 1] and not self._ends(sequence, found):
            depth = len(found)
            row = numbers[turn.row + depth]
            token = best[turn.row + depth]
            if turn.dials.adjusts:
                try:
                    self._adjust(row, turn, found)
                except InvalidRequest:
                    break  # the next step begins with this row, and fails
                token = int(row.argmax())
            if not np.isfinite(row[token]):
                break  # the same
            found.append(self._token(row, token, turn, depth))
            if depth == len(draft):
                break
        return found

    def _token(self, row: Row, best: int, turn: _Turn, depth: int) -> int:
        """The token of an adjusted row: the most likely one, `best`, or one that is drawn."""
        sequence, seed = turn.sequence, turn.dials.seed
        position = sequence.num_completion_tokens + depth
        if self._synthetic is not None and depth < len(turn.draft):
            draft = turn.draft[depth]
            return draft if self._synthetic.accepts(sequence, position) else (draft + 1) % len(row)
        return best if seed is None else draw(row, sequence.request.sampling, uniform(seed, position))

    def _ends(self, sequence: Sequence, ahead: list[int]) -> bool:
        """Whether the last token of these, which come next, is the sequence's last one."""
        return sequence.stops_at(ahead[-1], sequence.num_completion_tokens + len(ahead), self._eos_token_ids)

    def _note_logprobs(self, log_probs: torch.Tensor, turns: Items[_Turn], sampled: Sampled) -> None:
        """Of the tokens taken, each from the row that chose it; `log_probs` has the rows of these turns one by one."""
        rows: list[int] = []
        tokens: list[int] = []
        num_top: list[int] = []
        start = 0
        for turn in turns:
            if turn.sequence.id in sampled.tokens:
                taken = [*sampled.accepted.get(turn.sequence.id, ()), sampled.tokens[turn.sequence.id]]
                rows += range(start, start + len(taken))
                tokens += taken
                num_top += [turn.dials.num_top or 0] * len(taken)
            start += 1 + len(turn.draft)
        if not rows:
            return
        entries = iter(token_logprobs(log_probs[rows], tokens, num_top))
        for turn in turns:
            if (name := turn.sequence.id) in sampled.tokens:
                count = 1 + len(sampled.accepted.get(name, ()))
                sampled.logprobs[name] = tuple(itertools.islice(entries, count))

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


def _completion(sequence: Sequence) -> list[int]:
    return sequence.token_ids[sequence.num_prompt_tokens :]
