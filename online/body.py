"""Request bodies: bounded while they are read, JSON, and checked against a wire type. Every refusal says why."""

from __future__ import annotations

import asyncio
import contextlib
import reprlib
from collections.abc import AsyncGenerator
from typing import TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError

from core_engine.errors import BodyTooLarge, InvalidRequest
from online.problems import BodyTooSlow, MalformedBody, UnsupportedMediaType
from online.services import services_of

Wire = TypeVar("Wire", bound=BaseModel)
JSON = "application/json"
IDENTITY = "identity"
LINGER_BYTES = 1 << 20  # how much of a body that is too large is read and thrown away, and for how long
LINGER_S = 2.0


async def read_json(request: Request, max_bytes: int) -> dict[str, object]:
    """The request's body as a JSON object of at most `max_bytes`; a chunked one is cut off where it passes them.

    Raises:
        UnsupportedMediaType: not declared as JSON in UTF-8, or compressed.
        BodyTooLarge: as declared, or as read.
        BodyTooSlow: it did not come within `http.body_timeout_s`.
        MalformedBody: no JSON (NaN and Infinity are none), nested too deeply, or no object.
    """
    _check_content_type(request.headers.get("content-type", ""))
    _check_coding(request.headers.get("content-encoding", IDENTITY))
    body = await _read_in_time(request, max_bytes, services_of(request).http.body_timeout_s)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise MalformedBody("the body is nested too deeply", field="body", expected="fewer levels") from None
    except ValueError as error:  # msgspec's errors, and a number of more digits than Python converts
        message = f"the body is not JSON: {error}"
        raise MalformedBody(message, field="body", value=_start_of(body), expected="a JSON object") from None
    if not isinstance(value, dict):
        message = f"the body is {reprlib.repr(value)}; expected a JSON object"
        raise MalformedBody(message, field="body", value=value, expected="a JSON object")
    return value


def parse(wire: type[Wire], body: dict[str, object]) -> Wire:
    """`body` as `wire`, strictly: no string becomes a number.

    Raises:
        InvalidRequest: the first fault: its field, value and expectation.
    """
    try:
        return wire.model_validate(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    value = None if first["type"] == "missing" else first["input"]
    expected = first["msg"]
    if first["type"] == "extra_forbidden":
        expected = f"one of the known fields: {', '.join(sorted(wire.model_fields))}"
    message = f"{field} is missing" if first["type"] == "missing" else f"{field} = {reprlib.repr(value)}: {expected}"
    raise InvalidRequest(message, field=field, value=value, expected=expected)


def _check_content_type(content_type: str) -> None:
    kind, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != JSON or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMediaType(
            f"content type {reprlib.repr(content_type)} is not supported; send {JSON}",
            field="Content-Type",
            value=content_type or None,
            expected=JSON,
        )


def _check_coding(coding: str) -> None:
    """Source: RFC 9110, section 8.4: a request whose coding is not taken is answered with 415."""
    if coding.strip().lower() != IDENTITY:
        raise UnsupportedMediaType(
            f"content coding {reprlib.repr(coding)} is not supported; send the body as it is",
            field="Content-Encoding",
            value=coding,
            expected=IDENTITY,
        )


async def _read_in_time(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, max_bytes)
    except TimeoutError:
        message = f"the body did not come within {timeout_s:g} s"
        raise BodyTooSlow(message, field="body", expected=f"all of it within {timeout_s:g} s") from None


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes + LINGER_BYTES:
        raise _too_large(int(declared[:20]), max_bytes)
    body = bytearray()
    stream = request.stream()
    async for chunk in stream:
        body += chunk
        if len(body) > max_bytes:
            await _discard(stream)
            raise _too_large(len(body), max_bytes)
    return bytes(body)


async def _discard(stream: AsyncGenerator[bytes, None]) -> None:
    """Let a sender that is only a little over finish: one that is cut off while sending never reads the answer."""
    left = LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            async for chunk in stream:
                left -= len(chunk)
                if left <= 0:
                    return


def _too_large(num_bytes: int, max_bytes: int) -> BodyTooLarge:
    message = f"the body has {num_bytes} bytes or more; at most {max_bytes} are taken"
    return BodyTooLarge(message, field="body", value=num_bytes, expected=f"at most {max_bytes} bytes")


def _start_of(body: bytes) -> str:
    return body[:40].decode("utf-8", "backslashreplace")
