"""The whole document, from what the app's routes say of themselves (`operation`). It needs no running app."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from online.access.layer import OPEN
from online.document import errors
from online.document.replies import OPENAI_REPLIES
from online.problems import is_openai
from online.schemas import OUR_REPLIES

DESCRIPTION = """Predictions within a budget, what batch jobs published, and OpenAI's text routes.

Errors are RFC 9457 problems on our routes, and OpenAI's error object on theirs. A request whose head is malformed, too
large or too slow to come is a problem on every route (400, 431, 408): it is refused before its route is known."""
BEARER, API_KEY = "bearer", "apiKey"
SECURITY_SCHEMES = {
    BEARER: {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of this door, or what the official client sends",
    },
    API_KEY: {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same key, on our own routes"},
}


def openapi_document(routes: Iterable[BaseRoute], *, version: str, needs_key: bool) -> dict[str, Any]:
    """OpenAPI 3.1. `needs_key`: whether a request without a key is refused.

    Source: OpenAPI Specification 3.1.1, sections 4.8.1 (the document), 4.8.10 (operations), 4.8.30 (security).
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods:
                paths.setdefault(route.path_format, {})[method.lower()] = _operation(route, needs_key=needs_key)
    replies = (*OUR_REPLIES, *OPENAI_REPLIES)
    _, schemas = msgspec.json.schema_components(replies, ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {**errors.SCHEMAS, **schemas},
            "responses": errors.components(),
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _operation(route: APIRoute, *, needs_key: bool) -> dict[str, Any]:
    said = route.openapi_extra
    if said is None:
        raise TypeError(f"the route {route.path} does not say what it takes and answers")
    summary, _, description = route.description.partition(". ")
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.param_convertors
    ]
    return {
        "operationId": route.name,
        "summary": summary.removesuffix("."),
        "description": description or summary,
        "security": _security(route.path, needs_key=needs_key),
        **said,
        "parameters": [*in_path, *said["parameters"]],
    }


def _security(path: str, *, needs_key: bool) -> list[dict[str, list[str]]]:
    """Any one of them; an empty one is no key at all."""
    if path in OPEN:
        return []
    schemes = [BEARER] if is_openai(path) else [BEARER, API_KEY]
    needed: list[dict[str, list[str]]] = [{scheme: []} for scheme in schemes]
    return needed if needs_key else [*needed, {}]
