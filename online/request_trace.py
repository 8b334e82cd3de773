"""The spans of one request that is recorded: the server's, one for each stage of a prediction, and those of its texts.

They are made from what the door measures anyhow. Stages are known by how long they took, so theirs are laid end to end
in the order in which they happen. No span has the path that was asked for, which may hold an entity, nor anything that
the client sent besides.
Source: OpenTelemetry semantic conventions, "HTTP spans", "Generative client spans"
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.types import Scope

from core_engine.contracts import Prediction, StageTimes
from core_engine.tracing import Anchor, Attribute, Attributes, Span, SpanContext, SpanKind, Tracer

if TYPE_CHECKING:  # which holds one of these
    from online.request_context import RequestContext

FACTS = {  # of the request's log line, by what the server span calls them; no others are in it
    "tenant": "headrace.tenant",
    "predictor": "headrace.predictor",
    "version": "headrace.version",
    "rung": "headrace.rung",
    "reason": "headrace.reason",
    "cut": "headrace.cut",
    "model": "gen_ai.request.model",
    "choices": "gen_ai.request.choice.count",
}
STAGES = ("auth", "features", "queue", "model", "fallback")
OPERATIONS = {  # of a path, GenAI's word for what is asked there
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))


class RequestTrace:
    """`context` is that of the server span, which is recorded last; `operation` is empty where no model is asked."""

    def __init__(self, tracer: Tracer, context: SpanContext, parent: SpanContext | None, path: str) -> None:
        self.context = context
        self.operation = OPERATIONS.get(path, "")
        self._tracer = tracer
        self._parent = parent
        self._anchor = Anchor.now()
        self._attributes: dict[str, Attribute] = {}

    @classmethod
    def begin(cls, tracer: Tracer, parent: SpanContext | None, path: str) -> RequestTrace | None:
        """None where the request is not recorded."""
        context = tracer.begin(parent)
        return None if context is None else cls(tracer, context, parent, path)

    def new_child(self) -> SpanContext:
        """The context of a span below the server's."""
        return self._tracer.child_of(self.context)

    def record(
        self,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Attributes,
        *,
        parent: SpanContext | None = None,
        context: SpanContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        is_error: bool = False,
    ) -> None:
        """A span below `parent`, or below the server's; instants are monotonic seconds."""
        above = parent or self.context
        self._tracer.record(
            Span(
                name=name,
                context=context or self._tracer.child_of(above),
                parent=above,
                start_ns=self._anchor.unix_ns(start_s),
                end_ns=self._anchor.unix_ns(end_s),
                attributes=attributes,
                kind=kind,
                is_error=is_error,
            )
        )

    def predicted(self, prediction: Prediction, stages: StageTimes, arrived_s: float) -> None:
        """The stages that took any time, the reply's own the last of them."""
        at_s = arrived_s
        for stage in STAGES:
            if took_ms := getattr(stages, f"{stage}_ms"):
                self.record(stage, at_s, at_s + took_ms / 1e3, _stage_attributes(stage, prediction, stages))
                at_s += took_ms / 1e3
        end_s = arrived_s + stages.total_ms / 1e3
        attributes = _stage_attributes("serialise", prediction, stages)
        self.record("serialise", end_s - stages.serialise_ms / 1e3, end_s, attributes)
        if prediction.usage.batch_size:
            self._attributes["headrace.batch_size"] = prediction.usage.batch_size

    def finish(self, scope: Scope, context: RequestContext, *, is_abandoned: bool) -> None:
        """The server span. `is_abandoned`: the client went away before it had everything."""
        route = getattr(scope.get("route"), "path", None)
        name = scope["method"] if scope["method"] in METHODS else "HTTP"
        is_error = not is_abandoned and (context.status is None or context.status >= 500)
        attributes = self._attributes | _server_attributes(scope, context, route)
        if self.operation:
            attributes["gen_ai.operation.name"] = self.operation
        if is_error or is_abandoned:
            attributes["error.type"] = "client_disconnected" if is_abandoned else str(context.status or "no_response")
        self._tracer.record(
            Span(
                name=f"{name} {route}" if route else name,
                context=self.context,
                parent=self._parent,
                start_ns=self._anchor.unix_ns(context.arrived_s),
                end_ns=self._anchor.unix_ns(time.monotonic()),
                attributes=attributes,
                kind=SpanKind.SERVER,
                is_error=is_error,
            )
        )


def _server_attributes(scope: Scope, context: RequestContext, route: str | None) -> dict[str, Attribute]:
    """Without the method that a client made up, and without the path."""
    attributes: dict[str, Attribute] = {
        "http.request.method": scope["method"] if scope["method"] in METHODS else "_OTHER",
        "url.scheme": scope["scheme"],
        "headrace.attempt_id": context.attempt_id,
    }
    if route is not None:
        attributes["http.route"] = route
    if context.status is not None:
        attributes["http.response.status_code"] = context.status
    facts = {name: context.facts.get(key) for key, name in FACTS.items()}
    return attributes | {name: fact for name, fact in facts.items() if isinstance(fact, str | int)}


def _stage_attributes(stage: str, prediction: Prediction, stages: StageTimes) -> Attributes:
    usage = prediction.usage
    attributes: dict[str, Attribute] = {"headrace.overran": True} if stages.overran == stage else {}
    if stage == "features":
        read = usage.feature
        attributes |= {
            "headrace.feature.reads": read.reads,
            "headrace.feature.hits": read.hits,
            "headrace.feature.cached": read.cached,
            "headrace.feature.hedges": read.hedges,
            "headrace.feature.bytes": read.bytes,
        }
    elif stage == "model":
        attributes |= {"headrace.batch_size": usage.batch_size, "headrace.device_ms": usage.device_s * 1e3}
        if usage.prompt_tokens:
            attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    elif stage == "fallback":
        attributes["headrace.rung"] = str(prediction.rung)
    return attributes
