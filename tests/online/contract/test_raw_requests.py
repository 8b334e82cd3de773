"""Bytes that no client library sends: bodies that are no JSON, or too much of it; odd headers; what is no HTTP at all.

Every answer is a declared one, and none is a fault of the door.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from tests.online.contract.serving import Stranger
from tests.online.document.declared import check_declared

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
PREDICT = "/v1/predict/delay"
ROUTES = (CHAT, COMPLETION, EMBEDDING, PREDICT)
NINES = b"9" * 4300  # as many digits as Python converts
DEEP = 900


def nested(opening: bytes, closing: bytes, depth: int = DEEP) -> bytes:
    return opening * depth + closing * depth


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"late?",
    "half": b'{"model": "tiny", "prompt": "ab',
    "two": b"{} {}",
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"inputs": {"price": Infinity}}',
    "invalid UTF-8": b'{"model": "\xff\xfe"}',
    "UTF-16": '{"model": "tiny"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"model": "tiny"}',
    "half a character": b'{"model": "\\ud800", "inputs": {}}',
    "half a character as a name": b'{"\\ud800": 1}',
    "a zero byte": b'{"model": "tiny\x00"}',
    "a number too large": b'{"seed": 1e400}',
    "too many digits": b'{"seed": 9%b}' % NINES,
    "deep": nested(b"[", b"]", 100_000),
    "deep objects": b'{"inputs": ' + nested(b'{"a":', b"}").replace(b":}", b":1}") + b"}",
    "deep lists": b'{"prompt": ' + nested(b"[", b"]") + b', "model": "tiny"}',
    "the same name twice": b'{"model": "tiny", "model": "none", "inputs": 1, "inputs": 2}',
    "tens of thousands of members": b'{"inputs": {' + b",".join(b'"%d":0' % i for i in range(90_000)) + b"}}",
}


def post(stranger: Stranger, route: str, body: bytes, **headers: str | bytes) -> httpx.Response:
    asked = {**stranger.headers, "Content-Type": "application/json", **headers}
    in_bytes = {name.encode(): value.encode() if isinstance(value, str) else value for name, value in asked.items()}
    return stranger.http.post(route, content=body, headers=in_bytes)


@pytest.fixture(scope="module")
def declared(stranger: Stranger) -> dict[str, Any]:
    return stranger.document()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("route", ROUTES)
def test_a_body_that_is_none_is_refused_as_declared(
    stranger: Stranger, declared: dict[str, Any], route: str, body: bytes
) -> None:
    reply = post(stranger, route, body)
    assert 400 <= reply.status_code < 500
    check_declared(declared, route, reply)


NUMBERS = {
    CHAT: ("n", "seed", "top_k", "max_tokens", "max_completion_tokens", "top_logprobs", "temperature", "min_p"),
    COMPLETION: ("n", "seed", "top_k", "max_tokens", "logprobs", "temperature", "presence_penalty", "prompt"),
    EMBEDDING: ("input",),
    PREDICT: ("budget_ms", "inputs"),
}
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
    COMPLETION: {"model": "tiny", "prompt": "x"},
    EMBEDDING: {"model": "tiny", "input": "x"},
    PREDICT: {"inputs": {"origin": "JFK", "dest": "LAX", "departure": "2026-12-01T09:00:00Z"}},
}


@pytest.mark.parametrize(("route", "field"), [(route, field) for route, fields in NUMBERS.items() for field in fields])
def test_a_number_of_thousands_of_digits_is_the_client_s_fault(
    stranger: Stranger, declared: dict[str, Any], route: str, field: str
) -> None:
    body = json.dumps(LEAST[route] | {field: "@"}).encode().replace(b'"@"', NINES)
    reply = post(stranger, route, body)
    assert reply.status_code in (400, 422)
    check_declared(declared, route, reply)


HEADERS: dict[str, tuple[dict[str, str | bytes], int]] = {
    "another charset": ({"Content-Type": "application/json; charset=latin-1"}, 415),
    "a form": ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    "a content type that is none": ({"Content-Type": b"\xff"}, 415),
    "compressed": ({"Content-Encoding": "gzip"}, 415),
    "as it is": ({"Content-Encoding": "identity"}, 200),
    "an underscore in a number": ({"X-Deadline-Ms": "60_000"}, 400),
    "a sign": ({"X-Deadline-Ms": "+60000"}, 400),
    "an exponent": ({"X-Deadline-Ms": "6e4"}, 200),
    "no number": ({"X-Deadline-Ms": "nan"}, 400),
    "digits of another script": ({"X-Deadline-Ms": "٦٠٠٠٠".encode()}, 400),
    "a key of a delivery that is no ASCII": ({"Idempotency-Key": b"\xff"}, 400),
    "a request id that is no ASCII": ({"X-Request-Id": b"\xe9"}, 200),
    "a trace that is none": ({"traceparent": b"00-\xff-01"}, 200),
    "another reply wanted": ({"Accept": "text/html"}, 200),
}


@pytest.mark.parametrize(("headers", "status"), HEADERS.values(), ids=HEADERS.keys())
def test_odd_headers_are_refused_or_passed_over(
    stranger: Stranger, declared: dict[str, Any], headers: dict[str, str | bytes], status: int
) -> None:
    reply = post(stranger, COMPLETION, b'{"model": "tiny", "prompt": "x", "max_tokens": 2}', **headers)
    assert reply.status_code == status
    check_declared(declared, COMPLETION, reply)


@settings(max_examples=60, derandomize=True, database=None)
@given(route=st.sampled_from(ROUTES), body=st.binary(max_size=60))
def test_no_bytes_are_a_fault_of_the_door(
    stranger: Stranger, declared: dict[str, Any], route: str, body: bytes
) -> None:
    reply = post(stranger, route, body)
    assert reply.status_code in (400, 422)
    check_declared(declared, route, reply)


MALFORMED: dict[str, bytes] = {
    "no words": b"\x00\x01\r\n\r\n",
    "another protocol": b"GET / HTTP/9.9\r\n\r\n",
    "an unknown method": b"LATE / HTTP/1.1\r\n\r\n",
    "a path that is no ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: door\r\n\r\n",
    "no URL": b"GET http://[ HTTP/1.1\r\nHost: door\r\n\r\n",
    "a tunnel": b"CONNECT door:80 HTTP/1.1\r\nHost: door\r\n\r\n",
    "a header with a zero byte": b"GET /healthz HTTP/1.1\r\nA\x00: b\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length below zero": b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    "a length that is none": b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n{",
}


@pytest.mark.parametrize("request_", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_http_is_answered_with_a_problem(
    stranger: Stranger, declared: dict[str, Any], request_: bytes
) -> None:
    head, _, body = stranger.send(request_).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    check_problem(declared, json.loads(body))


def test_a_chunked_body_that_breaks_off_its_form_is_answered_with_a_problem(
    stranger: Stranger, declared: dict[str, Any]
) -> None:
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: door\r\nAuthorization: Bearer {stranger.key}\r\n"
    chunked = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n"
    answered, _, body = stranger.send((head + chunked).encode()).partition(b"\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 400 ")
    check_problem(declared, json.loads(body))


@pytest.mark.parametrize("path", ["/healthz/", "/v1/models//", "/v1/predict/", "/V1/models", "/v1/predict/a/b"])
def test_a_path_that_is_nearly_one_leads_nowhere_else(stranger: Stranger, path: str) -> None:
    reply = stranger.http.get(path, headers=stranger.headers, follow_redirects=False)
    assert reply.status_code == 404
    assert "location" not in reply.headers


def check_problem(document: dict[str, Any], body: object) -> None:
    schema = document["components"]["schemas"]["Problem"]
    Draft202012Validator(schema).validate(body)
