"""Topics are made explicitly, before anything reads or writes them: a slip in a name must not become a topic."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError

from core_engine.errors import BrokerUnavailable, ConfigurationError
from core_engine.settings import PREFIX, KafkaSettings

SETTING = f"{PREFIX}KAFKA__BOOTSTRAP_SERVERS"
RETRY_S = 0.1


def servers(settings: KafkaSettings) -> list[str]:
    return [server.strip() for server in settings.bootstrap_servers.split(",") if server.strip()]


def wait_for_broker(settings: KafkaSettings) -> None:
    """Return once some bootstrap server takes a connection; blocking.

    The client's own constructor leaves a thread behind when nobody answers, so it is asked only then.

    Raises:
        BrokerUnavailable: none did within `connect_timeout_s`. ConfigurationError: an address without a port.
    """
    give_up_s = time.monotonic() + settings.connect_timeout_s
    while True:
        reasons = [refusal for server in servers(settings) if (refusal := _refusal(server)) is not None]
        if len(reasons) < len(servers(settings)):
            return
        if time.monotonic() >= give_up_s:
            raise BrokerUnavailable(
                f"no Kafka broker answers at {settings.bootstrap_servers} ({'; '.join(reasons)}); start one or set"
                f" {SETTING}"
            )
        time.sleep(RETRY_S)


def _refusal(server: str) -> str | None:
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"setting {SETTING}: {server!r} is no address; expected host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def check_topics(settings: KafkaSettings, topics: Iterable[str]) -> None:
    """Look that `topics` exist, by the list of all: a broker may create a topic that it is asked about. Blocking.

    Raises:
        BrokerUnavailable: no broker answers. ConfigurationError: a topic does not exist.
    """
    wait_for_broker(settings)
    try:
        admin = KafkaAdminClient(bootstrap_servers=servers(settings))
        try:
            existing = set(admin.list_topics())
        finally:
            admin.close()
    except KafkaError as error:
        raise BrokerUnavailable(f"the broker at {settings.bootstrap_servers}: {error}") from None
    for topic in topics:
        if topic not in existing:
            raise ConfigurationError(
                f"topic {topic!r} does not exist at {settings.bootstrap_servers}: headrace stream create-topic {topic}"
            )


def create_topics(settings: KafkaSettings, partitions: Mapping[str, int]) -> None:
    """Create each topic with that many partitions; one that exists is left as it is. Blocking.

    Raises:
        BrokerUnavailable: no broker answers, or it refuses.
    """
    wait_for_broker(settings)
    try:
        admin = KafkaAdminClient(bootstrap_servers=servers(settings))
        try:
            for topic, count in partitions.items():
                try:
                    admin.create_topics({topic: {"num_partitions": count, "replication_factor": 1}})
                except TopicAlreadyExistsError:
                    pass
        finally:
            admin.close()
    except KafkaError as error:
        raise BrokerUnavailable(f"topics {', '.join(partitions)} were not created: {error}") from None
