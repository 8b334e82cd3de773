"""The generations of one call as the door sees them: streams of text, their latencies, their usage facts.

Chats and completions read from it. Closing it aborts in the engine what still runs, and counts it as aborted.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from prometheus_client import Histogram

from core_engine.contracts import FinishReason, Monotonic, Reason, Usage
from core_engine.errors import DeadlineExceeded, EngineUnavailable, HeadraceError, InvalidRequest
from core_engine.llm.choices import ChoiceDelta, merged
from core_engine.llm.text import TextDelta, generate_text
from core_engine.metrics import Metrics
from core_engine.predictors.climb import reason_of
from online.access.streams import streams_of
from online.attempt_facts import attempt_fact
from online.request_context import RequestContext
from online.services import Services
from online.text_call import TextCall
from online.text_trace import TextTrace

ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True)
class Meter:
    """Latencies of one stream. TTFT and end-to-end run from arrival; a gap is shared by the tokens that end it."""

    metrics: Metrics
    model: str
    pool: str
    arrived_s: float
    clock: Monotonic = time.monotonic
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    outcome: FinishReason = FinishReason.ABORT
    reason: Reason | None = None
    usage: Usage | None = None
    gaps: Histogram | None = None  # this stream's series, once it has a gap: looked up once, not per token

    @property
    def tpot_s(self) -> float | None:
        """First token to last, over the tokens after the first; None where there is none."""
        if self.first_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    def saw(self, delta: TextDelta) -> None:
        if delta.num_tokens:
            self._saw_tokens(delta.num_tokens, self.clock())
        if delta.usage is not None:
            self.usage = delta.usage
        if delta.finish_reason is not None:
            self.outcome = delta.finish_reason

    def _saw_tokens(self, num_tokens: int, now: float) -> None:
        metrics, labels = self.metrics, (self.model, self.pool)
        if self.first_s is None:
            self.first_s = now
            metrics.time_to_first_token.labels(*labels).observe(now - self.arrived_s)
        else:
            self.gaps = self.gaps or metrics.inter_token_latency.labels(*labels)
            gap_s = (now - self.last_s) / num_tokens
            for _ in range(num_tokens):
                self.gaps.observe(gap_s)
        self.last_s, self.num_tokens = now, self.num_tokens + num_tokens

    def failed(self, error: HeadraceError) -> None:
        self.outcome = FinishReason.DEADLINE if isinstance(error, DeadlineExceeded) else FinishReason.ERROR
        self.reason = reason_of(error)

    def close(self, num_prompt: int) -> None:
        """Count the generation, however it ended."""
        metrics, labels = self.metrics, (self.model, self.pool)
        metrics.e2e_latency.labels(*labels).observe(self.clock() - self.arrived_s)
        metrics.generations.labels(*labels, self.outcome, self.reason or "").inc()
        metrics.tokens.labels(*labels, "prompt").inc(num_prompt)
        metrics.tokens.labels(*labels, "completion").inc(self.num_tokens)
        if self.tpot_s is not None:
            metrics.time_per_output_token.labels(*labels).observe(self.tpot_s)
        if self.usage is not None:
            self._close_usage(self.usage)

    def _close_usage(self, usage: Usage) -> None:
        """What only the engine knows, of a generation that had its first token."""
        metrics, labels = self.metrics, (self.model, self.pool)
        metrics.tokens.labels(*labels, "cached").inc(usage.cached_tokens)
        metrics.queue_time.labels(*labels).observe(usage.queue_s)
        metrics.prefill_time.labels(*labels).observe(usage.prefill_s)
        if usage.decode_s > 0:  # else it was ended by its caller, and the engine has not told
            metrics.decode_time.labels(*labels).observe(usage.decode_s)


class Generations:
    """All choices of one call. `meters` are theirs, and say what they took once `deltas` has ended."""

    def __init__(self, call: TextCall, services: Services, context: RequestContext) -> None:
        self.call = call
        self.context = context
        self.meters = tuple(
            Meter(services.metrics, call.model, request.pool, context.arrived_s) for request in call.requests
        )
        self._services = services

    async def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """Text deltas; the last one of each choice has a finish reason of stop or length. One failure ends all.

        Raises:
            QuotaExceeded, EngineRefused: as `streams_of` does.
            HeadraceError: what `generate_text` raises; an attempt that the engine gave up is `EngineUnavailable`.
        """
        with streams_of(self._services, self.call.requests, self._used_tokens):
            async with aclosing(merged([self._one(index) for index in range(len(self.meters))])) as deltas:
                async for delta in deltas:
                    yield delta

    async def _one(self, index: int) -> AsyncGenerator[TextDelta, None]:
        services, request, meter = self._services, self.call.requests[index], self.meters[index]
        trace = None if self.context.trace is None else TextTrace(self.context.trace, self.call.model)
        if trace is not None:
            request = trace.sent(request)
        try:
            async with aclosing(generate_text(services.client, services.tokenizer, request)) as deltas:
                async for delta in deltas:
                    meter.saw(delta)
                    if delta.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                        raise EngineUnavailable(delta.detail or f"the engine ended the request: {delta.finish_reason}")
                    yield delta
        except HeadraceError as error:
            meter.failed(error)
            raise _as_asked(error) from None
        finally:
            meter.reason = meter.reason or self.context.cut
            meter.close(len(request.prompt_token_ids))
            self._note(meter)
            if trace is not None:
                trace.ended(request, meter)
            is_answered = meter.outcome in ANSWERED
            services.spool.write(attempt_fact(request, self.context, is_answered=is_answered, reason=meter.reason))

    def _used_tokens(self) -> int:
        """A choice that was refused, or failed before its first token, has used nothing."""
        return sum(
            len(request.prompt_token_ids) + meter.num_tokens
            for request, meter in zip(self.call.requests, self.meters, strict=True)
            if meter.num_tokens or meter.reason is None
        )

    def _note(self, meter: Meter) -> None:
        """For the request's one log line: all choices together."""
        facts, outcome = self.context.facts, str(meter.outcome)
        if facts.setdefault("finish_reason", outcome) != outcome:
            facts["finish_reason"] = "several"
        facts.update(choices=len(self.meters), completion_tokens=sum(each.num_tokens for each in self.meters))


def _as_asked(error: HeadraceError) -> HeadraceError:
    """The engine's word for a JSON schema is not the one in the request."""
    if isinstance(error, InvalidRequest) and error.field == "json_schema":
        return InvalidRequest(f"response_format: {error}", field="response_format", expected=error.expected)
    return error
