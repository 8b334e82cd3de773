"""Each route's errors come in its own dialect; whatever the value, an error can be written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from core_engine.errors import BodyTooLarge, EngineUnavailable, HeadraceError, InvalidRequest, UnknownName
from online.problems import error_response, is_openai, openai_error, problem
from tests.core_engine.predictors.doubles import INPUTS
from tests.online.conftest import DoorUnderTest

OURS, THEIRS = "/v1/predict/delay", "/v1/chat/completions"


def body_of(response: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(response.body)
    return loaded


def test_routes_know_their_dialect() -> None:
    assert all(map(is_openai, ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/x"]))
    assert not any(map(is_openai, ["/v1/predict/x", "/healthz", "/", "/v1/predictions/x/y"]))


def test_an_invalid_request_is_422_here_and_400_there() -> None:
    error = InvalidRequest("wrong", field="f", value=3, expected="2")
    ours, theirs = error_response(OURS, error), error_response(THEIRS, error)
    assert (ours.status_code, theirs.status_code) == (422, 400)
    assert body_of(theirs) == {
        "error": {"message": "wrong", "type": "invalid_request_error", "param": "f", "code": "invalid_request"}
    }
    assert body_of(ours)["value"] == 3


@pytest.mark.parametrize("path", [OURS, THEIRS])
def test_unavailable_comes_with_when_to_try_again(path: str) -> None:
    response = error_response(path, EngineUnavailable("away"))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


def test_a_body_that_was_not_read_ends_its_connection() -> None:
    assert error_response(OURS, BodyTooLarge("too large")).headers["connection"] == "close"


@given(st.text() | st.integers() | st.floats() | st.binary() | st.none() | st.lists(st.text()), st.text())
def test_any_value_in_any_error_can_be_written(value: object, text: str) -> None:
    error = UnknownName(text + "\ud800", field=text, value=value, expected=text)
    for response in (problem("/\udc00", error), openai_error(error)):
        assert body_of(response)
        assert len(response.body) < 4 * len(text.encode("utf-8", "backslashreplace")) * 6 + 2000


async def test_a_route_that_does_not_exist_is_404_in_the_shape_of_its_neighbours(door: DoorUnderTest) -> None:
    ours = await door.http.get("/v1/nothing")
    assert ours.status_code == 404
    assert ours.headers["content-type"] == "application/problem+json"
    assert ours.json()["detail"] == "there is no route GET /v1/nothing"
    theirs = await door.http.post("/v1/chat/nothing", json={})
    assert theirs.status_code == 404
    assert theirs.json()["error"]["code"] == "no_such_route"


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", OURS, "POST"), ("DELETE", "/healthz", "GET")])
async def test_a_wrong_method_is_405_and_names_the_right_one(
    door: DoorUnderTest, method: str, path: str, allowed: str
) -> None:
    reply = await door.http.request(method, path)
    assert reply.status_code == 405
    assert reply.headers["allow"] == allowed
    assert reply.json()["expected"] == allowed


async def test_a_bug_is_500_with_no_secret_in_it_and_is_logged(
    door: DoorUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(type(door.services.flow), "predict", broken)
    with capture_logs() as logs:
        reply = await door.http.post(OURS, json={"inputs": INPUTS})
    assert reply.status_code == 500
    assert reply.json()["title"] == "Internal error"
    assert "secret" not in reply.text
    assert "request_failed" in [line["event"] for line in logs]
    assert HeadraceError.status == 500
