"""Prompts, completions, feature values, inputs and keys are in no log line of a request, however it ends."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import LogCapture

from core_engine.contracts import FeatureState, FeatureValue
from core_engine.errors import DeadlineExceeded, EngineUnavailable
from core_engine.readers import StoredPrediction
from core_engine.tenants.keys import new_key
from tests.core_engine.predictors.doubles import INPUTS, MEAN_DELAY
from tests.online.access.conftest import CHAT, PREDICT, Guard, Guarded
from tests.online.access.serving import serving

SECRET = "XQZJ"
VALUE = 71924.0625  # of a feature
WRITTEN = "KWVB"  # by the model
STORED = "PYGH"  # by a job


@pytest.fixture
def captured() -> Iterator[LogCapture]:
    """Every line of our own, whatever its level."""
    capture, before = LogCapture(), structlog.get_config()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield capture
    structlog.configure(**before)


def lines(captured: LogCapture, caplog: pytest.LogCaptureFixture) -> str:
    """All that was logged by the door and by libraries, but for the test's own HTTP client."""
    theirs = [each for each in caplog.records if not each.name.startswith(("httpx", "httpcore"))]
    return json.dumps(captured.entries, default=repr) + "\n".join(each.getMessage() for each in theirs)


async def every_kind(door: Guarded, headers: dict[str, str]) -> list[int]:
    """Their statuses."""
    engine, prompt = door.door.engine, [{"role": "user", "content": SECRET}]
    door.door.predictions.stored[SECRET] = StoredPrediction(STORED, "g", 1.0)
    door.door.features.values[MEAN_DELAY] = FeatureValue(VALUE, FeatureState.PRESENT, 60.0)
    bodies: list[tuple[str, dict[str, object]]] = [
        (PREDICT, {"inputs": {**INPUTS, "dest": SECRET}}),
        (PREDICT, {"inputs": {**INPUTS, "seats": SECRET}}),
        (PREDICT, {"inputs": {SECRET: SECRET}}),
        (PREDICT, {SECRET: SECRET}),
        (f"/v1/predict/{SECRET}", {"inputs": INPUTS}),
        (CHAT, {"model": "tiny", "messages": prompt}),
        (CHAT, {"model": "tiny", "messages": prompt, "stream": True}),
        (CHAT, {"model": "notice", "messages": prompt}),
        (CHAT, {"model": SECRET, "messages": prompt}),
        (CHAT, {"model": "tiny", "messages": [{"role": SECRET, "content": SECRET}]}),
        (CHAT, {"model": "tiny", "messages": prompt, "stop": [SECRET], SECRET: SECRET}),
        ("/v1/completions", {"model": "tiny", "prompt": SECRET}),
        ("/v1/completions", {"model": "tiny", "prompt": SECRET, "stream": True}),
        ("/v1/embeddings", {"model": "tiny", "input": SECRET}),
        (f"/{SECRET}", {}),
    ]
    looked_up = (f"/v1/predictions/delay/{SECRET}", f"/v1/predictions/{SECRET}/a", f"/v1/models/{SECRET}")
    statuses = []
    for failure in (None, EngineUnavailable("lost"), DeadlineExceeded("late"), ValueError(SECRET)):
        engine.error = failure  # type: ignore[assignment]
        for path, body in bodies:
            statuses.append((await door.http.post(path, json=body, headers=headers)).status_code)
        statuses += [(await door.http.get(path, headers=headers)).status_code for path in looked_up]
        broken = headers | {"Content-Type": "application/json"}
        statuses.append((await door.http.post(PREDICT, content=f'{{"{SECRET}', headers=broken)).status_code)
    return statuses


async def test_nothing_that_a_caller_or_a_model_said_is_logged_at_any_level(
    guard: Guard, captured: LogCapture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guard() as door:
        door.door.engine.tokens = tuple(door.services.tokenizer.encode(WRITTEN))
        headers = await door.key()
        refused = [{"Authorization": f"Bearer {new_key().key}"}, {"X-Api-Key": SECRET}]
        statuses = await every_kind(door, headers)
        for wrong in refused:
            statuses += await every_kind(door, wrong)
    assert {200, 400, 401, 404, 422, 500, 503} <= set(statuses)

    keys = [each["Authorization"].removeprefix("Bearer ") for each in (headers, refused[0])]
    told = lines(captured, caplog)
    assert sum(line["event"] == "request" for line in captured.entries) == len(statuses)
    for marker in (SECRET, WRITTEN, STORED, str(VALUE), *keys):
        assert marker not in told


async def test_what_the_server_itself_logs_has_no_header_and_no_path_s_text(
    guard: Guard, captured: LogCapture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guard() as door, serving(door) as served:
        key = new_key().key
        for raw in (
            f"GET /{SECRET}?{SECRET} HTTP/1.1\r\nHost: {SECRET}\r\nAuthorization: Bearer {key}\r\n\r\n",
            f"GET /{SECRET} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: {SECRET}\r\n\r\n",
            f"{SECRET} {SECRET}\r\nAuthorization: Bearer {key}\r\n\r\n",
        ):
            reader, writer = await served.connect()
            writer.write(raw.encode())
            assert await reader.readuntil(b"\r\n\r\n")
            writer.close()
    told = lines(captured, caplog)
    assert captured.entries
    assert SECRET not in told
    assert key not in told
