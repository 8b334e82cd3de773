"""One span per attempt in the engine, a child of its caller's: made at the attempt's end from what is known of it then.

A step is shared by many requests, so it is no span of anybody's. An attempt's span says how many steps have run it,
which was the last, and how many sequences shared the largest. An attempt whose caller is not traced costs nothing here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core_engine.contracts import FinishReason, Monotonic, ScoreResult, Usage
from core_engine.llm import messages as wire
from core_engine.llm.scorers import ScoreOutcome
from core_engine.llm.sequence import Sequence
from core_engine.tracing import Anchor, Attribute, Attributes, Span, SpanContext, SpanEvent, SpanKind, Tracer

WELL = (FinishReason.STOP, FinishReason.LENGTH, "scored")


@dataclass(frozen=True, slots=True)
class _Begun:
    parent: SpanContext
    arrival_s: float
    message: wire.Generate | wire.Score


class AttemptSpans:
    """The attempts in the engine whose callers are traced. One thread, the engine's; `clock` is the engine's."""

    def __init__(self, tracer: Tracer, replica: str, incarnation: str, clock: Monotonic) -> None:
        self._tracer = tracer
        self._replica: Attributes = {"headrace.replica": replica, "headrace.incarnation": incarnation}
        self._clock = clock
        self._begun: dict[str, _Begun] = {}

    @property
    def num_lost(self) -> int:
        return self._tracer.num_lost

    def begin(self, message: wire.Generate | wire.Score, traceparent: str) -> None:
        """It was queued. A `traceparent` that is none, or of a trace that nobody records, is ignored."""
        parent = SpanContext.read(traceparent)
        if parent is not None and parent.is_sampled:
            self._begun[message.attempt_id] = _Begun(parent, self._clock(), message)

    def end_sequence(self, sequence: Sequence, usage: Usage, outcome: str) -> None:
        """It has left the engine, however it ended."""
        if (begun := self._begun.pop(sequence.id, None)) is None:
            return
        told: dict[str, Attribute] = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "headrace.computed_tokens": usage.computed_tokens,
            "headrace.wasted_tokens": usage.wasted_tokens,
            "headrace.queue_ms": usage.queue_s * 1e3,
            "headrace.prefill_ms": usage.prefill_s * 1e3,
            "headrace.decode_ms": usage.decode_s * 1e3,
            "headrace.steps": sequence.num_steps,
            "headrace.last_step": sequence.last_step,
            "headrace.preemptions": sequence.num_preemptions,
        }
        instants = {"first step": sequence.first_scheduled_s, "first token": sequence.first_token_s}
        self._end(begun, usage, outcome, told, instants)

    def end_score(self, attempt_id: str, outcome: str, scored: ScoreOutcome | None = None) -> None:
        """A scorer's request was answered, or failed; or it was dropped while it waited."""
        if (begun := self._begun.pop(attempt_id, None)) is None:
            return
        told, instants = dict[str, Attribute](), dict[str, float]()
        if scored is not None and isinstance(scored.result, ScoreResult):
            told = {"headrace.queue_ms": scored.result.queue_s * 1e3, "headrace.model_ms": scored.result.model_s * 1e3}
            instants = {"first step": begun.arrival_s + scored.result.queue_s}
        self._end(begun, scored.usage if scored is not None else Usage(), outcome, told, instants)

    def _end(self, begun: _Begun, usage: Usage, outcome: str, told: Attributes, instants: dict[str, float]) -> None:
        anchor = Anchor.now(self._clock)
        message, is_text = begun.message, isinstance(begun.message, wire.Generate)
        self._tracer.record(
            Span(
                name="engine generate" if is_text else "engine score",
                context=self._tracer.child_of(begun.parent),
                parent=begun.parent,
                start_ns=anchor.unix_ns(begun.arrival_s),
                end_ns=anchor.at_ns,
                attributes={
                    **self._replica,
                    **_asked(message),
                    **told,
                    "headrace.outcome": str(outcome),
                    "headrace.batch_size": usage.batch_size,
                    "headrace.device_ms": usage.device_s * 1e3,
                },
                kind=SpanKind.SERVER,
                events=tuple(
                    SpanEvent(name, anchor.unix_ns(at_s)) for name, at_s in instants.items() if at_s < math.inf
                ),
                is_error=outcome not in WELL,
            )
        )


def _asked(message: wire.Generate | wire.Score) -> Attributes:
    """Names alone: never what was asked."""
    asked: dict[str, Attribute] = {
        "headrace.attempt_id": message.attempt_id,
        "headrace.tenant": message.tenant,
        "headrace.path": str(message.path),
        "headrace.pool": str(message.pool),
    }
    if isinstance(message, wire.Score):
        return asked | {"headrace.scorer": message.scorer, "headrace.rows": message.num_rows}
    if message.predictor:
        asked |= {"headrace.predictor": message.predictor, "headrace.version": message.version}
    return asked | {"headrace.kind": "completion" if message.head is None else str(message.head.kind)}
