"""What a route says of itself, beside its path, method and docstring: for `openapi_extra` of its decorator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from online.document.errors import responses
from online.document.headers import CORRELATION, REQUEST_ID, TRACE

JSON = "application/json"
Content = Mapping[str, dict[str, Any]]


def operation(
    tag: str,
    replies: Mapping[int, Content],
    errors: tuple[int, ...],
    *,
    body: dict[str, Any] | None = None,
    asked: tuple[dict[str, Any], ...] = (),
    answered: Mapping[str, Any] | None = None,
    is_openai: bool = False,
) -> dict[str, Any]:
    """`replies`: content by media type of each status that is no error. `asked`, `answered`: headers besides those of
    every route."""
    headers = {**REQUEST_ID, **(answered or {})}
    told = {
        str(status): {"description": "The answer", "headers": headers, "content": dict(content)}
        for status, content in replies.items()
    }
    described: dict[str, Any] = {
        "tags": [tag],
        "parameters": [*asked, TRACE, CORRELATION],
        "responses": told | responses(errors, is_openai=is_openai),
    }
    if body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: body}}
    return described


def reply_of(struct: type) -> dict[str, Any]:
    """The schema of a reply, which is among `replies.WHOLE`."""
    return {"schema": {"$ref": f"#/components/schemas/{struct.__name__}"}}
