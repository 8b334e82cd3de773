"""Publishes records through kafka-python's producer, awaited one by one; the client batches what is sent together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from core_engine.errors import BrokerUnavailable
from core_engine.settings import KafkaSettings
from streaming.kafka_topics import servers

LINGER_MS = 2  # 2,000 events in twos and threes: half the requests, against 2 ms of each event's latency
GRACE_S = 0.5
AT_ONCE = 500
CLOSE_S = 1.0


class KafkaPublisher:
    """An idempotent producer (its own retries make no duplicates) that never creates a topic."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None

    def open(self) -> None:
        """Connect; blocking. Topics are looked at before, by `check_topics`. Raises `KafkaError`."""
        timeout_ms = int(self._settings.delivery_timeout_s * 1e3)
        self._producer = KafkaProducer(
            bootstrap_servers=servers(self._settings),
            acks="all",
            linger_ms=LINGER_MS,
            delivery_timeout_ms=timeout_ms,
            request_timeout_ms=max(1, timeout_ms // 2 - LINGER_MS),
            max_block_ms=int(self._settings.connect_timeout_s * 1e3),
            reconnect_backoff_max_ms=1000,
            allow_auto_create_topics=False,
        )

    async def publish_all(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Keys and values in their order, `AT_ONCE` of them on their way. Raises `BrokerUnavailable`."""
        for start in range(0, len(records), AT_ONCE):
            sent = [await self._send(topic, key, value) for key, value in records[start : start + AT_ONCE]]
            await self._acknowledged(topic, asyncio.gather(*sent))

    async def publish(self, topic: str, key: bytes, value: bytes) -> None:
        """Returns once every replica in sync has the record. Raises `BrokerUnavailable`."""
        await self._acknowledged(topic, await self._send(topic, key, value))

    async def _send(self, topic: str, key: bytes, value: bytes) -> asyncio.Future[None]:
        """Hand a record to the client; the future is its acknowledgement."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        try:
            # in a thread: it blocks where the client has forgotten the topic's partitions
            sent = await asyncio.to_thread(self._producer.send, topic, key=key, value=value)
        except KafkaError as error:
            raise self._not_taken(topic, error) from None
        sent.add_callback(lambda _: loop.call_soon_threadsafe(_settle, done, None))
        sent.add_errback(lambda error: loop.call_soon_threadsafe(_settle, done, error))
        return done

    async def _acknowledged(self, topic: str, done: asyncio.Future[Any]) -> None:
        try:
            # the client's own bound does not hold before its first contact, when it has no producer id yet
            async with asyncio.timeout(self._settings.delivery_timeout_s + GRACE_S):
                await done
        except (KafkaError, TimeoutError) as error:
            raise self._not_taken(topic, error) from None

    def _not_taken(self, topic: str, error: Exception) -> BrokerUnavailable:
        bound_s = self._settings.delivery_timeout_s
        return BrokerUnavailable(f"topic {topic} took no record for {bound_s:g} s ({error or 'the broker is away'})")

    def close(self) -> None:
        """Blocking; what is not sent by now is given up."""
        if self._producer is None:
            return
        try:
            self._producer.close(timeout=CLOSE_S)
        except KafkaError:  # the broker is away; the client's own close has left its thread running
            self._producer._sender.force_close()
            self._producer._sender.join()
        self._producer = None


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():  # its waiter was cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
