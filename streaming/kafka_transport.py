"""kafka-python behind the transport port: a poll loop in a thread of its own that hands records over and never scores.

However long scoring takes, the loop goes on polling (with its partitions paused while enough is outstanding), so the
group never thinks that this member is gone. Commits are asynchronous; at a revoke there is one, bounded, of what is
finished, and work in flight is not waited for: its results come under an epoch that no longer holds.

Three threads: the client's IO thread runs the rebalance listener, ours polls and commits, the event loop's finishes
records. One lock guards the offsets.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from kafka import KafkaConsumer
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from core_engine.errors import BrokerUnavailable
from core_engine.settings import KafkaSettings
from streaming.kafka_publisher import KafkaPublisher
from streaming.kafka_topics import check_topics, servers
from streaming.offsets import OffsetTracker, Partition
from streaming.transport import Delivery, Record

POLL_MS: Final = 100
PAUSED_MS: Final = 10  # until there may be room again
FETCH_WAIT_MS: Final = 100
COMMIT_EVERY_S: Final = 0.2
COMMIT_LOST_S: Final = 10.0  # a commit whose answer has not come by then is made again
REVOKE_COMMIT_MS: Final = 500
CAUGHT_UP_EVERY_S: Final = 1.0
UNSEEN: Final = timedelta(seconds=1)  # what was produced since may not have been fetched when a poll came back empty
RETRY_S: Final = 0.5

log = structlog.get_logger(__name__)


class KafkaTransport:
    """A `Transport` on `topic` as a member of `group_id`; `publishes` are the topics that the worker will write to."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        group_id: str,
        publishes: Iterable[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._group_id = group_id
        self._publishes = tuple(publishes)
        self._now = now
        self._publisher = KafkaPublisher(settings)
        self._offsets = OffsetTracker()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._consumer: Any = None
        self._is_paused = False
        self._is_committing = False
        self._committed_s = self._caught_up_s = float("-inf")
        self._trouble: str | None = None

    # -- on the worker's event loop

    async def start(self) -> None:
        """See `Transport.start`."""
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Delivery | BrokerUnavailable] = asyncio.Queue()  # bounded by what is outstanding
        self._has_joined = asyncio.Event()
        await asyncio.to_thread(self._open)
        self._thread = threading.Thread(target=self._poll_loop, name="kafka-poll", daemon=True)
        self._thread.start()

    async def joined(self) -> None:
        await self._has_joined.wait()

    async def receive(self) -> Delivery:
        delivery = await self._inbox.get()
        if isinstance(delivery, BrokerUnavailable):
            raise delivery
        return delivery

    def finish(self, record: Record) -> None:
        with self._lock:
            self._offsets.finish(record.partition, record.offset, record.epoch)

    def is_ours(self, record: Record) -> bool:
        with self._lock:
            return self._offsets.holds(record.partition, record.epoch)

    async def publish(self, topic: str, key: bytes, value: bytes) -> None:
        await self._publisher.publish(topic, key, value)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.to_thread(self._close)

    # -- blocking, in threads that may wait

    def _open(self) -> None:
        check_topics(self._settings, (self._topic, *self._publishes))
        session_ms = int(self._settings.session_timeout_s * 1e3)
        try:
            self._consumer = KafkaConsumer(
                bootstrap_servers=servers(self._settings),
                group_id=self._group_id,
                enable_auto_commit=False,
                auto_offset_reset="earliest",  # a group that has never committed begins with all there is
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=session_ms // 4,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                reconnect_backoff_max_ms=1000,
                allow_auto_create_topics=False,
            )
            self._publisher.open()
            self._consumer.subscribe([self._topic], listener=_Listener(self))
        except KafkaError as error:
            self._close()
            raise BrokerUnavailable(f"the broker at {self._settings.bootstrap_servers}: {error}") from None

    def _close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._consumer is not None:
            try:
                # revokes what we hold: the listener makes the last commit
                self._consumer.close(autocommit=False, timeout_ms=REVOKE_COMMIT_MS)
            except KafkaError as error:
                log.warning("group_not_left", group=self._group_id, error=str(error))
        self._publisher.close()

    # -- in the poll thread

    def _poll_loop(self) -> None:
        try:
            while not self._closing.is_set():
                self._poll()
        except Exception as error:  # the consumer loop: its end must be known to the worker
            log.exception("poll_loop_failed")
            self._tell(self._inbox.put_nowait, BrokerUnavailable(f"the poll loop failed: {error!r}"))

    def _poll(self) -> None:
        try:
            room = self._regulate()
            asked_at = self._now()
            wait_ms = PAUSED_MS if self._is_paused else POLL_MS
            polled = self._consumer.poll(timeout_ms=wait_ms, max_records=max(1, room))
            self._commit_if_due()
        except KafkaError as error:
            self._note(str(error))
            self._closing.wait(RETRY_S)
            return
        self._note(None)
        records = self._taken(polled)
        if records:
            self._tell(self._inbox.put_nowait, Delivery(records))
        elif not self._is_paused and time.monotonic() - self._caught_up_s >= CAUGHT_UP_EVERY_S:
            self._tell_caught_up(asked_at - UNSEEN)

    def _regulate(self) -> int:
        """Pause everything while enough is outstanding, resume at half of it; returns how many more may be taken."""
        with self._lock:
            outstanding = self._offsets.num_outstanding
        limit = self._settings.max_outstanding
        self._is_paused = outstanding >= limit or (self._is_paused and outstanding > limit // 2)
        assigned, paused = self._consumer.assignment(), self._consumer.paused()
        try:
            if self._is_paused:
                self._consumer.pause(*(assigned - paused))
            else:
                self._consumer.resume(*(assigned & paused))
        except KeyError:  # revoked since we looked
            pass
        return limit - outstanding

    def _taken(self, polled: Mapping[Any, Iterable[Any]]) -> tuple[Record, ...]:
        """The records that are ours. What was revoked while the poll returned is given to its new owner."""
        records = []
        with self._lock:
            for place, batch in polled.items():
                partition = Partition(place.topic, place.partition)
                for each in batch:
                    epoch = self._offsets.take(partition, each.offset)
                    if epoch is not None:
                        records.append(Record(partition, each.offset, epoch, each.key, each.value))
        return tuple(records)

    def _tell_caught_up(self, at: datetime) -> None:
        """Nothing came: say which partitions have nothing more, by the high water mark of their last fetch."""
        done = []
        for place in self._consumer.assignment():
            partition = Partition(place.topic, place.partition)
            with self._lock:
                is_idle = self._offsets.outstanding(partition) == 0
            try:
                highwater = self._consumer.highwater(place)
                if is_idle and highwater is not None and self._consumer.position(place, POLL_MS) == highwater:
                    done.append(partition)
            except (KafkaError, KeyError):  # revoked since we looked
                continue
        if done:
            self._caught_up_s = time.monotonic()
            self._tell(self._inbox.put_nowait, Delivery(caught_up=tuple(done), at=at))

    def _commit_if_due(self) -> None:
        since_s = time.monotonic() - self._committed_s
        if since_s < (COMMIT_LOST_S if self._is_committing else COMMIT_EVERY_S):
            return
        with self._lock:
            due = self._offsets.committable()
            epochs = self._offsets.epochs(due)
        if due:
            self._is_committing, self._committed_s = True, time.monotonic()
            self._consumer.commit_async(_to_kafka(due), lambda _, result: self._commit_done(due, epochs, result))

    def _commit_done(self, due: Mapping[Partition, int], epochs: Mapping[Partition, int], result: object) -> None:
        self._is_committing = False
        if isinstance(result, Exception):
            log.info("commit_failed", error=str(result))  # what it covered is due again
            return
        with self._lock:
            self._offsets.committed(due, epochs)

    def _note(self, trouble: str | None) -> None:
        """Say once that something is wrong, and once that it is over."""
        if trouble is not None and self._trouble is None:
            log.warning("broker_trouble", error=trouble)
        elif trouble is None and self._trouble is not None:
            log.info("broker_recovered")
        self._trouble = trouble

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._closing.set()

    # -- in the client's IO thread, which also sends the heartbeats

    async def revoked(self, places: Iterable[Any]) -> None:
        with self._lock:
            due = self._offsets.revoke(_from_kafka(places))
        try:
            if due:
                committing = self._consumer.commit_async(_to_kafka(due))
                # the client has no public way to wait within its own loop and a bound
                await self._consumer._manager.wait_for(committing, REVOKE_COMMIT_MS)
        except KafkaError as error:
            log.warning("commit_at_revoke_failed", error=str(error), offsets={p.name: o for p, o in due.items()})
        finally:
            # A partition that we are given again would keep its place, behind what is fenced now, and the mark that it
            # is being revoked, which nothing takes away: it would never be fetched again (seen with 3.0.12). Forgotten,
            # it begins at what the group has committed.
            self._consumer._subscription.assign_from_subscribed([])

    def lost(self, places: Iterable[Any]) -> None:
        with self._lock:
            self._offsets.lose(_from_kafka(places))

    def assigned(self, places: Iterable[Any]) -> None:
        partitions = _from_kafka(places)
        with self._lock:
            self._offsets.assign(partitions)
        log.info("partitions_assigned", group=self._group_id, partitions=[partition.name for partition in partitions])
        self._tell(self._has_joined.set)


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # the client has no types
    """Asynchronous, because a listener that blocks would stop the heartbeats: one thread does both."""

    def __init__(self, transport: KafkaTransport) -> None:
        self._transport = transport

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._transport.revoked(revoked)

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._transport.assigned(assigned)

    async def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._transport.lost(lost)


def _from_kafka(places: Iterable[Any]) -> list[Partition]:
    return sorted(Partition(place.topic, place.partition) for place in places)


def _to_kafka(offsets: Mapping[Partition, int]) -> dict[Any, Any]:
    return {
        TopicPartition(partition.topic, partition.number): OffsetAndMetadata(offset, "", -1)
        for partition, offset in offsets.items()
    }
