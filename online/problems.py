"""Errors on the wire: RFC 9457 problem JSON on our routes, OpenAI's error object on theirs. One place for both.

Status and code come from the error's class (`core_engine.errors`); the few that only a wire can make are below.
"""

from __future__ import annotations

import math
import reprlib

import msgspec
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from core_engine.errors import AccessDenied, HeadraceError, InvalidRequest, QuotaExceeded, Unauthenticated, UnknownName

OPENAI_ROUTES = ("/v1/chat/", "/v1/completions", "/v1/embeddings", "/v1/models")
RETRY_AFTER_S = 1
MAX_SHOWN_CHARS = 80


class MalformedBody(InvalidRequest):
    status = 400
    code = "malformed_body"


class BodyTooSlow(InvalidRequest):
    status = 408
    code = "body_too_slow"


class HeadersTooLarge(InvalidRequest):
    status = 431
    code = "headers_too_large"


class UnsupportedMediaType(InvalidRequest):
    status = 415
    code = "unsupported_media_type"


class UnsupportedParameter(InvalidRequest):
    status = 400
    code = "unsupported_parameter"


class UnknownModel(UnknownName):
    code = "model_not_found"


class NoRoute(InvalidRequest):
    status = 404
    code = "no_such_route"


class WrongMethod(InvalidRequest):
    status = 405
    code = "method_not_allowed"


def is_openai(path: str) -> bool:
    return path.startswith(OPENAI_ROUTES)


def error_response(path: str, error: HeadraceError, headers: dict[str, str] | None = None) -> Response:
    """`error` in the shape of the route that `path` belongs to."""
    response = openai_error(error) if is_openai(path) else problem(path, error)
    response.headers.update(headers or {})
    if response.status_code == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, QuotaExceeded):
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = 'Bearer realm="headrace"'  # RFC 9110, section 11.6.1
    if response.status_code in (408, 413):  # the rest of the body is not read, so the connection cannot be used again
        response.headers["Connection"] = "close"
    return response


def problem(path: str, error: HeadraceError) -> Response:
    """RFC 9457, with what a caller needs to correct the request: field, value, expectation."""
    body: dict[str, object] = {
        "type": f"urn:headrace:problem:{error.code}",
        "title": error.code.replace("_", " ").capitalize(),
        "status": error.status,
        "detail": _printable(str(error)),
        "instance": _printable(path),
    }
    if isinstance(error, InvalidRequest):
        body |= {"field": _shown(error.field), "value": _shown(error.value), "expected": _shown(error.expected)}
    return Response(msgspec.json.encode(body), error.status, media_type="application/problem+json")


def openai_error(error: HeadraceError) -> Response:
    status = 400 if error.status == 422 else error.status
    return Response(msgspec.json.encode(openai_error_body(error)), status, media_type="application/json")


def openai_error_body(error: HeadraceError) -> dict[str, object]:
    kind = "invalid_request_error" if isinstance(error, InvalidRequest | AccessDenied) else "server_error"
    return {
        "error": {
            "message": _printable(str(error)),
            "type": error.quota if isinstance(error, QuotaExceeded) else kind,
            "param": _shown(error.field) if isinstance(error, InvalidRequest) else None,
            "code": error.code,
        }
    }


async def on_headrace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return error_response(request.url.path, error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such route, wrong method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    ours: HeadraceError
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{method} is not allowed on {path}; allowed: {allowed}"
        ours = WrongMethod(message, field="method", value=method, expected=allowed)
    else:
        ours = NoRoute(f"there is no route {method} {path}", field="path", value=path, expected="a route of this API")
    return error_response(path, ours, dict(error.headers or {}))


def _shown(value: object) -> object:
    """A value as it may be shown: scalars as they are, everything else shortened; always encodable."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else reprlib.repr(value)
    if isinstance(value, str):
        return _printable(value if len(value) <= MAX_SHOWN_CHARS else value[:MAX_SHOWN_CHARS] + "…")
    return _printable(reprlib.repr(value))


def _printable(text: str) -> str:
    """Lone surrogates, which no JSON encoder takes, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
