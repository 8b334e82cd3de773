"""What happens in the client's IO thread at a rebalance: one bounded commit, no waiting for work, nothing when lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import OffsetAndMetadata, TopicPartition

from core_engine.settings import KafkaSettings
from streaming.kafka_transport import REVOKE_COMMIT_MS, KafkaTransport
from streaming.offsets import Partition
from streaming.transport import Record

PLACE = TopicPartition("events", 0)
HELD = Partition("events", 0)


class FakeConsumer:
    """The parts of the client that the listener touches; it is its own manager and subscription."""

    def __init__(self) -> None:
        self.committed: list[dict[Any, Any]] = []
        self.waits_ms: list[int] = []
        self.forgot: list[list[Any]] = []
        self.fails = False
        self._manager = self._subscription = self

    def commit_async(self, offsets: dict[Any, Any]) -> str:
        self.committed.append(offsets)
        return "committing"

    async def wait_for(self, future: str, timeout_ms: int) -> None:
        assert future == "committing"
        self.waits_ms.append(timeout_ms)
        if self.fails:
            raise KafkaTimeoutError("no answer")

    def assign_from_subscribed(self, places: list[Any]) -> None:
        self.forgot.append(places)


@pytest.fixture
async def transport() -> KafkaTransport:
    transport = KafkaTransport(KafkaSettings(), "events", "group", ())
    transport._loop, transport._has_joined = asyncio.get_running_loop(), asyncio.Event()
    transport._consumer = FakeConsumer()
    transport.assigned([PLACE])
    return transport


def take(transport: KafkaTransport, *offsets: int) -> list[Record]:
    epochs = [transport._offsets.take(HELD, offset) for offset in offsets]
    return [Record(HELD, o, e, None, b"") for o, e in zip(offsets, epochs, strict=True) if e is not None]


async def test_a_revoke_commits_what_is_finished_once_within_its_bound(transport: KafkaTransport) -> None:
    records = take(transport, 0, 1, 2)
    for record in records[:2]:
        transport.finish(record)
    await transport.revoked([PLACE])
    consumer = transport._consumer
    assert consumer.committed == [{PLACE: OffsetAndMetadata(2, "", -1)}]
    assert consumer.waits_ms == [REVOKE_COMMIT_MS] == [500]
    assert consumer.forgot == [[]], "what comes again begins at what the group has committed"
    assert not transport.is_ours(records[2]), "work in flight is fenced, not waited for"
    transport.finish(records[2])
    transport.assigned([PLACE])
    await transport.revoked([PLACE])
    assert len(consumer.committed) == 1, "its result commits nothing later"


async def test_a_revoke_with_nothing_finished_commits_nothing(transport: KafkaTransport) -> None:
    take(transport, 0)
    await transport.revoked([PLACE])
    assert transport._consumer.committed == []
    assert transport._consumer.forgot == [[]]


async def test_a_commit_that_fails_at_a_revoke_holds_nothing_up(transport: KafkaTransport) -> None:
    transport._consumer.fails = True
    transport.finish(take(transport, 0)[0])
    await transport.revoked([PLACE])
    assert transport._consumer.forgot == [[]]


async def test_what_is_lost_is_committed_by_nobody(transport: KafkaTransport) -> None:
    records = take(transport, 0, 1)
    transport.finish(records[0])
    transport.lost([PLACE])
    await transport.revoked([PLACE])
    assert transport._consumer.committed == []
    assert not transport.is_ours(records[1])


async def test_an_assignment_lets_the_worker_begin(transport: KafkaTransport) -> None:
    await transport.joined()
