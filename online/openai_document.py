"""What the OpenAPI document says of the OpenAI routes: the body that is taken, and the one shape of all errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def document(wire: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`. Types inside `wire` stand where they are used; none may hold itself."""
    schema = wire.model_json_schema()
    body = _inlined(schema, schema.pop("$defs", {}))
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "default": {"description": "An error", "content": {"application/json": {"schema": ERROR}}},
        },
    }


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in part.items()}
