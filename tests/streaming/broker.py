"""One tansu process in memory that a test can stall, kill and start again; and what tests read and write there."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from core_engine.settings import KafkaSettings
from headrace.runtime import free_port
from headrace.stack import broker_spec
from headrace.wheels import kafka_broker
from streaming.kafka_topics import create_topics

_numbers = itertools.count()


def unique(word: str) -> str:
    return f"{word}-{os.getpid()}-{next(_numbers)}-{time.time_ns()}"


class Broker:
    """`address` stays the same over restarts."""

    def __init__(self, log: Path) -> None:
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        self._spec = broker_spec(kafka_broker(), self.address)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once the broker takes connections; the test's time limit bounds it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._spec.argv, env=dict(self._spec.env), stdout=log, stderr=log)
        host, _, port = self.address.rpartition(":")
        while True:
            assert self._process.poll() is None, self._log.read_text()
            try:
                socket.create_connection((host, int(port))).close()
                return
            except ConnectionRefusedError:
                pass

    def stall(self) -> None:
        """From here on the broker is alive and silent."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@dataclass(frozen=True)
class Seen:
    """A record as a reader finds it in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Topics:
    """The topics of one test at one broker."""

    def __init__(self, address: str, session_timeout_s: float = 2.0) -> None:
        self.settings = KafkaSettings(
            bootstrap_servers=address,
            connect_timeout_s=5.0,
            delivery_timeout_s=10.0,
            session_timeout_s=session_timeout_s,  # a join takes half of it; a real broker may want 6 s at least
        )
        self._address = address

    def create(self, word: str, partitions: int = 1) -> str:
        name = unique(word)
        create_topics(self.settings, {name: partitions})
        return name

    def produce(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], partition: int | None = None
    ) -> None:
        producer = KafkaProducer(bootstrap_servers=self._address)
        try:
            sent = [producer.send(topic, key=key or b"-", value=value, partition=partition) for key, value in records]
            producer.flush()
            for future in sent:
                future.get(60)
        finally:
            producer.close()

    def read(self, topic: str, count: int) -> list[Seen]:
        """The first `count` records of a topic, by partition and offset; waits for them."""
        consumer = KafkaConsumer(bootstrap_servers=self._address, auto_offset_reset="earliest")
        try:
            partitions = consumer.partitions_for_topic(topic)
            consumer.assign([TopicPartition(topic, number) for number in partitions])
            seen: list[Seen] = []
            while len(seen) < count:
                for records in consumer.poll(100).values():
                    seen += [Seen(r.partition, r.offset, r.key, r.value) for r in records]
            return sorted(seen, key=lambda r: (r.partition, r.offset))
        finally:
            consumer.close()

    def committed(self, topic: str, group: str, partitions: Sequence[int] = (0,)) -> list[int | None]:
        consumer: Any = KafkaConsumer(bootstrap_servers=self._address, group_id=group, enable_auto_commit=False)
        try:
            return [consumer.committed(TopicPartition(topic, number)) for number in partitions]
        finally:
            consumer.close()
