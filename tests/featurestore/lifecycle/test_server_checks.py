"""What the doctor says of a Redis: by what a real server tells, and by what others would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from core_engine.settings import RedisSettings
from featurestore.lifecycle.checks import Check, Health
from featurestore.lifecycle.server_checks import judged, server_checks, unknown_views
from featurestore.online.connection import connect
from tests.featurestore.valkey import Valkey


@pytest.fixture
async def own(own_server: Valkey) -> AsyncIterator[Redis]:
    client = connect(RedisSettings(url=own_server.url))
    yield client
    await client.aclose()


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


async def test_a_fit_server_is_ok_but_for_what_a_restart_would_lose(own: Redis) -> None:
    found = by_name(await server_checks(own))
    assert set(found) == {"reachable", "version", "eviction", "memory", "persistence", "clock"}
    assert [name for name, check in found.items() if check.health is not Health.OK] == ["persistence"]
    assert found["version"].found.startswith("valkey ")
    await own.config_set("save", "60 1")
    assert by_name(await server_checks(own))["persistence"] == Check(
        "redis", "persistence", Health.OK, "snapshots (60 1)"
    )


async def test_a_server_that_would_evict_rows_or_is_almost_full_is_told(own: Redis) -> None:
    await own.config_set("maxmemory-policy", "volatile-lru")
    assert by_name(await server_checks(own))["eviction"].health is Health.OK, "without a bound nothing is evicted"
    await own.config_set("maxmemory", (await own.info("memory"))["used_memory"])
    found = by_name(await server_checks(own))
    assert (found["eviction"].health, found["memory"].health) == (Health.PROBLEM, Health.WARNING)
    assert "noeviction" in found["eviction"].advice


@pytest.mark.parametrize(
    ("ahead_s", "health"), [(0, Health.OK), (-5, Health.WARNING), (5, Health.WARNING), (100, Health.PROBLEM)]
)
async def test_clocks_that_are_apart_are_told(own: Redis, ahead_s: float, health: Health) -> None:
    found = by_name(await server_checks(own, lambda: datetime.now(UTC) + timedelta(seconds=ahead_s)))
    assert found["clock"].health is health


async def test_a_server_that_is_away_is_the_only_finding(own: Redis, own_server: Valkey) -> None:
    own_server.kill()
    [found] = await server_checks(own)
    assert (found.name, found.health) == ("reachable", Health.PROBLEM)
    assert "HEADRACE_REDIS__URL" in found.advice


@pytest.mark.parametrize(
    ("facts", "settings", "name", "health"),
    [
        ({"redis_version": "6.2.14"}, {}, "version", Health.PROBLEM),
        ({"redis_version": "7.0.0"}, {}, "version", Health.OK),
        ({"redis_version": "10.1"}, {}, "version", Health.OK),
        ({"aof_enabled": "1"}, {}, "persistence", Health.OK),
        ({"aof_enabled": "0"}, {}, "persistence", Health.WARNING),
        ({"aof_enabled": "0"}, {"save": ""}, "persistence", Health.WARNING),
        ({"maxmemory": "10", "maxmemory_policy": "noeviction"}, {}, "eviction", Health.OK),
        ({"maxmemory": "10", "maxmemory_policy": "allkeys-lfu"}, {}, "eviction", Health.PROBLEM),
    ],
)
def test_what_a_server_says_of_itself_is_judged(
    facts: dict[str, str], settings: dict[str, str], name: str, health: Health
) -> None:
    assert by_name(judged(facts, settings))[name].health is health


async def test_views_that_nobody_registered_are_found_and_other_keys_are_none(own: Redis) -> None:
    known = ["hr:delays:1:{a}", "hr:delays:1:marks", "hr:predictions:{delay:1}", "hr:predictions:{x}:1:", "x:hr:y:1:{}"]
    await own.mset(dict.fromkeys(known, b""))
    [found] = await unknown_views(own, [("delays", 1)])
    assert (found.health, found.found) == (Health.OK, "none")
    await own.mset(dict.fromkeys(["hr:delays:11:{a}", "hr:old:2:progress"], b""))
    [found] = await unknown_views(own, [("delays", 1)])
    assert (found.health, found.found) == (Health.WARNING, "delays:11, old:2")
