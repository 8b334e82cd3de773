"""A request sees one generation, whatever is published beside it; a miss is a miss."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis.asyncio import Redis

from core_engine.contracts import Deadline, ReadCost
from core_engine.errors import DeadlineExceeded, StoreUnavailable
from core_engine.readers import PredictionReader
from core_engine.settings import RedisSettings
from featurestore.codec import UnreadablePayload
from featurestore.generations import generation_key
from featurestore.online.connection import connect
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.predictions import PredictionStore
from tests.deadlines import always_left
from tests.featurestore.rows import NOW
from tests.featurestore.test_predictions import paged, predictor, publish, rows, store
from tests.featurestore.valkey import Valkey

__all__ = ("predictor", "store")  # fixtures
NEVER = Deadline.never()


def reader_at(client: Redis, later: timedelta = timedelta()) -> OnlinePredictionReader:
    return OnlinePredictionReader(client, lambda: NOW + later)


async def test_a_stored_prediction_says_generation_age_and_cost(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    await publish(store, predictor, "g1", {"a": "short"}, 1)
    reader: PredictionReader = reader_at(client, timedelta(seconds=90))
    stored = await reader.lookup(predictor, "a", NEVER)
    assert stored is not None
    assert (stored.value, stored.generation, stored.age_s) == ("short", "g1", 90.0)
    assert stored.cost == ReadCost(reads=2, hits=2, bytes=6, round_trips=2)


async def test_a_clock_behind_the_writers_makes_no_negative_age(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    await publish(store, predictor, "g1", {"a": 1.0}, 1)
    stored = await reader_at(client, -timedelta(seconds=5)).lookup(predictor, "a", NEVER)
    assert stored is not None
    assert stored.age_s == 0.0


async def test_two_look_ups_of_one_request_never_mix_two_nights(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    await publish(store, predictor, "g1", {"a": 1.0, "b": 1.0}, 1)
    view = reader_at(client).pinned(predictor)
    first = await view.lookup("a", NEVER)
    await publish(store, predictor, "g2", {"a": 2.0, "b": 2.0, "c": 2.0}, 2)
    second, only_in_new = await view.lookup("b", NEVER), await view.lookup("c", NEVER)
    assert first is not None
    assert second is not None
    assert (first.value, second.value, only_in_new) == (1.0, 1.0, None)


async def test_an_entity_of_the_previous_generation_is_a_miss(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    await publish(store, predictor, "g1", {"old": 1.0}, 1)
    await publish(store, predictor, "g2", {"new": 2.0}, 2)
    assert await reader_at(client).lookup(predictor, "old", NEVER) is None


async def test_only_a_generation_that_is_gone_is_left_and_only_once(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    await publish(store, predictor, "g1", {"a": 1.0}, 1)
    view = reader_at(client).pinned(predictor)
    await view.lookup("a", NEVER)
    await publish(store, predictor, "g2", {"a": 2.0}, 2)
    await client.delete(generation_key(predictor, "g1"))
    moved = await view.lookup("a", NEVER)
    assert moved is not None
    assert (moved.value, view.generation) == (2.0, "g2")

    await publish(store, predictor, "g3", {"a": 3.0}, 3)
    await client.delete(generation_key(predictor, "g2"))
    assert await view.lookup("a", NEVER) is None
    assert view.generation == "g2"


async def test_a_named_generation_is_read_once_it_is_sealed_and_never_moved(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    view = reader_at(client).pinned(predictor, "g1")
    await store.write(predictor, "g1", paged(rows({"a": 1.0})))
    assert await view.lookup("a", NEVER) is None
    await store.seal(predictor, "g1", 1, NOW)
    stored = await view.lookup("a", NEVER)
    assert stored is not None
    await publish(store, predictor, "g2", {"a": 2.0}, 2)
    await client.delete(generation_key(predictor, "g1"))
    assert await view.lookup("a", NEVER) is None


async def test_nothing_published_is_a_miss_and_the_seal_is_no_entity(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    assert await reader_at(client).lookup(predictor, "a", NEVER) is None
    await publish(store, predictor, "g1", {"a": 1.0}, 1)
    assert await reader_at(client).lookup(predictor, "", NEVER) is None


async def test_a_null_is_a_value(client: Redis, store: PredictionStore, predictor: str) -> None:
    await publish(store, predictor, "g1", {"a": None}, 1)
    stored = await reader_at(client).lookup(predictor, "a", NEVER)
    assert stored is not None
    assert stored.value is None


@pytest.mark.parametrize("field", ["", "a"])
async def test_bytes_of_another_hand_are_said_to_be(
    client: Redis, store: PredictionStore, predictor: str, field: str
) -> None:
    await publish(store, predictor, "g1", {"a": 1.0}, 1)
    await client.hset(generation_key(predictor, "g1"), field, b"\xc1")
    with pytest.raises(UnreadablePayload, match="generation g1"):
        await reader_at(client).lookup(predictor, "a", NEVER)


async def test_a_store_that_is_away_or_silent_is_an_error_of_its_own(own_server: Valkey) -> None:
    client = connect(RedisSettings(url=own_server.url))
    own_server.stall()
    with pytest.raises(DeadlineExceeded):
        await reader_at(client).lookup("p:1", "a", always_left(0.05))
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        await reader_at(client).lookup("p:1", "a", NEVER)
    await client.aclose()
