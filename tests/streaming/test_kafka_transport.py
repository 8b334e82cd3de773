"""The transport on a real broker: hand-over, commits, rebalance, pausing, and a broker that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from core_engine.errors import BrokerUnavailable, ConfigurationError
from core_engine.settings import KafkaSettings
from headrace.runtime import free_port
from streaming.kafka_transport import KafkaTransport
from streaming.transport import Delivery, Record
from tests.streaming.broker import Broker, Topics, unique

REFUSED_SOCKETS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def numbered(count: int, start: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    return [(f"k{i % 7}".encode(), str(i).encode()) for i in range(start, start + count)]


@asynccontextmanager
async def member(
    topics: Topics, topic: str, group: str, publishes: tuple[str, ...] = (), **changes: object
) -> AsyncIterator[KafkaTransport]:
    settings = topics.settings.model_copy(update=changes)
    transport = KafkaTransport(settings, topic, group, publishes)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.close()


async def take(transport: KafkaTransport, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        records += (await transport.receive()).records
    return records


async def caught_up(transport: KafkaTransport) -> Delivery:
    while True:
        delivery = await transport.receive()
        if delivery.caught_up:
            return delivery


async def test_records_come_with_their_coordinates_in_the_order_of_their_partition(topics: Topics) -> None:
    topic = topics.create("events", partitions=2)
    topics.produce(topic, numbered(300))
    async with member(topics, topic, unique("group"), max_outstanding=1000) as transport:
        records = await take(transport, 300)
    assert sorted(int(r.value or b"") for r in records) == list(range(300))
    for number in (0, 1):
        offsets = [r.offset for r in records if r.partition.number == number]
        assert offsets == list(range(len(offsets)))
    assert records[0].coordinates == f"{topic}/{records[0].partition.number}/0"


async def test_what_is_finished_is_committed_and_the_rest_comes_again(topics: Topics) -> None:
    topic, group = topics.create("events"), unique("group")
    topics.produce(topic, numbered(10))
    async with member(topics, topic, group) as transport:
        for record in await take(transport, 10):
            if record.offset not in (4, 7):
                transport.finish(record)
    assert topics.committed(topic, group) == [4]
    async with member(topics, topic, group) as transport:
        again = await take(transport, 6)
        assert [record.offset for record in again] == [4, 5, 6, 7, 8, 9]
        for record in again:
            transport.finish(record)
    assert topics.committed(topic, group) == [10]


async def test_commits_are_made_while_it_runs(topics: Topics) -> None:
    topic, group = topics.create("events"), unique("group")
    topics.produce(topic, numbered(3))
    async with member(topics, topic, group) as transport:
        for record in await take(transport, 3):
            transport.finish(record)
        while await asyncio.to_thread(topics.committed, topic, group) != [3]:
            pass


async def test_an_empty_or_read_partition_is_told_to_be_caught_up(topics: Topics) -> None:
    topic = topics.create("events", partitions=2)
    topics.produce(topic, numbered(5), partition=1)
    async with member(topics, topic, unique("group")) as transport:
        records = await take(transport, 5)
        delivery = await caught_up(transport)
        assert [p.number for p in delivery.caught_up] == [0], "partition 1 has unfinished records"
        assert delivery.at is not None
        for record in records:
            transport.finish(record)
        while len((await caught_up(transport)).caught_up) < 2:
            pass


async def test_it_stops_reading_while_enough_is_outstanding_and_goes_on_after(topics: Topics) -> None:
    topic = topics.create("events", partitions=2)
    topics.produce(topic, numbered(200))
    async with member(topics, topic, unique("group"), max_outstanding=20) as transport:
        held = await take(transport, 20)
        assert len(held) == 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):  # ten polls, none of which may bring anything
                await take(transport, 1)
        seen = len(held)
        while seen < 200:
            for record in held:
                transport.finish(record)
            held = await take(transport, 1)
            assert len(held) <= 20
            seen += len(held)


async def test_a_second_member_takes_its_share_and_the_first_ones_results_are_fenced(topics: Topics) -> None:
    """Scale-out in the middle of work: nothing that was finished is lost, nothing unfinished is committed."""
    topic, group = topics.create("events", partitions=2), unique("group")
    topics.produce(topic, numbered(50), partition=0)
    topics.produce(topic, numbered(50, 50), partition=1)
    async with member(topics, topic, group) as first:
        records = await take(first, 100)
        done = [record for record in records if record.offset < 20]
        for record in done:
            first.finish(record)
        async with member(topics, topic, group) as second:
            share = await take(second, 30)
            assert {record.partition for record in share} == {share[0].partition}
            assert [record.offset for record in share] == list(range(20, 50)), "the first one's last commit holds"
            late = [record for record in records if record not in done]
            assert not any(first.is_ours(record) for record in late)
            for record in late:
                first.finish(record)  # results of an older epoch
            again = await take(first, 30)
            assert [record.offset for record in again] == list(range(20, 50))
            assert topics.committed(topic, group, (0, 1)) == [20, 20]


async def test_a_member_that_vanished_is_succeeded(topics: Topics) -> None:
    """Closed without finishing anything: the next one begins where it began."""
    topic, group = topics.create("events"), unique("group")
    topics.produce(topic, numbered(5))
    async with member(topics, topic, group) as first:
        assert len(await take(first, 5)) == 5
    async with member(topics, topic, group) as second:
        assert [record.offset for record in await take(second, 5)] == [0, 1, 2, 3, 4]


async def test_a_published_record_is_there_under_its_key(topics: Topics) -> None:
    topic, output = topics.create("events"), topics.create("out")
    async with member(topics, topic, unique("group"), (output,)) as transport:
        await asyncio.gather(*(transport.publish(output, b"key%d" % i, b"value%d" % i) for i in range(20)))
    assert {(r.key, r.value) for r in topics.read(output, 20)} == {(b"key%d" % i, b"value%d" % i) for i in range(20)}


async def test_an_unknown_topic_is_named_and_not_created(topics: Topics) -> None:
    topic = topics.create("events")
    for source, publishes in ((unique("nowhere"), ()), (topic, (unique("nowhere"),))):
        for _ in range(2):  # the first try must not have made it
            with pytest.raises(ConfigurationError, match=r"topic 'nowhere.*' does not exist at .*create-topic nowhere"):
                async with member(topics, source, unique("group"), publishes, connect_timeout_s=1.0):
                    pass


async def test_no_broker_is_said_with_the_setting_that_names_one() -> None:
    settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port('127.0.0.1')}", connect_timeout_s=0.2)
    with pytest.raises(BrokerUnavailable, match=r"no Kafka broker answers at .* set HEADRACE_KAFKA__BOOTSTRAP_SERVERS"):
        await KafkaTransport(settings, "t", "g", ()).start()
    with pytest.raises(ConfigurationError, match="'broker' is no address; expected host:port"):
        await KafkaTransport(KafkaSettings(bootstrap_servers="broker"), "t", "g", ()).start()


@REFUSED_SOCKETS
async def test_a_broker_that_falls_silent_is_waited_for(own_broker: Broker) -> None:
    topics = Topics(own_broker.address)
    topic, group = topics.create("events"), unique("group")
    topics.produce(topic, numbered(5))
    async with member(topics, topic, group) as transport:
        records = await take(transport, 5)
        own_broker.stall()
        for record in records:
            transport.finish(record)
        waiting = asyncio.create_task(take(transport, 1))
        await asyncio.sleep(0)
        own_broker.resume()
        await asyncio.to_thread(topics.produce, topic, numbered(1, 5))
        assert [record.value for record in await waiting] == [b"5"]
    assert topics.committed(topic, group) == [5]


@REFUSED_SOCKETS
async def test_a_broker_that_lost_everything_is_begun_anew(own_broker: Broker) -> None:
    """Killed in the middle and started empty: the member is alive, and reads what is written from then on."""
    topics = Topics(own_broker.address)
    topic = topics.create("events")
    topics.produce(topic, numbered(5))
    async with member(topics, topic, unique("group")) as transport:
        await take(transport, 5)
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        await asyncio.to_thread(_create_again, topics, topic)
        await asyncio.to_thread(topics.produce, topic, numbered(3, 100))
        assert [record.value for record in await take(transport, 3)] == [b"100", b"101", b"102"]


def _create_again(topics: Topics, topic: str) -> None:
    from streaming.kafka_topics import create_topics

    create_topics(topics.settings, {topic: 1})


@REFUSED_SOCKETS
async def test_an_output_that_is_not_taken_is_an_error_within_its_bound(own_broker: Broker) -> None:
    topics = Topics(own_broker.address)
    topic, output = topics.create("events"), topics.create("out")
    async with member(topics, topic, unique("group"), (output,), delivery_timeout_s=1.5) as transport:
        await asyncio.to_thread(own_broker.kill)
        with pytest.raises(BrokerUnavailable, match=f"topic {output} took no record for 1.5 s"):
            await transport.publish(output, b"k", b"v")
