"""The OpenAPI document of the OpenAI routes: it stands alone, and says of each body and error what is true."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.online.conftest import DoorUnderTest

LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "tiny", "prompt": "x"},
    "/v1/embeddings": {"model": "tiny", "input": "x"},
}


async def operation(door: DoorUnderTest, route: str) -> dict[str, Any]:
    found: dict[str, Any] = (await door.http.get("/openapi.json")).json()["paths"][route]["post"]
    return found


@pytest.mark.parametrize("route", LEAST)
async def test_a_body_is_described_where_it_is_taken(door: DoorUnderTest, route: str) -> None:
    described = await operation(door, route)
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == set(LEAST[route])
    assert schema["additionalProperties"] is False
    assert "$ref" not in json.dumps(schema)
    assert (await door.http.post(route, json=LEAST[route])).status_code == 200
    for field in schema["required"]:
        body = {name: value for name, value in LEAST[route].items() if name != field}
        assert (await door.http.post(route, json=body)).status_code == 400


@pytest.mark.parametrize("route", LEAST)
@pytest.mark.parametrize("wrong", [{"model": "gpt-9"}, {"model": 5}, {"no_such_field": 1}, {"headrace": "yes"}])
async def test_every_error_has_the_shape_that_the_document_declares(
    door: DoorUnderTest, route: str, wrong: dict[str, Any]
) -> None:
    declared = (await operation(door, route))["responses"]["default"]["content"]["application/json"]["schema"]
    reply = await door.http.post(route, json=LEAST[route] | wrong)
    assert 400 <= reply.status_code < 500
    error = reply.json()["error"]
    shape = declared["properties"]["error"]
    assert set(error) == set(shape["required"]) == set(shape["properties"])
    assert isinstance(error["message"], str)
    assert isinstance(error["code"], str)
    assert (error["param"], error["type"]) == (next(iter(wrong)), "invalid_request_error")
