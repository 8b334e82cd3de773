"""Who may call a door that starts: loopback or not, keys or none; and a key's life beside a door that runs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from core_engine.errors import ConfigurationError, QuotaExceeded
from core_engine.predictors.tables import open_database
from core_engine.settings import HttpSettings, QuotaSettings, Settings
from core_engine.tenants.keys import prefix_of
from core_engine.tenants.quotas import Quota
from core_engine.tenants.registry import TenantRegistry
from headrace.door_access import access, default_quota, is_loopback, key_is_needed, worker_share
from headrace.door_socket import listen
from headrace.migrations import upgrade
from headrace.runtime import free_port
from tests.core_engine.predictors.doubles import INPUTS
from tests.headrace.test_door import environment, start

MARKER = "XQZJ"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(state_dir=tmp_path)
    upgrade(made.database_url)
    return made


@pytest.fixture
def database(settings: Settings) -> Iterator[Engine]:
    engine = open_database(settings.database_url)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("allowed", "on_loopback", "elsewhere"),
    [("loopback", False, True), ("always", False, False), ("never", True, True)],
)
def test_a_key_is_needed_unless_a_setting_says_otherwise(allowed: str, on_loopback: bool, elsewhere: bool) -> None:
    http = HttpSettings.model_validate({"allow_anonymous": allowed})
    assert key_is_needed(http, is_loopback=True) is on_loopback
    assert key_is_needed(http, is_loopback=False) is elsewhere


def test_by_default_only_loopback_needs_none() -> None:
    assert not key_is_needed(HttpSettings(), is_loopback=True)
    assert key_is_needed(HttpSettings(), is_loopback=False)


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_loopback_is_what_the_socket_is_bound_to(host: str, expected: bool) -> None:
    with listen(HttpSettings(host=host, port=free_port("127.0.0.1"))) as listener:
        assert is_loopback(listener) is expected
    with socket.socket(socket.AF_INET6) as own:
        own.bind(("::1", 0))
        assert is_loopback(own)


def test_a_door_that_nobody_could_call_is_refused_until_there_is_a_key(settings: Settings, database: Engine) -> None:
    with pytest.raises(ConfigurationError, match="headrace keys create --tenant NAME, or set HEADRACE_HTTP__ALLOW"):
        access(settings, database, is_loopback=False)
    registry = TenantRegistry(database)
    key = registry.create_key("acme")
    made = access(settings, database, is_loopback=False)
    assert made.gate.needs_key
    assert made.gate.view().keys.keys() == {prefix_of(key)}
    registry.revoke_key(str(prefix_of(key)))
    with pytest.raises(ConfigurationError, match="no usable one exists"):
        access(settings, database, is_loopback=False)


def test_on_loopback_no_key_is_needed_and_none_has_to_exist(settings: Settings, database: Engine) -> None:
    assert not access(settings, database, is_loopback=True).gate.needs_key


def test_the_settings_give_the_default_quota(database: Engine, settings: Settings) -> None:
    quotas = QuotaSettings(requests_per_s=2.0, tokens_per_minute=100, streams=3)
    assert default_quota(quotas) == Quota(2.0, 100, 3)
    TenantRegistry(database).set_quota("acme", Quota(streams=9))
    made = access(settings.model_copy(update={"quotas": quotas}), database, is_loopback=True)
    assert made.gate.quotas.quota("acme") == Quota(2.0, 100, 9)
    assert made.gate.quotas.quota("local") == Quota(2.0, 100, 3)


def test_each_of_several_workers_has_its_share_of_what_is_the_whole_door_s() -> None:
    http = HttpSettings(workers=3, max_streams=10, max_connections=3000, max_body_bytes=9999)
    share = worker_share(http)
    assert (share.max_streams, share.max_connections) == (3, 1000)
    assert share.max_body_bytes == 9999, "of one request, and not of the door"
    assert worker_share(HttpSettings()) == HttpSettings()


def test_a_worker_s_gate_has_its_share_of_the_quotas(database: Engine, settings: Settings) -> None:
    quotas = QuotaSettings(requests_per_s=4.0)
    update = {"quotas": quotas, "http": settings.http.model_copy(update={"workers": 4})}
    made = access(settings.model_copy(update=update), database, is_loopback=True)
    made.gate.quotas.take_request("local")
    with pytest.raises(QuotaExceeded):
        made.gate.quotas.take_request("local")


def test_a_door_on_every_address_without_keys_is_one_sentence_and_a_failure(tmp_path: Path) -> None:
    process = start(environment(tmp_path, free_port("127.0.0.1")) | {"HEADRACE_HTTP__HOST": "0.0.0.0"})
    _, logged = process.communicate(timeout=60)
    assert process.returncode == 1
    (sentence,) = [line for line in logged.splitlines() if not line.startswith("{")]
    assert "needs an API key, and no usable one exists" in sentence


def test_a_running_door_follows_keys_and_logs_nothing_of_its_callers_at_debug_level(
    settings: Settings, database: Engine, tmp_path: Path
) -> None:
    """Without engine and store: what is looked at is the door's own process, with its real logging."""
    registry = TenantRegistry(database)
    first, second = registry.create_key("acme"), registry.create_key("globex")
    port = free_port("127.0.0.1")
    strict = {"HEADRACE_HTTP__ALLOW_ANONYMOUS": "never", "HEADRACE_LOG_LEVEL": "debug"}
    process = start(environment(tmp_path, port) | strict)
    assert process.stderr is not None
    lines = list(takewhile(lambda line: "door_serving" not in line, process.stderr))
    rest = threading.Thread(target=lines.extend, args=(process.stderr,))  # a full pipe would stop the door
    rest.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            assert call(http, None) == [401, 401, 401]
            assert call(http, first) == [404, 503, 404]
            registry.revoke_key(str(prefix_of(first)))
            while call(http, first)[0] != 403:
                pass
            assert call(http, second) == [404, 503, 404]
            added = registry.create_key("initech")
            while call(http, added)[0] != 404:
                pass
    finally:
        process.terminate()
        process.wait(60)
        rest.join()
        process.stderr.close()
    logged = "".join(lines)
    tenants = {json.loads(line).get("tenant") for line in logged.splitlines() if line.startswith("{")}
    assert {"acme", "globex", "initech"} <= tenants
    for told in (MARKER, first, second, added, *(key[16:] for key in (first, second, added))):
        assert told not in logged


def call(http: httpx.Client, key: str | None) -> list[int]:
    """Statuses of a prediction, a chat and a look-up that carry a marker."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    chat = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": MARKER}]}
    replies = (
        http.post(f"/v1/predict/{MARKER}", json={"inputs": {**INPUTS, "origin": MARKER}}, headers=headers),
        http.post("/v1/chat/completions", json=chat, headers=headers),
        http.get(f"/v1/predictions/{MARKER}/{MARKER}", headers=headers),
    )
    return [reply.status_code for reply in replies]
