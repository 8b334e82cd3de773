"""A door's view of keys and quotas follows the database, outlives it, and tells the quotas."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine
from structlog.testing import capture_logs

from core_engine.errors import Forbidden
from core_engine.predictors.tables import open_database
from core_engine.tenants.directory import Directory
from core_engine.tenants.keys import prefix_of
from core_engine.tenants.quotas import Quota, Quotas
from core_engine.tenants.registry import TenantRegistry
from core_engine.tenants.tables import Base


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'tenants.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


async def test_a_key_that_is_made_and_one_that_is_revoked_are_seen_at_the_next_look(database: Engine) -> None:
    registry, now = TenantRegistry(database), datetime.now(UTC)
    directory = Directory(registry, Quotas(Quota()))
    key = registry.create_key("acme")
    await directory.refresh()
    assert directory.view.tenant_of(key, now) == "acme"
    registry.revoke_key(str(prefix_of(key)))
    await directory.refresh()
    with pytest.raises(Forbidden):
        directory.view.tenant_of(key, now)


async def test_quotas_follow_and_streams_are_shared_once_there_is_somebody_to_share_with(database: Engine) -> None:
    registry, quotas = TenantRegistry(database), Quotas(Quota(streams=5))
    directory = Directory(registry, quotas)
    registry.set_quota("local", Quota(streams=7))
    await directory.refresh()
    assert quotas.quota("local") == Quota(streams=7)
    alone = quotas.is_shared
    registry.create_key("acme")
    await directory.refresh()
    assert (alone, quotas.is_shared) == (False, True)
    assert quotas.quota("acme") == Quota(streams=5)


async def test_a_lost_database_keeps_the_last_view_and_is_logged_once(database: Engine) -> None:
    registry, quotas = TenantRegistry(database), Quotas(Quota())
    directory = Directory(registry, quotas)
    key = registry.create_key("acme")
    kept = directory.load()

    Base.metadata.drop_all(database)
    with capture_logs() as logs:
        await directory.refresh()
        await directory.refresh()
    assert [line["event"] for line in logs] == ["tenants_stale"]
    assert "no such table" in str(directory.failure)
    assert directory.view is kept
    assert directory.view.tenant_of(key, datetime.now(UTC)) == "acme"

    Base.metadata.create_all(database)
    with capture_logs() as logs:
        await directory.refresh()
    assert [line["event"] for line in logs] == ["tenants_recovered"]
    assert not directory.failure
    assert directory.view.keys == {}
