from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from core_engine.errors import StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.definitions import FeatureType, Field
from featurestore.keys import progress_key, row_key
from featurestore.online.connection import connect
from featurestore.online.store import OnlineStore
from featurestore.online.view_memory import SAMPLED_KEYS, ViewMemory
from tests.featurestore.rows import make_view, row, unique
from tests.featurestore.valkey import Valkey

DAY_S = 86_400.0


async def test_a_small_view_is_measured_whole_and_nothing_of_its_neighbours(client: Redis) -> None:
    first = make_view(Field(name="note", type=FeatureType.STRING))
    neighbours = [make_view(*first.schema, name=first.name, version=2), make_view(name=f"{first.name}0")]
    store = OnlineStore(client, [first, *neighbours], DAY_S)
    keys = [unique("plane") + "{}" * i for i in range(5)]
    await store.write(first, [row(key, {"note": "x" * 100 * i}) for i, key in enumerate(keys)])
    await store.write(neighbours[0], [row(key, {"note": "y" * 5000}) for key in keys])
    await store.write(neighbours[1], [row(key, {"delay": 1}) for key in keys])
    server: Any = client
    exact = sum([await server.memory_usage(row_key(first, key), samples=0) for key in keys])
    assert await store.memory(first) == ViewMemory(entities=5, keys=5, bytes=exact, sampled=5)
    assert (await store.memory(first)).bytes_per_entity == exact / 5


async def test_a_large_view_is_counted_and_sampled(own_server: Valkey) -> None:
    view, other = make_view(), make_view(Field(name="note", type=FeatureType.STRING))
    client: Any = connect(RedisSettings(url=own_server.url))
    store = OnlineStore(client, [view, other], DAY_S)
    await store.write(view, [row(f"N{i:04}", {"delay": i}) for i in range(5000)])
    await store.write(other, [row(f"N{i:04}", {"note": "z" * 500}) for i in range(500)])
    found = await store.memory(view)
    one = await client.memory_usage(row_key(view, "N0000"), samples=0)
    assert (found.entities, found.keys) == (5000, 5000)
    assert SAMPLED_KEYS <= found.sampled < 1000
    assert found.bytes_per_entity == pytest.approx(one, rel=0.1)  # alike but for what the allocator adds to some
    await client.aclose()


async def test_what_belongs_to_no_entity_is_left_out_and_a_second_key_of_one_is_not_a_second_entity(
    client: Redis,
) -> None:
    view, key = make_view(), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    await store.write(view, [row(key, {"delay": 1})])
    server: Any = client
    await server.set(f"{row_key(view, key)}:applied", "x" * 1000)
    await server.set(progress_key(view), "x" * 100_000)
    found = await store.memory(view)
    assert (found.entities, found.keys) == (1, 2)
    assert 1000 < found.bytes < 100_000


async def test_a_view_without_rows_takes_nothing(client: Redis) -> None:
    view = make_view()
    found = await OnlineStore(client, [view], DAY_S).memory(view)
    assert (found, found.bytes_per_entity) == (ViewMemory(), 0.0)


async def test_a_lost_server_is_an_error(own_server: Valkey) -> None:
    view = make_view()
    client = connect(RedisSettings(url=own_server.url))
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        await OnlineStore(client, [view], DAY_S).memory(view)
    await client.aclose()
