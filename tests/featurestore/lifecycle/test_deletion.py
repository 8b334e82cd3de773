"""Deleting a view version removes all that is its own, nothing that is a neighbour's, and can be cut anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, StoreUnavailable, UnknownName
from core_engine.settings import RedisSettings
from featurestore.definitions import FeatureView
from featurestore.keys import applied_key, late_key, marks_key, progress_key, row_key, window_key
from featurestore.lifecycle import deletion
from featurestore.lifecycle.deletion import MAX_PASSES, StillWritten, delete_view, remove_keys
from featurestore.lifecycle.watermarks import ViewBusy, Watermark, Watermarks
from featurestore.online.connection import connect
from featurestore.online.store import OnlineStore
from featurestore.registry import Status, find_record, load_views, register_view
from tests.featurestore.rows import NOW, PROPERTY, make_view, row, unique
from tests.featurestore.valkey import Valkey

DAY_S = 86_400.0
SUFFIXES = ("", "_b", "b", "_1", "_b_c")  # of names that begin alike
VERSIONS = (1, 11, 2, 111)
ODD_KEYS = ("*", "?", "[a-z]*", "\\", "{}", "}", "é|東京", "1:{x}", ":applied", "progress", " ")


def keys_of(view: FeatureView, entity: str) -> list[str]:
    """Every key that a view may have of one entity, and those of the view itself."""
    of_entity = [row_key(view, entity), window_key(view, entity), f"{applied_key(view, entity)}:7"]
    return [*of_entity, progress_key(view), marks_key(view), late_key(view)]


@settings(PROPERTY, max_examples=40)
@given(
    entities=st.lists(st.sampled_from(ODD_KEYS) | st.text("a{}:*1_é", min_size=1), min_size=1, max_size=6),
    gone=st.tuples(st.sampled_from(SUFFIXES), st.sampled_from(VERSIONS)),
)
async def test_all_keys_of_the_version_go_and_every_other_key_stays(
    client: Redis, entities: list[str], gone: tuple[str, int]
) -> None:
    stem = unique("v")
    views = {
        (end, version): make_view(name=f"{stem}{end}", version=version) for end in SUFFIXES for version in VERSIONS
    }
    nested = [row_key(view, "x") for view in views.values()]  # an entity's key may look like a key of any view
    kept, lost = set[str](), set[str]()
    for place, view in views.items():
        names = {key for entity in (*entities, *nested) for key in keys_of(view, entity)}
        (lost if place == gone else kept).update(names)
    kept |= {f"hr:{stem}", f"hr:{stem}:1", f"hr:predictions:{{{stem}:1}}", f"x:hr:{stem}:1:{{a}}"}
    await client.mset(dict.fromkeys(kept | lost, b"x"))
    found = views[gone]
    assert await remove_keys(client, found.name, found.version) == len(lost)
    assert await client.exists(*kept) == len(kept)
    assert await client.exists(*lost) == 0
    await client.unlink(*kept)


@pytest.fixture
def view(database: Engine) -> FeatureView:
    view = make_view()
    with Session(database) as session, session.begin():
        register_view(session, view)
        register_view(session, make_view(name=view.name, version=11))
    return view


def status_of(database: Engine, view: FeatureView) -> str:
    with Session(database) as session:
        record = find_record(session, view)
        assert record is not None
        return record.status


async def fill(client: Redis, view: FeatureView, num_rows: int) -> None:
    store = OnlineStore(client, [view], DAY_S)
    await store.write(view, [row(f"N{i}", {"delay": i}) for i in range(num_rows)])


async def test_a_deleted_version_has_no_rows_no_watermark_and_is_not_loaded(
    client: Redis, database: Engine, view: FeatureView
) -> None:
    await fill(client, view, 2_500)
    neighbour = make_view(name=view.name, version=11)
    await fill(client, neighbour, 3)
    watermarks = Watermarks(database)
    lease = watermarks.acquire(view.name, 1, "me")
    watermarks.finish(lease, Watermark(NOW, "d"))
    watermarks.release(lease)
    seen: list[tuple[int, int]] = []
    removed = await delete_view(client, database, view.name, 1, on_progress=lambda *done: seen.append(done))
    assert removed == 2_500
    assert seen[-1][0] == seen[-1][1]
    assert status_of(database, view) == Status.DELETED
    standing = watermarks.standing(view.name, 1)
    assert (standing.watermark, standing.holder) == (None, None)
    with Session(database) as session:
        assert load_views(session) == [neighbour]
    assert await client.exists(*(row_key(neighbour, f"N{i}") for i in range(3))) == 3


async def test_a_deletion_that_died_is_finished_by_deleting_again(
    client: Redis, database: Engine, view: FeatureView
) -> None:
    await fill(client, view, 5)

    class Dying:
        async def take(self, amount: int) -> None:
            raise StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable):
        await delete_view(client, database, view.name, 1, Dying())
    assert status_of(database, view) == Status.DELETING
    assert await delete_view(client, database, view.name, 1) == 5
    assert status_of(database, view) == Status.DELETED
    assert await delete_view(client, database, view.name, 1) == 0, "and a deleted one may be deleted again"


async def test_the_pace_is_asked_before_each_look_at_the_keys(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    view = make_view()
    await fill(client, view, 500)
    monkeypatch.setattr(deletion, "SCAN_COUNT", 100)
    taken: list[int] = []

    class Noting:
        async def take(self, amount: int) -> None:
            taken.append(amount)

    before = await client.dbsize()
    assert await remove_keys(client, view.name, 1, Noting()) == 500
    assert set(taken) == {100}
    assert len(taken) >= before // 100


async def test_what_is_written_all_the_time_cannot_be_deleted_and_that_is_said(
    client: Redis, database: Engine, view: FeatureView
) -> None:
    async def write() -> None:
        await fill(client, view, 2)

    class Racing:
        async def take(self, amount: int) -> None:
            await write()

    with pytest.raises(StillWritten, match=rf"{view.name} version 1: {2 * MAX_PASSES} keys were removed, and new ones"):
        await delete_view(client, database, view.name, 1, Racing())
    assert status_of(database, view) == Status.DELETING


async def test_a_view_that_is_being_materialized_is_not_deleted(
    client: Redis, database: Engine, view: FeatureView
) -> None:
    Watermarks(database).acquire(view.name, 1, "a run")
    with pytest.raises(ViewBusy, match="being written by a run"):
        await delete_view(client, database, view.name, 1)
    assert status_of(database, view) == Status.REGISTERED


async def test_what_was_never_registered_is_refused_and_left(client: Redis, database: Engine) -> None:
    view = make_view()
    await fill(client, view, 1)
    with pytest.raises(UnknownName, match=f"{view.name} version 1 is unknown"):
        await delete_view(client, database, view.name, 1)
    assert await client.exists(row_key(view, "N0")) == 1


@pytest.mark.parametrize("name", ["*", "a*", "", "a:1:{x}", "a?"])
async def test_a_pattern_is_no_name(client: Redis, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name"):
        await remove_keys(client, name, 1)


async def test_a_lost_store_leaves_the_deletion_unfinished(
    own_server: Valkey, database: Engine, view: FeatureView
) -> None:
    client: Any = connect(RedisSettings(url=own_server.url))
    await fill(client, view, 1)
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        await delete_view(client, database, view.name, 1)
    assert status_of(database, view) == Status.DELETING
    await client.aclose()
