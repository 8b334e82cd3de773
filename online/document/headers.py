"""Headers of requests and replies, as the OpenAPI document describes them. `wire_headers` reads the first two."""

from __future__ import annotations

from typing import Any

from online.wire_headers import DELIVERY_KEY, MAX_BUDGET_MS


def _asked(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _answered(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {name: {"description": description, "required": True, "schema": schema}}


DEADLINE = _asked(
    "X-Deadline-Ms",
    "How many milliseconds the caller waits, from the request's arrival",
    {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_BUDGET_MS},
)
DELIVERY = _asked(
    "Idempotency-Key",
    "Groups the attempts that a client makes at one delivery",
    {"type": "string", "pattern": f"^{DELIVERY_KEY.pattern}$"},
)
TRACE = _asked("traceparent", "W3C Trace Context. One that is not well-formed is passed over", {"type": "string"})
CORRELATION = _asked("X-Request-Id", "For correlation. One that is not well-formed is replaced", {"type": "string"})

REQUEST_ID = _answered("X-Request-Id", "The caller's, or one of ours", {"type": "string", "minLength": 1})
RETRY_AFTER = _answered("Retry-After", "Seconds until there may be room", {"type": "integer", "minimum": 1})
WWW_AUTHENTICATE = _answered("WWW-Authenticate", "The scheme of keys", {"type": "string"})
SERVER_TIMING = _answered("Server-Timing", "Milliseconds of each stage, and what each was allowed", {"type": "string"})
