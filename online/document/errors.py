"""The errors of the OpenAPI document: one shape on our routes (RFC 9457), another on OpenAI's, by status.

`problems` writes them; `tests/online/contract` compares every error of a running door with what stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from online.document.headers import REQUEST_ID, RETRY_AFTER, WWW_AUTHENTICATE

PROBLEM = "Problem"
OPENAI_ERROR = "OpenAIError"
NULLABLE_TEXT = {"type": ["string", "null"]}
SCHEMAS: Mapping[str, dict[str, Any]] = {
    PROBLEM: {
        "description": "RFC 9457. Of what can be corrected: the `field`, its `value`, and what is `expected`.",
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "additionalProperties": False,
        "properties": {
            "type": {"type": "string", "pattern": "^urn:headrace:problem:[a-z_]+$"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "instance": {"type": "string", "description": "The path that was asked for"},
            "field": NULLABLE_TEXT,
            "value": {"description": "Long values are shortened"},
            "expected": NULLABLE_TEXT,
        },
    },
    OPENAI_ERROR: {
        "type": "object",
        "required": ["error"],
        "additionalProperties": False,
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "additionalProperties": False,
                "properties": {
                    "message": {"type": "string"},
                    "type": {"enum": ["invalid_request_error", "server_error", "requests", "tokens", "streams"]},
                    "param": NULLABLE_TEXT | {"description": "The field that is wrong"},
                    "code": {"type": "string"},
                },
            }
        },
    },
}
MEANINGS: Mapping[int, str] = {
    400: "The body is not a JSON object",
    401: "A key is needed and none was sent, or it is none of ours",
    403: "The key was revoked or has expired, or is not for this",
    404: "Nothing has this name",
    408: "The body did not come in time; the connection is closed",
    413: "The body has more than `http.max_body_bytes`; the connection is closed",
    415: "The body is not declared as application/json in UTF-8",
    422: "A field, an input or a header is wrong: `field`, `value` and `expected` say which and how",
    429: "A quota of the key's tenant: its requests, tokens or streams",
    431: "The headers have more than `http.max_header_bytes`",
    500: "A fault of this door; its log says more",
    503: "It cannot be done now: the door drains or is full, or the engine or the store is away",
    504: "It was not done by the deadline",
}
OPENAI_MEANINGS: Mapping[int, str] = {
    **MEANINGS,
    400: "A field is wrong or not supported: `param` and `message` say which and why",
}
GUARDED = (401, 403, 429, 431, 500, 503)  # of every route that needs a key
WITH_BODY = (400, 408, 413, 415)


def responses(statuses: Iterable[int], *, is_openai: bool) -> dict[str, Any]:
    """The error responses of an operation."""
    kind = OPENAI_ERROR if is_openai else PROBLEM
    return {str(status): {"$ref": f"#/components/responses/{kind}{status}"} for status in sorted(statuses)}


def components() -> dict[str, Any]:
    """The responses that `responses` refers to."""
    shapes = ((PROBLEM, "application/problem+json", MEANINGS), (OPENAI_ERROR, "application/json", OPENAI_MEANINGS))
    return {
        f"{kind}{status}": _response(status, meaning, kind, media_type)
        for kind, media_type, meanings in shapes
        for status, meaning in meanings.items()
    }


def _response(status: int, meaning: str, kind: str, media_type: str) -> dict[str, Any]:
    headers = dict(REQUEST_ID)
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers |= RETRY_AFTER
    if status == HTTPStatus.UNAUTHORIZED:
        headers |= WWW_AUTHENTICATE
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{kind}"}}}
    return {"description": meaning, "headers": headers, "content": content}
