"""Our spans in OpenTelemetry's words, sent by its OTLP/HTTP exporter. The one module that imports its packages."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext as OtelContext
from opentelemetry.trace import SpanKind as OtelKind
from opentelemetry.trace import Status, StatusCode, TraceFlags

from core_engine.tracing import Span, SpanContext, SpanKind

KINDS = {SpanKind.SERVER: OtelKind.SERVER, SpanKind.CLIENT: OtelKind.CLIENT, SpanKind.INTERNAL: OtelKind.INTERNAL}
SCOPE = InstrumentationScope("headrace")


class OtlpSender:
    """To the collector at `endpoint`; a batch has `timeout_s`, its retries included."""

    def __init__(self, endpoint: str, service: str, *, timeout_s: float) -> None:
        self._resource = Resource.create({"service.name": service, "service.namespace": "headrace"})
        self._exporter = OTLPSpanExporter(endpoint, timeout=timeout_s)

    def send(self, spans: Sequence[Span]) -> bool:
        """Whether the collector took them. Never raises."""
        result = self._exporter.export([otel_span(span, self._resource) for span in spans])
        return result is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End a `send` that waits to try again, from another thread; a later one fails at once."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def otel_span(span: Span, resource: Resource) -> ReadableSpan:
    """`span` as the exporter takes it. The parent of a server span is in another process."""
    parent = None if span.parent is None else _context(span.parent, is_remote=span.kind is SpanKind.SERVER)
    return ReadableSpan(
        span.name,
        context=_context(span.context, is_remote=False),
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, timestamp=event.at_ns) for event in span.events],
        kind=KINDS[span.kind],
        status=Status(StatusCode.ERROR if span.is_error else StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=SCOPE,
    )


def _context(context: SpanContext, *, is_remote: bool) -> OtelContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return OtelContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, flags)
