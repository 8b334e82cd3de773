"""Keys and quotas in the database: made, found, ended; who a key belongs to; nothing that gives a key away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from core_engine.errors import Forbidden, InvalidRequest, Unauthenticated, UnknownName
from core_engine.predictors.tables import open_database
from core_engine.tenants.keys import new_key, prefix_of
from core_engine.tenants.quotas import Quota
from core_engine.tenants.registry import TenantRegistry
from core_engine.tenants.tables import Base

START = datetime(2026, 5, 4, 12, tzinfo=UTC)


class Calendar:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'tenants.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


@pytest.fixture
def registry(database: Engine, calendar: Calendar) -> TenantRegistry:
    return TenantRegistry(database, calendar)


def test_a_key_belongs_to_its_tenant_until_it_is_revoked(registry: TenantRegistry, calendar: Calendar) -> None:
    key, other = registry.create_key("acme"), registry.create_key("globex")
    assert registry.view().tenant_of(key, calendar()) == "acme"
    assert registry.view().tenant_of(other, calendar()) == "globex"

    revoked = registry.revoke_key(str(prefix_of(key)))
    assert (revoked.tenant, revoked.revoked_at) == ("acme", START)
    with pytest.raises(Forbidden, match="revoked"):
        registry.view().tenant_of(key, calendar())
    assert registry.view().tenant_of(other, calendar()) == "globex"


def test_revoking_again_keeps_the_first_instant(registry: TenantRegistry, calendar: Calendar) -> None:
    prefix = str(prefix_of(registry.create_key("acme")))
    registry.revoke_key(prefix)
    calendar.now += timedelta(days=1)
    assert registry.revoke_key(prefix).revoked_at == START


def test_an_expired_key_is_refused_from_its_instant_on(registry: TenantRegistry) -> None:
    end = START + timedelta(hours=1)
    key = registry.create_key("acme", end)
    assert registry.view().tenant_of(key, end - timedelta(microseconds=1)) == "acme"
    with pytest.raises(Forbidden, match="expired"):
        registry.view().tenant_of(key, end)


def test_only_the_whole_key_is_one(registry: TenantRegistry, calendar: Calendar) -> None:
    """Its prefix is public: with another secret it says no more than a key that nobody knows."""
    key = registry.create_key("acme")
    forged = key[:16] + new_key().key[16:]
    assert prefix_of(forged) == prefix_of(key)
    messages = set()
    for wrong in (forged, new_key().key, "", "sk-something", key[:-1]):
        with pytest.raises(Unauthenticated) as refused:
            registry.view().tenant_of(wrong, calendar())
        messages.add(str(refused.value))
    assert len(messages) == 1

    registry.revoke_key(str(prefix_of(key)))
    with pytest.raises(Unauthenticated):  # whoever lacks the secret does not learn that it was revoked
        registry.view().tenant_of(forged, calendar())


def test_the_database_never_holds_a_key(registry: TenantRegistry, tmp_path: Path, database: Engine) -> None:
    keys = [registry.create_key("acme") for _ in range(5)]
    database.dispose()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for key in keys:
        assert str(prefix_of(key)).encode() in stored
        assert key.encode() not in stored
        assert key[16:].encode() not in stored
    assert not any(key in repr(registry.view()) for key in keys)


def test_whether_any_key_can_be_used(registry: TenantRegistry, calendar: Calendar) -> None:
    assert not registry.view().has_usable_key(calendar())
    key = registry.create_key("acme", START + timedelta(hours=1))
    assert registry.view().has_usable_key(calendar())
    assert not registry.view().has_usable_key(START + timedelta(hours=2))
    registry.revoke_key(str(prefix_of(key)))
    assert not registry.view().has_usable_key(calendar())


def test_an_unknown_prefix_is_told_the_known_ones(registry: TenantRegistry) -> None:
    with pytest.raises(UnknownName, match="known prefixes: none"):
        registry.revoke_key("0" * 12)
    prefix = prefix_of(registry.create_key("acme"))
    with pytest.raises(UnknownName, match=f"known prefixes: {prefix}"):
        registry.revoke_key("0" * 12)


def test_a_key_that_has_expired_before_it_is_made_is_refused(registry: TenantRegistry) -> None:
    with pytest.raises(InvalidRequest) as refused:
        registry.create_key("acme", START)
    assert refused.value.field == "expires"


@pytest.mark.parametrize("name", ["", "-x", "a b", "ü", "a" * 65, "a\n", 'a"'])
def test_a_name_that_is_none_is_refused(registry: TenantRegistry, name: str) -> None:
    for refuse in (registry.create_key, lambda each: registry.set_quota(each, Quota())):
        with pytest.raises(InvalidRequest) as refused:
            refuse(name)
        assert (refused.value.field, refused.value.value) == ("tenant", name)


def test_a_quota_is_replaced_as_a_whole(registry: TenantRegistry) -> None:
    registry.set_quota("acme", Quota(2.5, 6000, 4))
    assert registry.view().quotas == {"acme": Quota(2.5, 6000, 4)}
    registry.set_quota("acme", Quota(streams=1))
    assert registry.view().quotas == {"acme": Quota(streams=1)}
    assert registry.view().tenants == {"acme"}


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        (Quota(requests_per_s=0), "requests_per_s"),
        (Quota(requests_per_s=float("nan")), "requests_per_s"),
        (Quota(requests_per_s=float("inf")), "requests_per_s"),
        (Quota(tokens_per_minute=-1), "tokens_per_minute"),
        (Quota(streams=2**31), "streams"),
    ],
)
def test_a_limit_that_is_none_is_refused(registry: TenantRegistry, quota: Quota, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        registry.set_quota("acme", quota)
    assert refused.value.field == field
    assert registry.view().quotas == {}
