"""History as it was known at an instant, and the same as an online reader found then."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from redis.asyncio import Redis

from core_engine.contracts import Deadline, FeatureState, FeatureValue, ReadCost
from core_engine.errors import ConfigurationError, InvalidRequest, StoreUnavailable
from core_engine.readers import FeatureReader
from featurestore.definitions import FeatureView
from featurestore.materialize import materialize
from featurestore.offline.reader import AsOfFeatureReader
from featurestore.offline.store import OfflineStore
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.featurestore.online.test_reader import DAY_S, NEVER, PLANE, ROUTE, is_all_missing
from tests.featurestore.rows import HOUR, NOW, make_view, write_source


@pytest.fixture
def history(tmp_path: Path) -> tuple[FeatureView, FeatureView]:
    """A plane whose second row was known two hours late, and a route whose only row is four hours old."""
    plane = write_source(
        tmp_path / "plane.parquet",
        {
            "entity_key": ["N1", "N1", "N1"],
            "event_time": [NOW - 5 * HOUR, NOW - 3 * HOUR, NOW + HOUR],
            "created_time": [NOW - 5 * HOUR, NOW - HOUR, NOW + HOUR],
            "delay": [5, 3, -1],
            "gate": [None, None, "B4"],
        },
    )
    route = write_source(
        tmp_path / "route.parquet",
        {"entity_key": ["R"], "event_time": [NOW - 4 * HOUR], "created_time": [NOW - 4 * HOUR], "late_share": [0.5]},
    )
    plane_view = make_view(*PLANE.schema, path=plane, ttl_s=2 * 3600.0)
    return plane_view, make_view(*ROUTE.schema, path=route, entity="route", ttl_s=4 * 3600.0)


async def test_history_is_read_as_it_was_known(history: tuple[FeatureView, FeatureView]) -> None:
    plane, route = history
    delay, share = f"{plane.name}.delay", f"{route.name}.late_share"
    keys = {"plane": "N1", "route": "R"}
    expected = [
        (NOW - 6 * HOUR, None, FeatureState.MISSING, None),
        (NOW - 3 * HOUR, 5, FeatureState.PRESENT, 7200.0),  # the newer row was not known yet
        (NOW - 2 * HOUR, 5, FeatureState.STALE, 10_800.0),
        (NOW - HOUR, 3, FeatureState.PRESENT, 7200.0),
        (NOW, 3, FeatureState.STALE, 10_800.0),
    ]
    for as_of, value, state, age_s in expected:
        found = await AsOfFeatureReader(OfflineStore(history), as_of).read([delay, share], keys, NEVER)
        assert found.values[delay] == FeatureValue(value, state, age_s)
    assert found.values[share] == FeatureValue(0.5, FeatureState.PRESENT, 14_400.0)
    assert found.cost == ReadCost(reads=2, hits=2, round_trips=2)


async def test_both_readers_find_the_same(client: Redis, history: tuple[FeatureView, FeatureView]) -> None:
    refs = [f"{view.name}.{field.name}" for view in history for field in view.schema]
    store = OnlineStore(client, history, DAY_S)
    for view in history:
        await materialize(view, store, NOW)
    online: FeatureReader = OnlineFeatureReader(store, history, clock=lambda: NOW)
    offline: FeatureReader = AsOfFeatureReader(OfflineStore(history), NOW)
    refs += [f"{history[0].name}@previous.{field.name}" for field in history[0].schema]  # one view, read by two keys
    for plane, route, previous in (("N1", "R", "N2"), ("N2", "R", "N1"), ("N1", "unknown", "N1")):
        keys = {"plane": plane, "route": route, "previous": previous}
        served, replayed = [await reader.read(refs, keys, NEVER) for reader in (online, offline)]
        assert served.values == replayed.values
        assert (served.cost.reads, served.cost.hits) == (replayed.cost.reads, replayed.cost.hits)


async def test_the_as_of_reader_keeps_the_contract(history: tuple[FeatureView, FeatureView]) -> None:
    reader = AsOfFeatureReader(OfflineStore(history), NOW)
    delay = f"{history[0].name}.delay"
    assert is_all_missing(await reader.read([delay], {"plane": "N1"}, Deadline.after(-1.0)), "deadline")
    with pytest.raises(InvalidRequest, match="entity plane"):
        await reader.read([delay], {}, NEVER)
    with pytest.raises(ConfigurationError, match="not declared"):
        await reader.read(["weather.wind"], {}, NEVER)
    with pytest.raises(InvalidRequest, match=r"as_of = .*timezone"):
        AsOfFeatureReader(OfflineStore(history), datetime(2013, 1, 1))


class LostStore(OfflineStore):
    """Its disk went away."""

    def known_row(self, name: str, key: str, as_of_us: int) -> None:
        raise StoreUnavailable("the mount is gone")


async def test_a_lost_history_is_missing_with_a_failure(history: tuple[FeatureView, FeatureView]) -> None:
    found = await AsOfFeatureReader(LostStore(history), NOW).read([f"{history[0].name}.delay"], {"plane": "N1"}, NEVER)
    assert is_all_missing(found, "store_unavailable")
