"""One generation as the door sees it: a stream of text, its latencies, its usage fact. Both chat routes read from it.

Closing it aborts the generation in the engine, and counts it as aborted.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

from core_engine.contracts import FinishReason, Monotonic, Path, ReadCost, Reason, Rung, Usage
from core_engine.costs.facts import CallerFact
from core_engine.errors import DeadlineExceeded, EngineRefused, EngineUnavailable, HeadraceError
from core_engine.llm.text import TextDelta, generate_text
from core_engine.metrics import Metrics
from core_engine.predictors.climb import reason_of
from online.chat_request import ChatCall
from online.request_context import RequestContext
from online.services import Services

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
            gap_s = (now - self.last_s) / num_tokens
            for _ in range(num_tokens):
                metrics.inter_token_latency.labels(*labels).observe(gap_s)
        self.last_s, self.num_tokens = now, self.num_tokens + num_tokens

    def close(self, num_prompt: int) -> None:
        """Count the generation, however it ended."""
        metrics, labels = self.metrics, (self.model, self.pool)
        metrics.e2e_latency.labels(*labels).observe(self.clock() - self.arrived_s)
        metrics.generations.labels(*labels, self.outcome, self.reason or "").inc()
        metrics.tokens.labels(*labels, "prompt").inc(num_prompt)
        metrics.tokens.labels(*labels, "completion").inc(self.num_tokens)
        if self.first_s is not None and self.num_tokens > 1:
            tpot_s = (self.last_s - self.first_s) / (self.num_tokens - 1)
            metrics.time_per_output_token.labels(*labels).observe(tpot_s)
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


async def generation(call: ChatCall, services: Services, context: RequestContext) -> AsyncGenerator[TextDelta, None]:
    """Text deltas; the last one has a finish reason of stop or length.

    Raises:
        EngineRefused: this door has as many streams open as it may.
        HeadraceError: what `generate_text` raises; an attempt that the engine gave up is `EngineUnavailable`.
    """
    state = services.state
    if state.streams >= services.http.max_streams:
        raise EngineRefused(f"{state.streams} generations are open on this door; no more are taken")
    state.streams += 1
    meter = Meter(services.metrics, call.model, call.request.pool, context.arrived_s)
    try:
        async with aclosing(generate_text(services.client, services.tokenizer, call.request)) as deltas:
            async for delta in deltas:
                meter.saw(delta)
                if delta.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                    raise EngineUnavailable(delta.detail or f"the engine ended the request: {delta.finish_reason}")
                yield delta
    except HeadraceError as error:
        meter.outcome = FinishReason.DEADLINE if isinstance(error, DeadlineExceeded) else FinishReason.ERROR
        meter.reason = reason_of(error)
        raise
    finally:
        state.streams -= 1
        meter.close(len(call.request.prompt_token_ids))
        context.facts.update(finish_reason=str(meter.outcome), completion_tokens=meter.num_tokens)
        services.spool.write(_fact(call, meter, context))


def _fact(call: ChatCall, meter: Meter, context: RequestContext) -> CallerFact:
    is_answered = meter.outcome in ANSWERED
    request = call.request
    return CallerFact(
        attempt_id=request.attempt_id,
        delivery_key=context.delivery_key,
        tenant=request.tenant,
        path=Path.ONLINE,
        predictor=request.predictor,
        version=request.version,
        rung=Rung.MODEL if is_answered else Rung.NONE,
        reason=meter.reason,
        feature=ReadCost(),
        caller_cpu_s=0.0,
        delivered_in_time=is_answered and not request.deadline.expired,
        arrived_at=context.arrived_at,
        answered_at=datetime.now(UTC),
    )
