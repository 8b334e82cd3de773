"""Events on their way to the store: grouped by entity, in order, bounded, and refused where they could not be kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from redis.asyncio import Redis

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.windows.batches import MAX_EVENTS, MAX_FIELDS, Batch, batched
from featurestore.windows.functions import ADVANCE, APPLY, LIBRARY, LIBRARY_NAME, PEEK, SEED
from featurestore.windows.plan import WindowPlan
from featurestore.windows.store import WindowStore
from tests.featurestore.windows.kinds import kinds_view
from tests.featurestore.windows.oracle import Departure, window_view

PLAN = WindowPlan(kinds_view())


def opened(view: str, key: str) -> Batch:
    return Batch(PLAN, key, 1_000)


def test_events_of_one_entity_go_together_and_stay_in_order() -> None:
    events = [Departure(i % 7, i, i, origin=("JFK", "LGA")[i % 3 == 0]).to(PLAN) for i in range(1_000)]
    batches = batched(events, opened)
    assert sorted(position for batch in batches for position in batch.positions) == list(range(1_000))
    for key in ("JFK", "LGA"):
        positions = [position for batch in batches if batch.key == key for position in batch.positions]
        assert positions == [i for i, event in enumerate(events) if event.key == key]
    assert max(len(batch.positions) for batch in batches) == MAX_EVENTS


def test_a_batch_of_many_tiles_is_cut_before_the_server_could_not_take_its_fields() -> None:
    batches = batched([Departure(i * 10, i, i).to(PLAN) for i in range(1_000)], opened)
    assert max(len(batch.tiles) for batch in batches) * PLAN.layout.num_fields <= MAX_FIELDS + PLAN.layout.num_fields


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"event_time": datetime(2026, 11, 30)}, r"\.event_time = .*: expected a datetime with a timezone"),
        ({"event_time": datetime(2300, 1, 1, tzinfo=UTC)}, r"\.event_time = .*: expected an instant from 1685 to 2255"),
        ({"offset": -1}, r"\.offset = -1: expected an integer from 0 to"),
        ({"offset": 2**53 + 1}, r"\.offset = 9007199254740993: expected an integer"),
        ({"offset": True}, r"\.offset = True"),
        ({"source": ""}, r"\.source = '': expected a topic and partition"),
        ({"source": "a\0b"}, r"\.source = 'a\\x00b'"),
        ({"key": ""}, "entity airport = '': expected a non-empty string as the key of entity 'airport'"),
        ({"key": "\ud800"}, "entity airport = "),
    ],
)
async def test_what_is_no_event_is_refused_by_view_and_field_and_nothing_is_applied(
    client: Redis, change: dict[str, Any], says: str
) -> None:
    view = window_view()
    store, good = WindowStore(client, [view], 86_400.0), Departure(1, 5, 0).to(WindowPlan(view))
    with pytest.raises(InvalidRequest, match=says) as refused:
        await store.apply([good, replace(good, **change)])
    assert view.name in str(refused.value)
    assert [str(outcome) for outcome in await store.apply([good])] == ["applied"]


async def test_an_event_of_a_view_that_is_not_here_is_refused(client: Redis) -> None:
    store = WindowStore(client, [window_view()], 86_400.0)
    with pytest.raises(ConfigurationError, match=f"feature view '{PLAN.view.name}' has no window here"):
        await store.apply([Departure(1, 5, 0).to(PLAN)])


def test_the_functions_have_the_names_that_are_called() -> None:
    assert LIBRARY.startswith(f"#!lua name={LIBRARY_NAME}\n")
    registered = [line.split("'")[1] for line in LIBRARY.splitlines() if line.startswith("redis.register_function(")]
    assert registered == [APPLY, PEEK, SEED, ADVANCE]
