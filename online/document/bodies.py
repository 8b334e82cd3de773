"""Request bodies of the OpenAPI document: the schema of a wire type, whole, with all that its route takes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from online.openai_fields import WITHOUT_EFFECT, Neutral


def schema_of(wire: type[BaseModel]) -> dict[str, Any]:
    """Types inside `wire` stand where they are used; none may hold itself."""
    schema = wire.model_json_schema()
    inlined: dict[str, Any] = _inlined(schema, schema.pop("$defs", {}))
    return inlined


def openai_body(wire: type[BaseModel], neutral: Neutral, example: dict[str, Any]) -> dict[str, Any]:
    """With the fields that `openai_fields` takes because they change nothing, and the values that do not."""
    schema = schema_of(wire)
    ignored: dict[str, Any] = {name: {"description": "Taken, without effect"} for name in WITHOUT_EFFECT}
    unsupported = {name: _only(values) for name, values in neutral.items()}
    schema["properties"] = schema["properties"] | unsupported | ignored
    return {"schema": schema, "example": example}


def _only(values: tuple[object, ...]) -> dict[str, Any]:
    return {"description": "Not supported: taken where it changes nothing", "enum": [None, *values]}


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in part.items()}
