"""The HTTP process as a process: it starts with nothing there, answers, drains, and refuses in one sentence."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs

from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import read_spool
from core_engine.errors import ConfigurationError
from core_engine.gradient_limit import GradientLimit
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.settings import HttpSettings, PredictLimitSettings, RedisSettings, Settings
from featurestore.online.connection import connect
from headrace.door import DrainingServer, answers, predict_limit, spawn
from headrace.door_socket import listen
from headrace.migrations import upgrade
from headrace.runtime import free_port
from online.services import DoorState
from tests.core_engine.predictors.doubles import INPUTS, STUDENT_SCORE, delay_predictor

NOBODY = "127.0.0.1:1"  # a port that nothing listens on


@dataclass
class DoorProcess:
    process: subprocess.Popen[str]
    url: str
    state_dir: Path

    def stop(self, number: signal.Signals = signal.SIGTERM) -> list[dict[str, Any]]:
        """Signal it, wait for its end, and return what it logged."""
        self.process.send_signal(number)
        _, logged = self.process.communicate(timeout=60)
        return [json.loads(line) for line in logged.splitlines()]


def environment(state_dir: Path, port: int) -> dict[str, str]:
    own = {
        "HEADRACE_STATE_DIR": str(state_dir),
        "HEADRACE_HTTP__PORT": str(port),
        "HEADRACE_REDIS__URL": f"redis://{NOBODY}/0",
        "HEADRACE_ENGINE__ENDPOINT": f"ipc://{state_dir}/nobody.sock",
    }
    return {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")} | own


def start(environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "headrace", "door"], env=environ, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[DoorProcess]:
    """A door without engine and without Redis, one predictor registered."""
    url = f"sqlite:///{tmp_path / 'headrace.db'}"
    upgrade(url)
    database = open_database(url)
    registry = Registry(database)
    registry.register(delay_predictor(tmp_path))
    registry.set_alias("delay", "live", 1)
    database.dispose()
    port = free_port("127.0.0.1")
    process = start(environment(tmp_path, port))
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if json.loads(line)["event"] == "door_serving":
                break
        yield DoorProcess(process, f"http://127.0.0.1:{port}", tmp_path)
    finally:
        process.kill()
        process.communicate()


def until_up(url: str) -> None:
    """The port listens before the door serves, so the first request simply waits for its answer."""
    assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200


def test_with_nothing_there_the_student_answers_and_sigterm_ends_it_in_order(door: DoorProcess) -> None:
    until_up(door.url)
    reply = httpx.post(f"{door.url}/v1/predict/delay", json={"inputs": INPUTS}, timeout=30)
    assert reply.status_code == 200
    body = reply.json()
    assert (body["rung"], body["value"], body["reason"]) == ("student", STUDENT_SCORE, "engine_unavailable")
    ready = httpx.get(f"{door.url}/readyz", timeout=30)
    assert ready.status_code == 200
    assert ready.json()["engine"] == {"available": False}
    assert ready.json()["store"] == {"available": False}
    chat = httpx.post(
        f"{door.url}/v1/chat/completions",
        json={"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "Hi"}]},
        timeout=30,
    )
    assert (chat.status_code, chat.headers["retry-after"]) == (503, "1")

    logged = door.stop()
    assert door.process.returncode == 0
    assert "door_stopped" in [line["event"] for line in logged]
    requests = [line for line in logged if line["event"] == "request"]
    assert [(line["route"], line["status"]) for line in requests] == [
        ("/v1/predict/{predictor}", 200),
        ("/v1/chat/completions", 503),
    ]
    (spool,) = (door.state_dir / "spool").iterdir()
    contents = read_spool(spool)
    callers = [fact for fact in contents.facts if isinstance(fact, CallerFact)]
    assert [fact.attempt_id for fact in callers][:1] == [body["attempt_id"]]
    assert contents.bad_lines == ()


def test_a_version_that_an_alias_comes_to_point_at_answers_without_a_restart(door: DoorProcess) -> None:
    until_up(door.url)
    database = open_database(f"sqlite:///{door.state_dir / 'headrace.db'}")
    registry = Registry(database)
    registry.register(delay_predictor(door.state_dir, version=2))
    registry.set_alias("delay", "live", 2)
    database.dispose()
    version, rung = 1, ""
    while version == 1:  # the test's time limit bounds it
        body = httpx.post(f"{door.url}/v1/predict/delay", json={"inputs": INPUTS}, timeout=30).json()
        version, rung = body["version"], body["rung"]
    assert (version, rung) == (2, "student"), "the first answer of a new version has its student already"


def test_ctrl_c_is_an_orderly_end_too(door: DoorProcess) -> None:
    until_up(door.url)
    door.stop(signal.SIGINT)
    assert door.process.returncode == 0


def test_a_port_in_use_is_one_sentence_and_a_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(environment(tmp_path, port))
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.strip() == f"headrace: port {port} on 127.0.0.1 is in use; set HEADRACE_HTTP__PORT to another port"


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("HEADRACE_ENGINE__MODEL_PATH", "/nowhere.gguf", "no such file"),
        ("HEADRACE_REDIS__URL", "http://x", "redis url"),
        ("HEADRACE_DATABASE__URL", "nosuch://x", "database URL"),
    ],
)
def test_what_can_never_work_is_one_sentence_and_a_failure(tmp_path: Path, setting: str, value: str, said: str) -> None:
    process = start(environment(tmp_path, free_port("127.0.0.1")) | {setting: value})
    _, logged = process.communicate(timeout=60)
    assert process.returncode == 1
    (sentence,) = [line for line in logged.splitlines() if not line.startswith("{")]
    assert sentence.startswith("headrace: ")
    assert said in sentence


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="HEADRACE_HTTP__PORT"):
        listen(HttpSettings(host="256.256.256.256", port=free_port("127.0.0.1")))


def test_the_socket_listens_before_anything_slow_is_built() -> None:
    port = free_port("127.0.0.1")
    with listen(HttpSettings(port=port)) as listener, socket.create_connection(("127.0.0.1", port)):
        assert select.select([listener], [], [], 30)[0]


def test_the_engine_s_default_place_is_the_state_folder(tmp_path: Path) -> None:
    assert Settings(state_dir=tmp_path).engine_endpoint == f"ipc://{tmp_path}/engine.sock"


# -- draining


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def app(scope: Any, receive: Any, send: Any) -> None: ...


@pytest.fixture
def drained() -> tuple[DrainingServer, DoorState, Clock]:
    state, clock = DoorState(), Clock()
    return DrainingServer(uvicorn.Config(app, log_config=None), state, 10.0, clock), state, clock


async def test_a_first_signal_drains_and_an_idle_server_ends(drained: tuple[DrainingServer, DoorState, Clock]) -> None:
    server, state, _ = drained
    assert not await server.on_tick(1)
    server.handle_exit(signal.SIGTERM, None)
    assert state.draining
    assert await server.on_tick(1)
    assert server._captured_signals == []  # raised again they would end the process before it is clean


async def test_requests_in_flight_are_waited_for_and_no_longer_than_the_limit(
    drained: tuple[DrainingServer, DoorState, Clock],
) -> None:
    server, state, clock = drained
    state.in_flight = 1
    server.handle_exit(signal.SIGTERM, None)
    assert not await server.on_tick(1)
    clock.now_s += 9.9
    assert not await server.on_tick(1)
    clock.now_s += 0.2
    assert await server.on_tick(1)


async def test_a_second_signal_does_not_wait(drained: tuple[DrainingServer, DoorState, Clock]) -> None:
    server, state, _ = drained
    state.in_flight = 1
    server.handle_exit(signal.SIGTERM, None)
    server.handle_exit(signal.SIGTERM, None)
    assert await server.on_tick(1)
    assert not server.force_exit


# -- small parts


def test_the_limit_of_predictions_is_as_the_settings_say() -> None:
    settings = PredictLimitSettings(initial=10, least=9, most=11, tolerance=3.0)
    limit = predict_limit(settings)
    assert limit.value == 10
    for _ in range(100):
        limit.add(0.1, 100)
    assert limit.value == 11, "the latency is its least"
    for _ in range(100):
        limit.add(0.1 * 2.9, 100)
    assert limit.value == 11, "and is tolerated"
    for _ in range(1000):
        limit.add(10.0, 100)
    assert limit.value == 9


def test_the_settings_have_the_limit_s_own_defaults() -> None:
    own = {name: parameter.default for name, parameter in signature(GradientLimit).parameters.items()}
    settings = PredictLimitSettings()
    assert (settings.initial, settings.least, settings.most) == (own["initial"], own["smallest"], own["largest"])
    assert settings.tolerance == own["tolerance"]


async def test_a_store_that_is_away_does_not_answer() -> None:
    client = connect(RedisSettings(url=f"redis://{NOBODY}/0"))
    assert not await answers(client)
    await client.aclose()


async def test_a_background_task_that_ends_is_told() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with capture_logs() as logs:
        task = spawn("views", broken())
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
    assert [(line["event"], line["task"]) for line in logs] == [("background_task_failed", "views")]
