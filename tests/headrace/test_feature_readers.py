"""The readers as the processes stack them: stored and computed features, counted and sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from core_engine.contracts import Deadline, FeatureState, FeatureValue
from core_engine.metrics import Metrics
from core_engine.settings import FeatureSettings, RedisSettings, Settings
from featurestore.consistency.log_files import read_log
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.on_demand.declaration import Custom, Log1p, OnDemandFeature, OnDemandView
from featurestore.online.connection import connect
from featurestore.online.store import OnlineStore
from headrace.feature_readers import FeatureReaders
from tests.featurestore.conftest import redis_url
from tests.featurestore.consistency.test_log_files import EVER
from tests.featurestore.rows import NOW, make_view, row

__all__ = ["redis_url"]

KEYS = {"plane": "N1"}


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(RedisSettings(url=redis_url))
    yield client
    await client.aclose()


@pytest.fixture
async def view(client: Redis) -> FeatureView:
    view = make_view(Field(name="delay", type=FeatureType.FLOAT64), ttl_s=86_400.0)
    await OnlineStore(client, [view], 86_400.0).write(view, [row("N1", {"delay": 0.0})])
    return view


def settings(folder: Path, rate: float, cache_bytes: int = 0) -> Settings:
    features = FeatureSettings(served_sample_rate=rate, cache_bytes=cache_bytes)
    return Settings(state_dir=folder, features=features)


def computed(view: FeatureView, transform: Log1p | Custom) -> OnDemandView:
    return OnDemandView(
        name="logs", version=1, owner="tests", features=(OnDemandFeature(name="delay", transform=transform),)
    )


def refs(view: FeatureView) -> list[str]:
    return [f"{view.name}.delay", "logs.delay"]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_stored_and_computed_features_are_read_and_logged_together(
    client: Redis, view: FeatureView, tmp_path: Path, cache_bytes: int
) -> None:
    readers = FeatureReaders(settings(tmp_path, 1.0, cache_bytes), client, Metrics(), "door")
    reader = readers.stacked([view], [computed(view, Log1p(of=(f"{view.name}.delay",)))])
    for _ in range(2):
        found = await reader.read(refs(view), KEYS, Deadline.never())
        assert {value.value for value in found.values.values()} == {0.0}
        assert {value.state for value in found.values.values()} == {FeatureState.PRESENT}
    readers.close()
    rows = list(read_log(tmp_path / "served", *EVER, []))
    assert [(r.views[0].values, r.views[0].key, r.computed[0].values) for r in rows] == [((0.0,), "N1", (0.0,))] * 2
    assert rows[0].views[0].event_us == (NOW.timestamp() * 1e6)


async def test_rate_zero_makes_no_log(client: Redis, view: FeatureView, tmp_path: Path) -> None:
    readers = FeatureReaders(settings(tmp_path, 0.0), client, Metrics(), "door")
    found = await readers.stacked([view]).read([f"{view.name}.delay"], KEYS, Deadline.never())
    assert found.values[f"{view.name}.delay"].value == 0.0
    readers.close()
    assert list(tmp_path.iterdir()) == []


async def test_an_on_demand_view_whose_function_is_gone_costs_no_stored_feature(
    client: Redis, view: FeatureView, tmp_path: Path
) -> None:
    gone = Custom(of=(f"{view.name}.delay",), function="no.such.module:f", returns=FeatureType.FLOAT64)
    readers = FeatureReaders(settings(tmp_path, 1.0), client, Metrics(), "door")
    with capture_logs() as logs:
        reader = readers.stacked([view], [computed(view, gone)])
    assert [line["event"] for line in logs] == ["on_demand_view_not_served"]
    found = await reader.read([f"{view.name}.delay"], KEYS, Deadline.never())
    assert isinstance(found.values[f"{view.name}.delay"], FeatureValue)
    assert found.values[f"{view.name}.delay"].state is FeatureState.PRESENT
    readers.close()
