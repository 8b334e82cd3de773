"""Bodies are bounded while they are read, are JSON, and every refusal says why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.core_engine.predictors.doubles import INPUTS
from tests.online.conftest import DoorUnderTest, ServedDoor

ROUTE = "/v1/predict/delay"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "not JSON"),
        (b"not json", "not JSON"),
        (b'{"inputs": NaN}', "not JSON"),
        (b'{"inputs": {"price": Infinity}}', "not JSON"),
        (b'{"inputs": 1e999}', "not JSON"),
        (b'{"inputs": ' + b"1" * 5000, "bytes"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b"null", "expected a JSON object"),
        (b'"' + b"x" * 2000 + b'"', "expected a JSON object"),
        (b"[" * 3000 + b"]" * 1000, "nested too deeply"),
        (b'{"inputs":' * 400 + b"1" + b"}" * 400, "bytes"),
    ],
)
async def test_a_body_that_is_none_is_refused_with_its_reason(door: DoorUnderTest, content: bytes, detail: str) -> None:
    reply = await door.http.post(ROUTE, content=content, headers=JSON)
    assert reply.status_code in (400, 413)
    problem = reply.json()
    assert detail in problem["detail"]
    assert problem["field"] == "body"
    assert len(reply.content) < 1000


async def test_a_number_of_too_many_digits_is_refused(door: DoorUnderTest) -> None:
    content = b'{"inputs": {"seats": ' + b"9" * 4000 + b"}}"
    reply = await door.http.post(ROUTE, content=content, headers=JSON)
    assert reply.status_code in (400, 422)
    assert len(reply.content) < 1000


async def test_deep_nesting_within_the_limit_is_an_ordinary_refusal(door: DoorUnderTest) -> None:
    content = b'{"inputs": {"origin": ' + b"[" * 500 + b"]" * 500 + b"}}"
    reply = await door.http.post(ROUTE, content=content, headers=JSON)
    assert reply.status_code == 422
    assert reply.json()["field"] == "origin"


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
async def test_another_content_type_is_415(door: DoorUnderTest, content_type: str) -> None:
    reply = await door.http.post(ROUTE, content=b"{}", headers={"Content-Type": content_type})
    assert reply.status_code == 415
    assert reply.json()["field"] == "Content-Type"
    assert reply.json()["expected"] == "application/json"


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
async def test_json_by_any_of_its_names_is_taken(door: DoorUnderTest, content_type: str) -> None:
    content = httpx.Request("POST", "http://x", json={"inputs": INPUTS}).content
    reply = await door.http.post(ROUTE, content=content, headers={"Content-Type": content_type})
    assert reply.status_code == 200


async def test_a_declared_length_over_the_limit_is_413_before_anything_is_read(served: ServedDoor) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"POST /v1/predict/delay HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000000000\r\n\r\n"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 413 " in head.splitlines()[0]
    assert b"connection: close" in head.lower()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("num_chunks", [5, 64])
async def test_a_chunked_body_over_the_limit_is_413_and_the_sender_reads_it(
    served: ServedDoor, num_chunks: int
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(num_chunks):
            yield b" " * 1024

    reply = await served.http.post(ROUTE, content=chunks(), headers=JSON)
    assert reply.status_code == 413
    assert reply.json()["type"] == "urn:headrace:problem:body_too_large"
    assert reply.json()["expected"] == "at most 4096 bytes"
    assert (await served.http.post(ROUTE, json={"inputs": INPUTS})).status_code == 200


async def test_an_endless_body_is_cut_off(served: ServedDoor) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65536

    with contextlib.suppress(httpx.TransportError):  # the connection is closed under the sender
        assert (await served.http.post(ROUTE, content=endless(), headers=JSON)).status_code == 413
    assert (await served.http.post(ROUTE, json={"inputs": INPUTS})).status_code == 200
    assert served.door.sample("headrace_http_requests_total", route="/v1/predict/{predictor}", status="413") == 1


async def test_a_client_that_leaves_while_sending_harms_nobody(served: ServedDoor) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"POST /v1/predict/delay HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await served.http.post(ROUTE, json={"inputs": INPUTS})).status_code == 200
