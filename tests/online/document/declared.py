"""Whether a reply is the one that the document declares for it."""

from __future__ import annotations

from typing import Any

import httpx
from jsonschema_rs import Draft202012Validator

Document = dict[str, Any]


def operations(document: Document) -> dict[str, dict[str, Any]]:
    """By path: each has one."""
    return {path: operation for path, methods in document["paths"].items() for operation in methods.values()}


def check_declared(document: Document, url: str, reply: httpx.Response) -> None:
    """Its status, media type, required headers and body are those of the operation at `url`, or of OpenAI's error."""
    response = operation_at(document, url)["responses"][str(reply.status_code)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    media_type = reply.headers["content-type"].partition(";")[0]
    assert media_type in response["content"]
    for name, header in response["headers"].items():
        value = reply.headers[name]
        is_number = header["schema"]["type"] == "integer"
        Draft202012Validator(header["schema"]).validate(int(value) if is_number else value)
    schema = response["content"][media_type]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(reply.json())


def operation_at(document: Document, url: str) -> dict[str, Any]:
    steps = url.split("/")
    (found,) = [
        operation
        for path, operation in operations(document).items()
        if len(path.split("/")) == len(steps) and all(map(_fits, path.split("/"), steps))
    ]
    return found


def _fits(declared: str, step: str) -> bool:
    return declared == step or declared.startswith("{")
