"""One span per attempt in the engine, whatever ends it; none where the caller is not traced."""

from __future__ import annotations

import pytest

from core_engine.contracts import (
    Deadline,
    FinishReason,
    GenerateRequest,
    Head,
    HeadKind,
    Path,
    Pool,
    SamplingParams,
    ScoreRequest,
)
from core_engine.costs.facts import Fact
from core_engine.costs.meter import ReplicaMeter
from core_engine.errors import InvalidRequest
from core_engine.llm.attempt_spans import AttemptSpans
from core_engine.llm.attempts import Attempts
from core_engine.llm.messages import AbortReason
from core_engine.llm.scorers import ScorerHost
from core_engine.llm.translation import generate_message, score_message
from core_engine.tracing import Span, SpanContext, SpanKind, Tracer
from tests.core_engine.llm.running import SumScorer
from tests.core_engine.llm.tiny import CONFIG, tiny_engine

CALLER = SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
ME = b"me"


class Traced:
    """Attempts on an engine whose clock the test moves: a step takes a second, and so does nothing else."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.engine = tiny_engine(clock=lambda: self.now_s)
        self.scorer, self.scorers = SumScorer(), ScorerHost(lambda: self.now_s)
        self.scorers.put("sum:1", self.scorer)
        self.tracer, spooled = Tracer(), list[Fact]()
        meter = ReplicaMeter("engine-7", "local", spooled.append)
        spans = AttemptSpans(self.tracer, "engine-7", "incarnation", self.engine.clock)
        self.attempts = Attempts(self.engine, self.scorers, meter, CONFIG.vocab_size, spans)

    def generate(
        self,
        prompt: tuple[int, ...] = (1, 2, 3),
        traceparent: str | None = CALLER.traceparent,
        head: Head | None = None,
    ) -> None:
        sampling = SamplingParams(max_tokens=4, ignore_eos=True)
        asked = GenerateRequest(
            "a", prompt, sampling, Deadline.never(), Pool.BULK, "acme", "notice", 3, head=head, traceparent=traceparent
        )
        self.attempts.add(ME, generate_message(asked))

    def score(self, traceparent: str | None = CALLER.traceparent, deadline: Deadline | None = None) -> None:
        asked = ScoreRequest("s", "sum:1", bytes(24), 2, deadline or Deadline.never(), traceparent=traceparent)
        self.attempts.add(ME, score_message(asked))

    def answer(self) -> None:
        for outcome in self.scorers.run():
            self.attempts.scored(outcome)

    def step(self) -> None:
        self.now_s += 1.0
        for event in self.engine.step():
            if event.finish_reason is not None:
                self.attempts.finish(event.sequence)

    def run(self) -> None:
        while self.engine.has_work:
            self.step()

    def span(self) -> Span:
        (only,) = self.tracer.take(10)
        return only


def test_a_completion_s_span_is_its_caller_s_child_and_says_what_its_steps_were() -> None:
    traced = Traced()
    traced.generate()
    traced.run()
    span = traced.span()
    assert span.name == "engine generate"
    assert span.kind is SpanKind.SERVER
    assert span.parent == CALLER
    assert span.context.trace_id == CALLER.trace_id
    assert span.context.span_id != CALLER.span_id
    assert not span.is_error
    told = dict(span.attributes)
    assert told.pop("headrace.device_ms") == pytest.approx(0.0)  # of a clock that stands while a step runs
    assert told == {
        "headrace.replica": "engine-7",
        "headrace.incarnation": "incarnation",
        "headrace.attempt_id": "a",
        "headrace.tenant": "acme",
        "headrace.path": Path.ONLINE,
        "headrace.pool": Pool.BULK,
        "headrace.predictor": "notice",
        "headrace.version": 3,
        "headrace.kind": "completion",
        "headrace.outcome": FinishReason.LENGTH,
        "headrace.batch_size": 1,
        "headrace.steps": 4,
        "headrace.last_step": 3,
        "headrace.preemptions": 0,
        "headrace.queue_ms": 1000.0,
        "headrace.prefill_ms": 0.0,
        "headrace.decode_ms": 3000.0,
        "headrace.computed_tokens": 6,
        "headrace.wasted_tokens": 0,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }


def test_its_instants_are_arrival_first_step_first_token_and_end() -> None:
    traced = Traced()
    traced.generate()
    traced.run()
    span = traced.span()
    assert span.end_ns - span.start_ns == 4_000_000_000
    assert [(event.name, event.at_ns - span.start_ns) for event in span.events] == [
        ("first step", 1_000_000_000),
        ("first token", 1_000_000_000),
    ]


def test_a_score_over_labels_of_several_tokens_is_one_span() -> None:
    traced = Traced()
    traced.generate(head=Head(HeadKind.SCORE, labels=((5, 6), (5, 7), (8,))))
    traced.run()
    span = traced.span()
    assert span.attributes["headrace.kind"] == "score"
    assert span.attributes["gen_ai.usage.input_tokens"] == 3
    assert span.attributes["headrace.steps"] == 1
    assert span.attributes["headrace.last_step"] == 0


def test_a_scorer_s_answer_has_a_span() -> None:
    traced = Traced()
    traced.score()
    traced.now_s += 2.0
    traced.answer()
    span = traced.span()
    assert (span.name, span.parent, span.is_error) == ("engine score", CALLER, False)
    assert span.end_ns - span.start_ns == 2_000_000_000
    assert span.attributes["headrace.scorer"] == "sum:1"
    assert span.attributes["headrace.rows"] == span.attributes["headrace.batch_size"] == 2
    assert span.attributes["headrace.queue_ms"] == 2000.0
    assert span.attributes["headrace.outcome"] == "scored"


def test_every_bad_end_is_an_error_with_its_word() -> None:
    traced = Traced()
    traced.generate()
    traced.attempts.abort(ME, "a")
    assert_failed(traced.span(), FinishReason.ABORT)

    traced.generate()
    traced.step()
    traced.attempts.drop(ME, AbortReason.LEASE)
    assert_failed(traced.span(), FinishReason.ABORT)

    traced.score()
    traced.attempts.abort(ME, "s")
    assert_failed(traced.span(), FinishReason.ABORT)

    traced.score()
    traced.scorer.fails = True
    traced.answer()
    assert_failed(traced.span(), "internal_error")

    traced.score(deadline=Deadline(0.0, lambda: 0.0))
    traced.now_s += 1e9
    traced.answer()
    assert_failed(traced.span(), "deadline_exceeded")


def assert_failed(span: Span, outcome: str) -> None:
    assert span.is_error
    assert span.attributes["headrace.outcome"] == outcome


@pytest.mark.parametrize(
    "traceparent", [None, "", "nonsense", f"00-{'0' * 32}-{CALLER.span_id}-01", CALLER.traceparent[:-1] + "0"]
)
def test_without_a_caller_that_records_there_is_no_span(traceparent: str | None) -> None:
    traced = Traced()
    traced.generate(traceparent=traceparent)
    traced.score(traceparent=traceparent)
    traced.run()
    traced.answer()
    assert not traced.tracer.num_queued


def test_what_the_engine_refuses_has_no_span_and_leaves_nothing() -> None:
    traced = Traced()
    with pytest.raises(InvalidRequest):
        traced.generate(prompt=(10_000,))
    traced.generate()
    traced.run()
    assert traced.span().attributes["headrace.outcome"] == FinishReason.LENGTH


def test_lost_spans_are_counted_for_the_snapshot() -> None:
    traced = Traced()
    traced.tracer.num_dropped, traced.tracer.num_failed = 2, 5
    assert traced.attempts.lost_spans == 7
