"""The OpenAPI document: valid, whole, and true of keys, bodies and errors as the door was started."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from jsonschema_rs import Draft202012Validator

from core_engine.tenants.quotas import Quota
from online.document.openapi import openapi_document
from tests.core_engine.predictors.doubles import INPUTS
from tests.online.access.conftest import Guard, guard  # noqa: F401
from tests.online.conftest import DoorUnderTest
from tests.online.document.declared import check_declared, operations

LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "tiny", "prompt": "x"},
    "/v1/embeddings": {"model": "tiny", "input": "x"},
    "/v1/predict/{predictor}": {"inputs": INPUTS},
}
OURS = ("/v1/predict/{predictor}", "/v1/predictions/{predictor}/{entity}", "/metrics")
PROBES = ("/healthz", "/readyz")


async def document(door: DoorUnderTest) -> dict[str, Any]:
    found: dict[str, Any] = (await door.http.get("/openapi.json")).json()
    return found


def body_schema(document: dict[str, Any], route: str) -> dict[str, Any]:
    schema: dict[str, Any] = operations(document)[route]["requestBody"]["content"]["application/json"]["schema"]
    return schema


async def test_it_is_valid_openapi(door: DoorUnderTest) -> None:
    found = await document(door)
    assert found["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(found).validate()


async def test_every_reference_leads_somewhere(door: DoorUnderTest) -> None:
    found = await document(door)
    references = [part.partition('"')[0] for part in json.dumps(found).split('"$ref": "')[1:]]
    assert len(set(references)) > 20
    for reference in references:
        part = found
        for step in reference.removeprefix("#/").split("/"):
            part = part[step]


async def test_every_operation_has_a_name_of_its_own_and_says_what_it_does(door: DoorUnderTest) -> None:
    found = operations(await document(door)).values()
    assert len({operation["operationId"] for operation in found}) == len(found) == 10
    assert all(operation["summary"] and operation["tags"] for operation in found)


async def test_keys_are_optional_where_none_is_needed_and_probes_know_none(door: DoorUnderTest) -> None:
    for path, operation in operations(await document(door)).items():
        keys = [] if path in PROBES else ["bearer", *(["apiKey"] if path in OURS else [])]
        schemes = [{key: list[str]()} for key in keys] + ([{}] if keys else [])
        assert operation["security"] == schemes, path


async def test_keys_are_needed_where_the_door_needs_them(guard: Guard) -> None:  # noqa: F811
    async with guard() as door:
        found = (await door.http.get("/openapi.json", headers=await door.key())).json()
    for path, operation in operations(found).items():
        assert {} not in operation["security"]
        assert bool(operation["security"]) == (path not in PROBES)


def test_a_route_that_says_nothing_of_itself_is_found_out() -> None:
    app = FastAPI()
    app.get("/silent")(lambda: None)
    with pytest.raises(TypeError, match="/silent does not say"):
        openapi_document(app.routes, version="1", needs_key=False)


@pytest.mark.parametrize("route", LEAST)
async def test_a_body_is_described_where_it_is_taken(door: DoorUnderTest, route: str) -> None:
    schema, url = body_schema(await document(door), route), route.format(predictor="delay")
    assert set(schema["required"]) == set(LEAST[route])
    assert schema["additionalProperties"] is False
    assert "$ref" not in json.dumps(schema)
    assert (await door.http.post(url, json=LEAST[route])).status_code == 200
    for field in schema["required"]:
        body = {name: value for name, value in LEAST[route].items() if name != field}
        assert (await door.http.post(url, json=body)).status_code in (400, 422)


@pytest.mark.parametrize("route", LEAST)
async def test_examples_are_what_the_schema_takes(door: DoorUnderTest, route: str) -> None:
    content = operations(await document(door))[route]["requestBody"]["content"]["application/json"]
    examples = (
        [each["value"] for each in content["examples"].values()] if "examples" in content else [content["example"]]
    )
    validator = Draft202012Validator(content["schema"])
    for example in examples:
        validator.validate(example)


@pytest.mark.parametrize(
    ("method", "url", "asked", "status"),
    [
        ("POST", "/v1/completions", {"content": b"[]"}, 400),
        ("POST", "/v1/predict/delay", {"content": b"[]"}, 400),
        ("POST", "/v1/embeddings", {"json": LEAST["/v1/embeddings"] | {"model": "gpt-9"}}, 404),
        ("POST", "/v1/predict/nothing", {"json": {"inputs": {}}}, 404),
        ("GET", "/v1/predictions/delay/nowhere", {}, 404),
        ("GET", "/v1/models/gpt-9", {}, 404),
        ("POST", "/v1/chat/completions", {"content": b" " * 5000}, 413),
        ("POST", "/v1/predict/delay", {"content": b" " * 5000}, 413),
        ("POST", "/v1/chat/completions", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
        ("POST", "/v1/predict/delay", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
        ("POST", "/v1/predict/delay", {"json": {"inputs": {}}}, 422),
        ("GET", "/v1/models", {"headers": {"X-Long": "x" * 40_000}}, 431),
        ("GET", "/healthz", {"headers": {"X-Long": "x" * 40_000}}, 431),
    ],
)
async def test_an_error_is_the_declared_one(
    door: DoorUnderTest, method: str, url: str, asked: dict[str, Any], status: int
) -> None:
    asked.setdefault("headers", {"Content-Type": "application/json"})
    reply = await door.http.request(method, url, **asked)
    assert reply.status_code == status
    check_declared(await document(door), url, reply)


async def test_a_door_that_drains_says_when_to_come_again_as_declared(door: DoorUnderTest) -> None:
    declared = await document(door)
    door.services.state.draining = True
    for url in ("/v1/models", "/v1/predictions/delay/x"):
        reply = await door.http.get(url)
        assert reply.status_code == 503
        check_declared(declared, url, reply)


async def test_an_open_door_s_errors_for_a_wrong_key_are_declared(guard: Guard) -> None:  # noqa: F811
    async with guard() as door:
        declared = (await door.http.get("/openapi.json", headers=await door.key())).json()
        for url in ("/v1/models", "/v1/predictions/delay/x", "/metrics"):
            reply = await door.http.get(url)
            assert reply.status_code == 401
            check_declared(declared, url, reply)


async def test_a_quota_that_is_used_up_is_declared_with_when_to_come_again(guard: Guard) -> None:  # noqa: F811
    async with guard(needs_key=False, default=Quota(requests_per_s=1)) as door:
        declared = (await door.http.get("/openapi.json")).json()
        for url in ("/v1/models", "/v1/predictions/delay/x"):
            reply = await door.http.get(url)
            assert reply.status_code == 429
            check_declared(declared, url, reply)
