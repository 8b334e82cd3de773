"""The local stack: Valkey, a Kafka broker, SQLite, one engine process and the HTTP door, all children of this process.

Composition root of `headrace up` and `headrace demo`. Children get every setting by environment variables; what this
machine decides (ports, sockets, absolute paths) is settled here, once, in `LocalStack.settings`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core_engine.errors import BrokerUnavailable, ConfigurationError, Unavailable
from core_engine.pools.child import ChildSpec
from core_engine.pools.heartbeats import HeartbeatListener
from core_engine.pools.replica import RestartPolicy
from core_engine.pools.supervisor import Supervisor
from core_engine.settings import PREFIX, TEST_PREFIX, KafkaSettings, Settings
from headrace import wheels
from headrace.runtime import check_free, free_port, socket_folder, sole_use

SILENCE_FACTOR = 2  # a client gives an engine up after `lost_after_s`; killing it asks for more certainty
POLL_S = 0.05
JOIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Servers:
    """The binaries of the servers that are ours to start; None where the user named one that runs."""

    valkey: Path | None
    broker: Path | None


class LocalStack:
    """All processes of one machine, as a context: ready when entered, gone when left. `settings` are those in force.

    `fresh` empties the state folder first. `locate_valkey` and `locate_broker` find the server binaries. Neither server
    keeps anything on disk: whoever filled it fills it again when the supervisor has restarted it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        fresh: bool = False,
        locate_valkey: Callable[[], Path] = wheels.valkey_server,
        locate_broker: Callable[[], Path] = wheels.kafka_broker,
        policy: RestartPolicy | None = None,
    ) -> None:
        self.settings = self._given = settings
        self._fresh = fresh
        self._locate_valkey = locate_valkey
        self._locate_broker = locate_broker
        self._policy = policy

    @property
    def url(self) -> str:
        """Base URL of the door, for a client on this machine."""
        http = self.settings.http
        return f"http://{'127.0.0.1' if http.host == '0.0.0.0' else http.host}:{http.port}"

    @property
    def has_own_valkey(self) -> bool:
        """Whether this stack runs a Valkey of its own, rather than use a Redis named by the user."""
        return not names_redis(self._given)

    async def __aenter__(self) -> Self:
        """Start everything; what was started is stopped if a part does not come up.

        Raises:
            ConfigurationError: a port in use, a missing wheel or file, a state folder in use; nothing was started.
            ChildFailed: a child did not come up.
        """
        async with AsyncExitStack() as exits:
            given = self._given
            state_dir = given.state_dir.resolve()
            exits.enter_context(sole_use(state_dir, fresh=self._fresh))
            check_free(given.http.host, given.http.port, f"{PREFIX}HTTP__PORT")
            wheels.model_file(given.engine)
            servers = Servers(
                valkey=None if names_redis(given) else self._locate_valkey(),
                broker=None if names_kafka(given) else self._locate_broker(),
            )
            folder = exits.enter_context(socket_folder(state_dir / "run"))
            self.settings = settled(given, state_dir, folder, servers)
            exits.enter_context(environment_file(self.settings))
            # entered before the supervisor and left after it, or a slow stop would look like an engine fallen silent
            heartbeats = await exits.enter_async_context(self._heartbeats())
            self.supervisor = await exits.enter_async_context(Supervisor(state_dir / "logs", self._policy))
            await self._start(servers, folder, heartbeats)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.__aexit__(kind, error, trace)

    async def _start(self, servers: Servers, folder: Path, heartbeats: HeartbeatListener) -> None:
        from headrace.migrations import upgrade  # alembic and SQLAlchemy: not for `headrace --help`

        await asyncio.to_thread(upgrade, self.settings.database_url)
        if servers.valkey is not None:
            await self.supervisor.start(valkey_spec(servers.valkey, self.settings.redis.url, folder))
        else:
            await check_redis(self.settings.redis.url)
        if servers.broker is not None:
            await self.supervisor.start(broker_spec(servers.broker, self.settings.kafka.bootstrap_servers))
        else:
            await check_kafka(self.settings.kafka)
        await self.supervisor.start(self._engine(heartbeats))
        await self.supervisor.start(self._door())
        await self._joined()

    def _heartbeats(self) -> HeartbeatListener:
        engine = self.settings.engine
        assert engine.endpoint is not None, "settled() gives one"
        return HeartbeatListener(engine.endpoint, SILENCE_FACTOR * engine.lost_after_s)

    def _engine(self, heartbeats: HeartbeatListener) -> ChildSpec:
        argv = (sys.executable, "-m", "headrace", "engine")
        return ChildSpec(
            "engine",
            argv,
            as_environment(self.settings),
            heartbeats.ready,
            stop_timeout_s=self.settings.engine.drain_s + 5.0,
            pulse=heartbeats.pulse,
            restarts_prefix=f"{PREFIX}ENGINE__RESTARTS__",
        )

    def _door(self) -> ChildSpec:
        argv = (sys.executable, "-m", "headrace", "door")
        stop_timeout_s = self.settings.http.drain_s + 5.0
        return ChildSpec("door", argv, as_environment(self.settings), self._healthy, stop_timeout_s=stop_timeout_s)

    async def _healthy(self) -> None:
        """Wait until the door serves; alone, because it must come up without an engine too."""
        await self._answers("/healthz", lambda reply: reply.status_code == httpx.codes.OK)

    async def _joined(self) -> None:
        """Wait until the door has found the engine and the store, as at a first start it will."""
        try:
            async with asyncio.timeout(JOIN_S):
                await self._answers("/readyz", _sees_all)
        except TimeoutError:
            raise Unavailable(f"the door at {self.url} does not reach engine and store after {JOIN_S:g} s") from None

    async def _answers(self, path: str, satisfies: Callable[[httpx.Response], bool]) -> None:
        async with httpx.AsyncClient(base_url=self.url) as client:
            while True:
                try:
                    if satisfies(await client.get(path)):
                        return
                except httpx.TransportError:
                    pass  # not there yet; the caller's limit and the child's end are what stops this
                await asyncio.sleep(POLL_S)


def _sees_all(reply: httpx.Response) -> bool:
    body = reply.json()
    return bool(body["engine"]["available"] and body["store"]["available"])


def valkey_spec(binary: Path, url: str, folder: Path) -> ChildSpec:
    """A Valkey at `url` that keeps nothing: `folder` only holds what it might write."""
    argv = (str(binary), *("--port", str(urlsplit(url).port)), *("--bind", "127.0.0.1"), *("--dir", str(folder)))
    volatile = ("--save", "", "--appendonly", "no")
    environ = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    return ChildSpec("valkey", (*argv, *volatile), environ, lambda: pinged(url))


def broker_spec(binary: Path, address: str) -> ChildSpec:
    """A broker at `address` (host:port) that keeps everything in memory. Without both URLs it would listen on all
    interfaces and send its clients to a host name."""
    urls = ("--listener-url", f"tcp://{address}", "--advertised-listener-url", f"tcp://{address}")
    argv = (str(binary), "broker", *urls, "--storage-engine", "memory://tansu/")
    environ = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    # asked to stop, it lingers for five seconds over nothing: all it holds is memory
    return ChildSpec("kafka", argv, environ, lambda: listening(address), stop_timeout_s=0.5)


def names_kafka(settings: Settings) -> bool:
    """Whether a Kafka was named by the user, so that none is started."""
    return "bootstrap_servers" in settings.kafka.model_fields_set


def names_redis(settings: Settings) -> bool:
    """Whether a Redis was named by the user, so that none is started."""
    return "url" in settings.redis.model_fields_set


def settled(given: Settings, state_dir: Path, folder: Path, servers: Servers) -> Settings:
    """`given` with absolute paths, an engine socket in `folder`, and the addresses of our own servers."""
    endpoint = given.engine.endpoint or f"ipc://{folder / 'engine.sock'}"
    changes: dict[str, Any] = {"state_dir": state_dir, "engine": given.engine.model_copy(update={"endpoint": endpoint})}
    if servers.valkey is not None:
        url = f"redis://127.0.0.1:{free_port('127.0.0.1')}/0"
        changes["redis"] = given.redis.model_copy(update={"url": url})
    if servers.broker is not None:
        address = f"127.0.0.1:{free_port('127.0.0.1')}"
        changes["kafka"] = given.kafka.model_copy(update={"bootstrap_servers": address})
    return given.model_copy(update=changes)


def as_environment(settings: Settings) -> dict[str, str]:
    """This process's environment with exactly these settings in it: `load_settings` there gives them back."""
    rest = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX) or k.startswith(TEST_PREFIX)}
    return rest | {PREFIX + key: value for key, value in _leaves(settings.model_dump(mode="json"))}


@contextmanager
def environment_file(settings: Settings) -> Iterator[Path]:
    """A file for `. FILE` in a shell, while the stack runs: its settings, for other commands of the same user."""
    path = environment_path(settings)
    lines = [f"export {PREFIX}{key}={quote(value)}\n" for key, value in _leaves(settings.model_dump(mode="json"))]
    path.touch(mode=0o600)  # a URL may hold a password
    path.write_text("".join(lines))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def environment_path(settings: Settings) -> Path:
    return settings.state_dir / "stack.env"


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from ((f"{name.upper()}__{key}", leaf) for key, leaf in _leaves(value))
        elif value is not None:
            yield name.upper(), str(value)


async def pinged(url: str) -> None:
    """Wait until a Redis answers."""
    while True:
        if await _refusal(url) is None:
            return
        await asyncio.sleep(POLL_S)


async def check_redis(url: str) -> None:
    """Raises `ConfigurationError` where the user's own Redis does not answer."""
    if (refusal := await _refusal(url)) is not None:
        raise ConfigurationError(f"setting {PREFIX}REDIS__URL: the Redis that it names does not answer ({refusal})")


async def _refusal(url: str) -> str | None:
    client = Redis.from_url(url, socket_connect_timeout=2.0, socket_timeout=2.0)
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        return str(error)
    finally:
        await client.aclose()
    return None


async def listening(address: str) -> None:
    """Wait until something takes connections at host:port."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(POLL_S)
        else:
            writer.close()
            return


async def check_kafka(settings: KafkaSettings) -> None:
    """Raises `ConfigurationError` where the user's own Kafka does not answer."""
    from streaming.kafka_topics import wait_for_broker  # the client: not for a stack that has its own broker

    try:
        await asyncio.to_thread(wait_for_broker, settings)
    except BrokerUnavailable as error:
        raise ConfigurationError(str(error)) from None
