"""The example's stream through real servers: topics, events, and the window as the next prediction will see it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from core_engine.errors import ConfigurationError
from core_engine.settings import RedisSettings, Settings
from examples.flights.departures import DepartureEvent
from examples.flights.features import DEPARTURES, feature_views
from featurestore.online.connection import connect
from featurestore.windows.batches import WindowEvent
from featurestore.windows.plan import WindowPlan
from featurestore.windows.store import WindowStore
from headrace import departures
from headrace.stream import StreamOptions
from streaming.events import parse_event
from tests.featurestore.conftest import redis_url, socket_dir
from tests.streaming.broker import Topics, unique
from tests.streaming.conftest import topics

__all__ = ["redis_url", "socket_dir", "topics"]

AT = datetime(2026, 11, 30, 12, 2, tzinfo=UTC)


def departure(flight: int) -> DepartureEvent:
    return DepartureEvent(
        event_id=f"UA-{flight}", event_time=AT, carrier="UA", flight=flight, origin="EWR", dest="IAH",
        scheduled_departure=AT, departure_delay=3.0, distance=1400.0, late=None,
    )  # fmt: skip


async def test_events_are_produced_by_key_and_malformed_ones_on_request(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, settings = unique("departures"), Settings(kafka=topics.settings)
    monkeypatch.setattr(departures, "DEPARTURES", topic)
    monkeypatch.setattr(departures, "OPTIONS", StreamOptions("arrival_delay", topic, unique("out"), unique("letters")))
    with pytest.raises(ConfigurationError, match="does not exist"):
        await departures.produce_departures(settings, [departure(1)])
    await departures.create_departure_topics(settings)
    flights = [departure(i % 30) for i in range(60)]
    assert await departures.produce_departures(settings, flights, malformed=1) == 61
    seen = topics.read(topic, 61)
    by_key: dict[bytes | None, set[int]] = {}
    for each in seen:
        by_key.setdefault(each.key, set()).add(each.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values()), "one flight, one partition"
    assert sum(each.value == departures.MALFORMED for each in seen) == 1
    good = [parse_event(each.value, AT) for each in seen if each.value != departures.MALFORMED]
    assert {event.fields["flight"] for event in good} == set(range(30))


async def test_the_window_is_what_the_next_prediction_sees(redis_url: str, tmp_path: Path) -> None:
    settings = Settings(redis=RedisSettings(url=redis_url))
    views = tuple(
        msgspec.structs.replace(view, version=abs(hash(str(tmp_path))) % 10**6) for view in feature_views(tmp_path)
    )
    prepared = FakePrepared(views)
    before = await departures.airport_window(settings, prepared, "EWR")  # type: ignore[arg-type]
    assert {str(value.state) for value in before.values()} == {"missing"}
    client: Redis = connect(settings.redis)
    store = WindowStore(client, views, 86_400.0)
    plan = store.plans(DEPARTURES)[0]
    now = datetime.now(UTC)
    tick = plan.tick_of(int(now.timestamp()) * 10**6) * plan.tile_us // 10**6
    event = replace(departure(1), event_time=datetime.fromtimestamp(tick - 60, UTC))
    await store.apply([_applied(plan, event)])
    await store.advance(plan.view.name, {"departures/0": now})
    await client.aclose()
    after = await departures.airport_window(settings, prepared, "EWR")  # type: ignore[arg-type]
    assert (after["mean_delay"].value, after["late_share"].value, after["flights"].value) == (3.0, 0.0, 1)


class FakePrepared:
    """All that is asked of the prepared example."""

    def __init__(self, views: object) -> None:
        self.views = views


def _applied(plan: WindowPlan, event: DepartureEvent) -> WindowEvent:
    fields = msgspec.json.decode(event.to_json())
    return WindowEvent(plan.view.name, plan.key_of(fields), event.event_time, plan.amounts(fields), "departures/0", 0)
