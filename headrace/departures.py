"""The flights example as a stream: puts real departure events into a topic, and reads what the window has become."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from core_engine.contracts import Deadline, FeatureValue
from core_engine.settings import Settings
from examples.flights.departures import DepartureEvent
from examples.flights.features import DEPARTURES, STREAMED
from examples.flights.prepare import Prepared
from featurestore.online.connection import connect
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from headrace.stream import StreamOptions
from streaming.kafka_publisher import KafkaPublisher
from streaming.kafka_topics import check_topics, create_topics

PREDICTOR = "arrival_delay"
OPTIONS = StreamOptions(predictor=PREDICTOR, topic=DEPARTURES, output_topic="arrival-delays")
PARTITIONS = 2
MALFORMED = b'{"event_id": "cut off in the mid'


async def create_departure_topics(settings: Settings) -> None:
    """The topics of events, predictions and dead letters. Raises `BrokerUnavailable`."""
    await asyncio.to_thread(create_topics, settings.kafka, dict.fromkeys(OPTIONS.topics, PARTITIONS))


async def produce_departures(settings: Settings, events: Iterable[DepartureEvent], malformed: int = 0) -> int:
    """Put `events` into the topic in their order, then so many records that are no events; returns how many in all.

    Raises:
        BrokerUnavailable: not every record was taken.
    """
    records = [(event.key, event.to_json()) for event in events] + [(b"malformed", MALFORMED)] * malformed
    publisher = KafkaPublisher(settings.kafka)
    await asyncio.to_thread(check_topics, settings.kafka, (DEPARTURES,))
    await asyncio.to_thread(publisher.open)
    try:
        await publisher.publish_all(DEPARTURES, records)
    finally:
        await asyncio.to_thread(publisher.close)
    return len(records)


async def airport_window(settings: Settings, prepared: Prepared, airport: str) -> Mapping[str, FeatureValue]:
    """The streamed window of one airport as the next prediction will see it, by feature: value, state and age."""
    view = next(view for view in prepared.views if view.name == STREAMED)
    client = connect(settings.redis)
    try:
        reader = OnlineFeatureReader(OnlineStore(client, [view], settings.features.retention_s), [view])
        refs = [f"{view.name}.{field.name}" for field in view.schema]
        row = await reader.read(refs, {view.entity: airport}, Deadline.never())
    finally:
        await client.aclose()
    return {ref.partition(".")[2]: value for ref, value in row.values.items()}
