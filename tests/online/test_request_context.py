"""Identity, one log line, counts and draining: the layer around every route."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from core_engine.errors import EngineUnavailable
from tests.core_engine.predictors.doubles import INPUTS
from tests.online.conftest import DoorUnderTest

ROUTE = "/v1/predict/delay"
TRACE = "0af7651916cd43dd8448eb211c80319c"


async def logged(door: DoorUnderTest, path: str = ROUTE, **request: Any) -> tuple[Any, dict[str, Any]]:
    with capture_logs() as logs:
        reply = await door.http.post(path, **{"json": {"inputs": INPUTS}, **request})
    (line,) = [line for line in logs if line["event"] == "request"]
    return reply, dict(line)


async def test_one_line_per_request_says_who_what_and_how_it_ended(door: DoorUnderTest) -> None:
    door.engine.error = EngineUnavailable("lost")
    reply, line = await logged(door, headers={"X-Request-Id": "r-1", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})

    assert reply.headers["x-request-id"] == "r-1"
    assert line.pop("duration_ms") > 0
    assert line == {
        "event": "request",
        "log_level": "info",
        "method": "POST",
        "route": "/v1/predict/{predictor}",
        "status": 200,
        "request_id": "r-1",
        "attempt_id": reply.json()["attempt_id"],
        "trace_id": TRACE,
        "tenant": "local",
        "predictor": "delay",
        "version": 1,
        "rung": "student",
        "reason": "engine_unavailable",
    }


async def test_no_input_and_no_prompt_is_ever_logged(door: DoorUnderTest) -> None:
    secret = "XQZJ"
    with capture_logs() as logs:
        await door.http.post(ROUTE, json={"inputs": {**INPUTS, "origin": secret}})
        await door.http.post(ROUTE, json={"inputs": {**INPUTS, "seats": secret}})
        await door.chat(messages=[{"role": "user", "content": secret}])
        await door.chat(messages=[{"role": secret, "content": secret}])
        await door.http.post(ROUTE, content=secret, headers={"Content-Type": "application/json"})
    assert len(logs) >= 5
    assert secret not in json.dumps(logs, default=repr)


@pytest.mark.parametrize("given_id", ["", "a b", "x" * 129, "line\tfeed", "ünïcode"])
async def test_a_request_id_that_is_none_is_replaced(door: DoorUnderTest, given_id: str) -> None:
    reply, line = await logged(door, headers=[("X-Request-Id", given_id.encode())])
    assert reply.headers["x-request-id"] == line["request_id"] != given_id
    assert len(line["request_id"]) == 32


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{TRACE}", f"00-{TRACE.upper()}-b7ad6b7169203331-01"])
async def test_a_malformed_traceparent_is_left_out(door: DoorUnderTest, header: str) -> None:
    reply, line = await logged(door, headers={"traceparent": header})
    assert reply.status_code == 200
    assert line["trace_id"] is None


async def test_errors_carry_the_request_id_too(door: DoorUnderTest) -> None:
    reply = await door.http.get("/nothing", headers={"X-Request-Id": "mine"})
    assert reply.headers["x-request-id"] == "mine"


async def test_requests_are_counted_by_route_and_status_with_bounded_labels(door: DoorUnderTest) -> None:
    for path in ("/v1/predict/delay", "/v1/predict/nobody", "/v1/predict/nobody-else"):
        await door.http.post(path, json={"inputs": INPUTS})
    await door.http.get("/nothing/1")
    await door.http.get("/nothing/2")

    count = "headrace_http_requests_total"
    assert door.sample(count, route="/v1/predict/{predictor}", status="200") == 1
    assert door.sample(count, route="/v1/predict/{predictor}", status="404") == 2
    assert door.sample(count, route="unmatched", status="404") == 2
    assert door.sample("headrace_http_requests_in_flight") == 0
    assert door.services.state.in_flight == 0


async def test_while_draining_new_work_is_sent_elsewhere_and_probes_are_answered(door: DoorUnderTest) -> None:
    door.services.state.draining = True
    for reply in (await door.http.post(ROUTE, json={"inputs": INPUTS}), await door.chat()):
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["connection"] == "close"
        assert "draining" in reply.text
    assert (await door.http.get("/healthz")).status_code == 200
    assert (await door.http.get("/metrics")).status_code == 200
