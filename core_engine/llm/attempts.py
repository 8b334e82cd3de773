"""Every attempt that is in the engine, and whose it is: in, out by its own end, out by another hand.

The server asks for each of these in turn; which bytes brought an attempt, and which tell of its end, is its affair. The
last usage fact of an attempt is written here, whatever ended it, and its span where its caller is traced.
"""

from __future__ import annotations

from dataclasses import replace

from core_engine.contracts import FinishReason, Usage
from core_engine.costs.facts import RUNNING
from core_engine.costs.meter import ReplicaMeter
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm import messages as wire
from core_engine.llm.attempt_spans import AttemptSpans
from core_engine.llm.engine import Engine
from core_engine.llm.head_plan import check_head
from core_engine.llm.messages import AbortReason
from core_engine.llm.scorers import ScoreOutcome, ScorerHost
from core_engine.llm.sequence import Sequence
from core_engine.llm.translation import generate_request, score_request
from core_engine.llm.validation import check_generate


class Attempts:
    """Attempts by id, each with the client that owns it. One thread, the engine's."""

    def __init__(
        self,
        engine: Engine,
        scorers: ScorerHost,
        meter: ReplicaMeter,
        vocab_size: int,
        spans: AttemptSpans | None = None,
    ) -> None:
        self.scoring = wire.Counters()
        self.aborts: dict[AbortReason, int] = {}
        self._engine = engine
        self._scorers = scorers
        self._meter = meter
        self._vocab_size = vocab_size
        self._spans = spans
        self._owners: dict[str, bytes] = {}
        self._sequences: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def clients(self) -> set[bytes]:
        return set(self._owners.values())

    @property
    def lost_spans(self) -> int:
        return 0 if self._spans is None else self._spans.num_lost

    def owner(self, attempt_id: str) -> bytes | None:
        return self._owners.get(attempt_id)

    # -- in

    def add(self, client: bytes, message: wire.Generate | wire.Score) -> None:
        """Queue an attempt. Raises what its queue raises, and `InvalidRequest` for an id that is in flight."""
        attempt_id = message.attempt_id
        if attempt_id in self._owners:
            raise InvalidRequest(f"attempt {attempt_id} is in flight already", field="attempt_id", value=attempt_id)
        if isinstance(message, wire.Generate):
            self._add_sequence(message)
        else:
            self._add_score(message)
        self._owners[attempt_id] = client
        if self._spans is not None and message.traceparent is not None:
            self._spans.begin(message, message.traceparent)

    def _add_sequence(self, message: wire.Generate) -> None:
        request = generate_request(message)
        check_generate(request, self._vocab_size)
        check_head(request, self._vocab_size, self._engine.runner.heads.names)
        self._sequences[message.attempt_id] = self._engine.add(request)

    def _add_score(self, message: wire.Score) -> None:
        request = score_request(message)
        self._engine.scheduler.guard(request.pool, request.deadline, self._engine.clock())
        try:
            self._scorers.add(request)
        except HeadraceError as error:
            _count(self.scoring.refused, error.code)
            raise
        self.scoring.admitted += 1

    def refuse(self, message: wire.Generate | wire.Score | wire.LoadScorer | wire.LoadHead, reason: str) -> None:
        """Count an attempt that the engine would not even look at."""
        match message:
            case wire.Generate():
                _count(self._engine.scheduler.counters[message.pool].refused, reason)
            case wire.Score():
                _count(self.scoring.refused, reason)

    # -- out by its own end

    def finish(self, sequence: Sequence) -> None:
        """It has ended in the engine: forget it and write its last fact."""
        del self._owners[sequence.id]
        del self._sequences[sequence.id]
        self._account(sequence)

    def scored(self, outcome: ScoreOutcome) -> bytes:
        """A scorer request was answered, or failed; the client that waits for it."""
        result = outcome.result
        word = result.code if isinstance(result, HeadraceError) else "scored"
        _count(self.scoring.finished, word)
        self._meter.attempt(outcome.request, outcome.usage, word)
        if self._spans is not None:
            self._spans.end_score(outcome.request.attempt_id, word, outcome)
        return self._owners.pop(outcome.request.attempt_id)

    def in_step(self) -> list[Sequence]:
        """Sequences that a step may have held: those with blocks, and those that it has ended."""
        return [
            sequence
            for sequence in self._sequences.values()
            if any(s.block_table or s.finish_reason is not None for s in self._engine.sequences_of(sequence))
        ]

    def fail(self, sequence: Sequence) -> bytes:
        """A step with it in it failed; the client that waits for it."""
        client = self._owners[sequence.id]
        self._engine.abort(sequence, FinishReason.ERROR)
        sequence.finish_reason = FinishReason.ERROR  # also of one that the step had ended before it failed
        self.finish(sequence)
        return client

    # -- out by another hand

    def abort(self, client: bytes, attempt_id: str) -> None:
        """A client's own attempt ends now; one that has ended, or is another's, is left alone."""
        if self._owners.get(attempt_id) == client:
            self._end(attempt_id, AbortReason.CALLER)

    def drop(self, client: bytes, reason: AbortReason) -> list[str]:
        """End everything that a client has here; the ids."""
        own = [attempt_id for attempt_id, owner in self._owners.items() if owner == client]
        for attempt_id in own:
            self._end(attempt_id, reason)
        return own

    def _end(self, attempt_id: str, reason: AbortReason) -> None:
        del self._owners[attempt_id]
        self.aborts[reason] = self.aborts.get(reason, 0) + 1
        sequence = self._sequences.pop(attempt_id, None)
        if sequence is None:
            self._scorers.abort(attempt_id)
            _count(self.scoring.finished, FinishReason.ABORT)
            if self._spans is not None:
                self._spans.end_score(attempt_id, FinishReason.ABORT)
        else:
            self._engine.abort(sequence)
            self._account(sequence)

    # -- what it cost

    def usage(self, sequence: Sequence) -> Usage:
        """What it has used so far, with the times of its life up to now."""
        now_s = self._engine.clock()
        scheduled_s, token_s = min(sequence.first_scheduled_s, now_s), min(sequence.first_token_s, now_s)
        return replace(
            sequence.usage(),
            queue_s=scheduled_s - sequence.arrival_s,
            prefill_s=token_s - scheduled_s,
            decode_s=now_s - token_s,
        )

    def tell_running(self) -> None:
        """What runs on is charged for the interval that ends, so that a killed engine's work has its payer."""
        for sequence in self._sequences.values():
            if sequence.device_s > 0:
                self._meter.attempt(sequence.request, self.usage(sequence), RUNNING)

    def _account(self, sequence: Sequence) -> None:
        usage, outcome = self.usage(sequence), sequence.finish_reason or FinishReason.ABORT
        self._meter.attempt(sequence.request, usage, outcome)
        if self._spans is not None:
            self._spans.end_sequence(sequence, usage, outcome)


def _count(counts: dict[str, int], word: str) -> None:
    counts[word] = counts.get(word, 0) + 1
