"""What the OpenAI routes have in common in the OpenAPI document."""

from __future__ import annotations

from typing import Any

import msgspec

from online.document.errors import GUARDED, OPENAI_ERROR, WITH_BODY
from online.document.headers import DEADLINE, DELIVERY
from online.document.operation import JSON, Content, operation, reply_of

TAG = "OpenAI"


def generation(body: dict[str, Any], reply: Content) -> dict[str, Any]:
    """An operation that reads `body` and asks the engine."""
    errors = (*GUARDED, *WITH_BODY, 404, 504)
    return operation(TAG, {200: reply}, errors, body=body, asked=(DEADLINE, DELIVERY), is_openai=True)


def models(reply: type[msgspec.Struct], *errors: int) -> dict[str, Any]:
    """An operation that tells what may be named as a model."""
    return operation(TAG, {200: {JSON: reply_of(reply)}}, (*GUARDED, *errors), is_openai=True)


def text(whole: type[msgspec.Struct], chunk: type[msgspec.Struct]) -> Content:
    """A text's reply, whole or, with `stream`, as server-sent events."""
    return {JSON: reply_of(whole), "text/event-stream": {"schema": _event(chunk)}}


def _event(chunk: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of one event: OpenAPI 3.1 has no word for a stream of them, and its tools read it so."""
    told = [{"$ref": f"#/components/schemas/{name}"} for name in (chunk.__name__, OPENAI_ERROR)]
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": told}}
    return {
        "description": "Each event. What fails after the first token is an error, and nothing follows it.",
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}},
    }
