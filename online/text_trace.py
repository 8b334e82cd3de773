"""The spans of one generation as the door sees it: itself, and below it queue, prefill and decode.

The engine tells how long it was queued and computed its prompt; the instant at which the door had the first token is
where these two end. The engine's own span of the attempt is a child of the generation's.
Source: OpenTelemetry semantic conventions, "Generative client spans" (names of the attributes)
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from core_engine.contracts import FinishReason, GenerateRequest, Usage
from core_engine.tracing import Attribute, SpanKind
from online.request_trace import RequestTrace

if TYPE_CHECKING:  # which has its trace beside it
    from online.generation import Meter

WELL = (FinishReason.STOP, FinishReason.LENGTH)


class TextTrace:
    """Made when the generation begins."""

    def __init__(self, trace: RequestTrace, model: str) -> None:
        self._trace = trace
        self._context = trace.new_child()
        self._model = model
        self._started_s = time.monotonic()

    def sent(self, request: GenerateRequest) -> GenerateRequest:
        """`request` as it goes to the engine."""
        return replace(request, traceparent=self._context.traceparent)

    def ended(self, request: GenerateRequest, meter: Meter) -> None:
        """However it ended; `meter` knows."""
        usage, outcome = meter.usage, meter.outcome
        if meter.first_s is not None and usage is not None:
            self._stages(usage, meter.num_tokens, meter.first_s, meter.last_s)
        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": self._trace.operation,
            "gen_ai.provider.name": "headrace",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": request.sampling.max_tokens,
            "gen_ai.response.finish_reasons": (str(outcome),),
            "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
            "gen_ai.usage.output_tokens": meter.num_tokens,
            "headrace.attempt_id": request.attempt_id,
        }
        if usage is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        is_error = outcome not in WELL
        if is_error:
            attributes["error.type"] = str(meter.reason or outcome)
        self._trace.record(
            f"{self._trace.operation} {self._model}",
            self._started_s,
            time.monotonic(),
            attributes,
            context=self._context,
            kind=SpanKind.CLIENT,
            is_error=is_error,
        )

    def _stages(self, usage: Usage, num_tokens: int, first_s: float, last_s: float) -> None:
        scheduled_s = first_s - usage.prefill_s
        prompt: dict[str, Attribute] = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        }
        record, parent = self._trace.record, self._context
        record("queue", scheduled_s - usage.queue_s, scheduled_s, {}, parent=parent)
        record("prefill", scheduled_s, first_s, prompt, parent=parent)
        record("decode", first_s, last_s, {"gen_ai.usage.output_tokens": num_tokens}, parent=parent)
