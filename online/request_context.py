"""The outermost layer of the app, in pure ASGI: identity, counting, draining, one log line per finished request.

Pure ASGI because a wrapper that runs the app in a task of its own breaks streaming and hides disconnects.
"""

from __future__ import annotations

import re
import time
import traceback
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core_engine.contracts import Reason
from core_engine.errors import HeadraceError, Unavailable
from core_engine.tenants.view import ANONYMOUS
from core_engine.tracing import SpanContext, Tracer
from online.problems import error_response
from online.request_trace import RequestTrace
from online.services import Services

log = structlog.get_logger(__name__)

KEY = "headrace.context"
RECEIVED = "headrace.received_s"  # when the server had a request's head, `time.monotonic`: the app's turn comes later
REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
PROBES = ("/healthz", "/readyz", "/metrics")
CLIENT_CLOSED = 499  # nginx's word for a client that went away; never sent


@dataclass(slots=True)
class RequestContext:
    """One request. `facts` is what its log line will say besides: names, rungs, reasons; never inputs or prompts.

    `trace_id` is the caller's or, where `trace` records the request, that of the trace."""

    request_id: str
    trace_id: str | None
    trace: RequestTrace | None = None
    attempt_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    arrived_s: float = field(default_factory=time.monotonic)
    arrived_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    delivery_key: str | None = None
    tenant: str = ANONYMOUS  # set by `online.access.layer`
    cut: Reason | None = None  # why the door itself ended the connection
    facts: dict[str, object] = field(default_factory=dict)
    status: int | None = None
    finished: bool = False
    disconnected: bool = False

    @classmethod
    def of(cls, scope: Scope, tracer: Tracer | None) -> RequestContext:
        """A client's X-Request-Id is for correlation only; one that is not well-formed is replaced by our own."""
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        parent, trace = _parent(headers), None
        if tracer is not None and scope["path"] not in PROBES:
            trace = RequestTrace.begin(tracer, parent, scope["path"])
        known = trace.context if trace is not None else parent
        arrived_s = scope.get(RECEIVED) or time.monotonic()  # another server says nothing of it
        return cls(request_id, None if known is None else known.trace_id, trace, arrived_s=arrived_s)

    @property
    def traceparent(self) -> str | None:
        """Of the request's server span, where one is recorded."""
        return None if self.trace is None else self.trace.context.traceparent


def context_of(request: Request) -> RequestContext:
    context: RequestContext = request.scope[KEY]
    return context


class RequestLayer:
    """Wraps every HTTP request; other scopes pass through."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext.of(scope, self._services.tracer)
        scope[KEY] = context
        state, gauge = self._services.state, self._services.metrics.http_in_flight
        state.in_flight += 1
        gauge.inc()
        try:
            await self._answer(scope, _watched(receive, context), _recorded(send, context), context)
        finally:
            state.in_flight -= 1
            gauge.dec()
            self._finish(scope, context)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, context: RequestContext) -> None:
        if self._services.state.draining and scope["path"] not in PROBES:
            refusal = error_response(scope["path"], Unavailable("this door is draining"), {"Connection": "close"})
            await refusal(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            context.disconnected = True
        except Exception as error:  # noqa: BLE001 - any bug of a route ends here
            log.error(
                "request_failed",
                error=type(error).__name__,
                frames=frames_of(error),
                request_id=context.request_id,
                attempt_id=context.attempt_id,
            )
            if context.status is None:
                await error_response(scope["path"], HeadraceError("internal error; see the door's log"))(
                    scope, receive, send
                )

    def _finish(self, scope: Scope, context: RequestContext) -> None:
        route = getattr(scope.get("route"), "path", None) or "unmatched"
        if context.cut is not None:
            context.facts["cut"] = str(context.cut)
        status = CLIENT_CLOSED if context.disconnected and not context.finished else context.status
        self._services.metrics.http_requests.labels(route, str(status)).inc()
        emit = log.debug if scope["path"] in PROBES else log.info
        emit(
            "request",
            method=scope["method"],
            route=route,
            status=status,
            duration_ms=round((time.monotonic() - context.arrived_s) * 1e3, 3),
            request_id=context.request_id,
            attempt_id=context.attempt_id,
            trace_id=context.trace_id,
            **context.facts,
        )
        if context.trace is not None:
            context.trace.finish(scope, context, is_abandoned=status == CLIENT_CLOSED)


def _parent(headers: Headers) -> SpanContext | None:
    """Who asked, by the one `traceparent`; several are none (Trace Context, section 3.2.2)."""
    given = headers.getlist("traceparent")
    return SpanContext.read(given[0]) if len(given) == 1 else None


def frames_of(error: BaseException) -> list[str]:
    """Where `error` was raised, outermost first. Without its message, which may hold an input or a prompt."""
    return [f"{at.filename}:{at.lineno} {at.name}" for at in traceback.extract_tb(error.__traceback__)]


def _watched(receive: Receive, context: RequestContext) -> Receive:
    async def watched() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            context.disconnected = True
        return message

    return watched


def _recorded(send: Send, context: RequestContext) -> Send:
    async def recorded(message: Message) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = context.request_id
            if context.traceparent is not None:
                headers["traceparent"] = context.traceparent
        elif message["type"] == "http.response.body":
            context.finished = not message.get("more_body", False)
        await send(message)

    return recorded
