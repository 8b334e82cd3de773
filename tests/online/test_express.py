"""A prediction on the short way is the same as on the framework's, and whatever is not one takes the framework's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from tests.core_engine.predictors.doubles import INPUTS
from tests.online.conftest import DoorUnderTest

VARYING = ("attempt_id", "stages", "budget", "usage")


@pytest.fixture
async def framework(door: DoorUnderTest) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the same app without the lane."""
    app = door.app
    assert isinstance(app, FastAPI)
    layers = app.user_middleware
    app.user_middleware = [layer for layer in layers if layer.kwargs.keys() != {"route"}]
    assert len(app.user_middleware) == len(layers) - 1
    stack = app.build_middleware_stack()
    app.user_middleware = layers

    async def without_lane(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = app
        await stack(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(without_lane), base_url="http://door") as client:
        yield client


ASKED = {
    "answered": ("POST", "/v1/predict/delay", {"inputs": INPUTS}),
    "a wrong input": ("POST", "/v1/predict/delay", {"inputs": {}}),
    "an unknown predictor": ("POST", "/v1/predict/nobody", {"inputs": INPUTS}),
    "a name in percent signs": ("POST", "/v1/predict/d%65lay", {"inputs": INPUTS}),
    "a name with a space": ("POST", "/v1/predict/de%20lay", {"inputs": INPUTS}),
    "no name": ("POST", "/v1/predict/", {"inputs": INPUTS}),
    "too long a path": ("POST", "/v1/predict/delay/x", {"inputs": INPUTS}),
    "a slash in percent signs": ("POST", "/v1/predict/delay%2Fx", {"inputs": INPUTS}),
    "a wrong method": ("GET", "/v1/predict/delay", None),
}


@pytest.mark.parametrize(("method", "path", "body"), ASKED.values(), ids=ASKED)
async def test_both_ways_answer_alike(
    door: DoorUnderTest, framework: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    replies = [await client.request(method, path, json=body) for client in (door.http, framework)]
    express, slow = ((reply.status_code, reply.headers["content-type"], lasting(reply)) for reply in replies)
    assert express == slow


@pytest.mark.parametrize("path", ["/v1/predict/delay", "/v1/predict/nobody"])
async def test_both_ways_are_counted_alike(door: DoorUnderTest, framework: httpx.AsyncClient, path: str) -> None:
    replies = [await client.post(path, json={"inputs": INPUTS}) for client in (door.http, framework)]
    route, status = "/v1/predict/{predictor}", str(replies[0].status_code)
    assert door.sample("headrace_http_requests_total", route=route, status=status) == 2


def lasting(reply: httpx.Response) -> dict[str, Any]:
    """What does not differ between two requests."""
    body = json.loads(reply.content)
    return {name: value for name, value in body.items() if name not in VARYING}
