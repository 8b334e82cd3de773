"""What the ways of reading are compared on is the same, and the headline compares with the faster bare one."""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from benchmarks.features.online import DAY_S, Workload, bare, fill, headline, ours
from benchmarks.features.valkey_server import HOST, valkey
from core_engine.contracts import FeatureRow, FeatureState
from core_engine.settings import RedisSettings
from featurestore.online.connection import connect
from featurestore.online.feature_table import FeatureTable
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.featurestore.rows import unique


@pytest.fixture
async def client() -> AsyncIterator[Redis]:
    with valkey() as port:
        client = connect(RedisSettings(url=f"redis://{HOST}:{port}/0"))
        yield client
        await client.aclose()


@pytest.mark.parametrize("entities", [1, 3])
async def test_every_way_ends_with_the_same_numbers(client: Redis, entities: int) -> None:
    workload = Workload(unique("w"), entities, views=2, features=4, calls=1)
    views, keys = workload.declared(), [unique("k") for _ in range(entities)]
    store = OnlineStore(client, views, DAY_S)
    await fill(client, store, views, keys, random.Random(0))
    asks = bare(client, views)
    decoded: Any = await asks["bare GET of msgpack"](keys)
    hashes: Any = await asks["bare HMGET, undecoded"](keys)
    found: Any = await ours(OnlineFeatureReader(store, views), views)(keys)
    rows = [found] if isinstance(found, FeatureRow) else [found.row(i) for i in range(entities)]
    assert isinstance(found, FeatureRow if entities == 1 else FeatureTable)
    assert all(value.state is FeatureState.PRESENT for row in rows for value in row.values.values())
    for place, view in enumerate(views):
        for i, row in enumerate(rows):
            served = [row.values[f"{view.name}.{field.name}"].value for field in view.schema]
            assert served == decoded[place * entities + i]
            assert struct.pack("<4d", *served) in hashes[place * entities + i][1]


def test_the_headline_compares_with_the_faster_bare_way() -> None:
    ms = {
        "one": {"bare a": [1.0] * 100, "bare b": [0.5] * 98 + [0.6, 9.0], "ours": [0.7] * 100},
        "many": {"bare a": [8.0] * 100, "bare b": [10.0] * 100, "ours": [4.0] * 100},
    }
    assert headline(ms, {"one": [7.0], "many": [40.0]}) == {
        "read1_p99_over_bare_ms": pytest.approx(0.1),
        "read100_p99_over_bare": 0.5,
        "feast_p99_ratio_1": pytest.approx(10.0),
        "feast_p99_ratio_100": 10.0,
    }
    assert "feast_p99_ratio_1" not in headline(ms, {})
