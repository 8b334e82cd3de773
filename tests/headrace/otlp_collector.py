"""A collector of traces, OTLP over HTTP: a real server that reads what it is sent with OpenTelemetry's own classes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

CONTENT = "application/x-protobuf"


@dataclass(frozen=True)
class Received:
    """One span as it came, with the service that sent it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    has_remote_parent: bool
    is_error: bool

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass
class Collector:
    """`status` is what it answers; while `is_open` is not set, it answers nobody."""

    url: str
    spans: list[Received] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    status: int = 200
    is_open: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_received(service, span) for span in scope.spans]


@contextmanager
def collecting(*, is_open: bool = True) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.asked.set()
            collector.is_open.wait()
            if collector.status == 200 and self.headers["Content-Type"] == CONTENT:
                collector.paths.append(self.path)
                collector.take(body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    if is_open:
        collector.is_open.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="collector")
    thread.start()
    try:
        yield collector
    finally:
        collector.is_open.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _received(service: str, span: Span) -> Received:
    return Received(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=tuple(event.name for event in span.events),
        has_remote_parent=bool(span.flags & 0x200),
        is_error=span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in _typed(pairs)}


def _typed(pairs: Any) -> list[KeyValue]:
    return list(pairs)


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None, "an attribute without a value"
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
