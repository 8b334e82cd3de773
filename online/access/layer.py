"""The layer inside `RequestLayer`: no route sees a request whose headers are too large, whose caller is not known, or
whose tenant has used up its requests. In pure ASGI, and before the body is read: a refusal costs microseconds."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from core_engine.errors import HeadraceError, QuotaExceeded
from online.access.gate import METRICS
from online.access.open_connections import NO_PLACE, Going, TooManyConnections
from online.problems import HeadersTooLarge, error_response
from online.request_context import KEY, RequestContext
from online.services import Services

OPEN = ("/healthz", "/readyz")  # an orchestrator's probes have no key; what they say is no tenant's
ALLOWED = "allowed"


class AccessLayer:
    """Sets the tenant of the request's context."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._admit(scope, scope[KEY])
            except HeadraceError as error:
                await error_response(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope, context: RequestContext) -> None:
        _check_size(scope, self._services.http.max_header_bytes)
        path, gate = scope["path"], self._services.gate
        if path in OPEN:
            return
        if scope.get(NO_PLACE):
            self._services.metrics.connections_cut.labels(Going.CROWDED).inc()
            raise TooManyConnections("this door has as many connections as it may; try again")
        count, tenant = self._services.metrics.access, ""
        try:
            context.tenant = tenant = gate.tenant_of(Headers(scope=scope), path)
            context.facts["tenant"] = tenant
            if path != METRICS:
                gate.quotas.take_request(tenant)
        except HeadraceError as error:
            count.labels(tenant, outcome_of(error)).inc()
            raise
        count.labels(tenant, ALLOWED).inc()


def outcome_of(error: HeadraceError) -> str:
    """A word for a metric's label: the quota that was met, or why a caller is not let in."""
    return error.quota if isinstance(error, QuotaExceeded) else error.code


def _check_size(scope: Scope, max_bytes: int) -> None:
    num_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
    if num_bytes > max_bytes:
        message = f"the request's headers have {num_bytes} bytes; at most {max_bytes} are taken"
        raise HeadersTooLarge(message, field="headers", value=num_bytes, expected=f"at most {max_bytes} bytes")
