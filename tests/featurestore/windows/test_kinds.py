"""Every kind of aggregate in a real Valkey against its definition by brute force: order, repetition, races, replay."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from core_engine.settings import RedisSettings
from featurestore.codec import UnreadablePayload
from featurestore.definitions import FeatureView
from featurestore.keys import applied_key, late_key, window_key
from featurestore.online.connection import connect
from featurestore.online.server_functions import called
from featurestore.online.store import OnlineStore
from featurestore.windows import batches
from featurestore.windows.functions import APPLY, LIBRARY, PEEK
from featurestore.windows.late import LateEvent
from featurestore.windows.plan import StoredWindow, WindowPlan
from featurestore.windows.sketches import RANK_ERROR
from featurestore.windows.state import Applied
from tests.featurestore.rows import PROPERTY
from tests.featurestore.windows.kinds import AGGREGATES, DEPARTURES, EXACT, brute, kinds_view, once_each
from tests.featurestore.windows.oracle import NUM_TILES, TILE_S, Departure, at

DAY_S = 86_400.0
A, D, L, E = Applied.APPLIED, Applied.DUPLICATE, Applied.LATE, Applied.EXPIRED
GRACE_OF_ALL_S = 600  # no order of two minutes of events is late


class Kept:
    """One windowed view in a store, and the values of one of its entities."""

    def __init__(self, client: Redis, view: FeatureView) -> None:
        self.view, self.plan = view, WindowPlan(view)
        self.store = OnlineStore(client, [view], DAY_S)

    async def apply(self, events: Sequence[Departure]) -> list[Applied]:
        return await self.store.windows.apply([event.to(self.plan) for event in events])

    async def values(self, now_s: float, key: str = "JFK") -> list[object] | None:
        """All sources have come to `now_s`."""
        await self.store.windows.advance(self.view.name, dict.fromkeys(("departures/0", "departures/1"), at(now_s)))
        [stored] = (await self.store.fetch([(self.view, key)])).rows
        if stored is None:
            return None
        assert isinstance(stored, StoredWindow)
        row = self.plan.row_at(stored, round(at(now_s).timestamp() * 1e6))
        return None if row is None else row.values


def covered(events: Sequence[Departure], tick_s: float, key: str) -> list[Departure]:
    return [e for e in events if e.origin == key and tick_s - NUM_TILES * TILE_S < e.seconds <= tick_s]


@pytest.mark.parametrize("aggregates", [AGGREGATES, EXACT], ids=["all", "exact"])
@PROPERTY
@given(events=st.lists(DEPARTURES, max_size=40).map(once_each), chunk=st.integers(1, 9), tick=st.integers(0, 13))
async def test_any_order_and_repetition_within_the_grace_is_the_definition(
    redis_url: str, aggregates: Sequence[object], events: list[Departure], chunk: int, tick: int
) -> None:
    client = connect(RedisSettings(url=redis_url))
    try:
        kept = Kept(client, kinds_view(aggregates, grace_s=GRACE_OF_ALL_S))  # type: ignore[arg-type]
        outcomes = []
        for start in range(0, len(events), chunk):
            outcomes += await kept.apply(events[start : start + chunk])
        seen = [(event.origin, event.coordinates) for event in events]
        assert outcomes == [D if place in seen[:i] else A for i, place in enumerate(seen)]
        assert set(await kept.apply(events)) <= {D}, "a replay of everything counts nothing"
        distinct = list(dict.fromkeys(events))
        for key in {event.origin.replace("-", "%2D") for event in events}:
            expected = brute(covered(distinct, tick * TILE_S, key.replace("%2D", "-")), aggregates)  # type: ignore[arg-type]
            assert await kept.values(tick * TILE_S + 0.5, key) == expected
    finally:
        await client.aclose()


async def test_a_tumbling_window_holds_one_run_until_the_next_is_complete(client: Redis) -> None:
    kept = Kept(client, kinds_view(tumbling=True, grace_s=GRACE_OF_ALL_S))
    first = kept.plan.tile_of(round(at(0).timestamp() * 1e6)) % NUM_TILES  # of the tile that ends at second 0
    events = [Departure(second, second * 2, second) for second in range(1, 121)]
    await kept.apply(events)
    runs = [tick for tick in range(13) if (first + tick) % NUM_TILES == 0]
    for tick in range(runs[0], 13):
        last_s = max(run for run in runs if run <= tick) * TILE_S
        assert await kept.values(tick * TILE_S + 5) == brute(covered(events, last_s, "JFK"))


async def test_appliers_that_race_for_one_entity_lose_and_double_nothing(redis_url: str) -> None:
    """Eight clients, each with its own events and half of its neighbour's, a few at a time."""
    clients = [connect(RedisSettings(url=redis_url)) for _ in range(8)]
    view = kinds_view(grace_s=GRACE_OF_ALL_S)
    events = [Departure(1 + i % 20, i % 50, i) for i in range(160)]

    async def work(number: int) -> list[Applied]:
        kept, own = Kept(clients[number], view), [events[(number * 20 + i) % 160] for i in range(30)]
        return [outcome for i in range(0, 30, 3) for outcome in await kept.apply(own[i : i + 3])]

    outcomes = [outcome for each in await asyncio.gather(*map(work, range(8))) for outcome in each]
    assert (outcomes.count(A), outcomes.count(D)) == (160, 80)
    assert await Kept(clients[0], view).values(30) == brute(events)
    for client in clients:
        await client.aclose()


async def test_a_sketch_made_from_what_has_changed_since_is_refused_and_nothing_is_written(client: Redis) -> None:
    kept = Kept(client, kinds_view())

    def batch(event: Departure) -> batches.Batch:
        made = batches.Batch(kept.plan, "JFK", 10**6)
        made.add(0, event.to(kept.plan))
        return made

    [seen] = await called(client, LIBRARY, [batch(Departure(1, 5, 0)).call(PEEK)])
    assert seen[:2] == [b"a", b""]
    await kept.apply([Departure(2, 7, 1)])
    before = await client.hgetall(window_key(kept.view, "JFK"))
    late_write = batch(Departure(1, 5, 0))
    stale = late_write.call(APPLY, seen[1], "token", *late_write.merged([True], seen[2:]))
    assert await called(client, LIBRARY, [stale]) == [b""]
    assert await client.hgetall(window_key(kept.view, "JFK")) == before
    assert await kept.apply([Departure(1, 5, 0)]) == [A], "nor were its coordinates kept"


async def test_many_events_of_one_entity_are_estimated_within_the_error_and_read_by_tiles(client: Redis) -> None:
    """A hot entity: what a read takes grows with tiles and not with events."""
    kept = Kept(client, kinds_view(grace_s=0))
    rng = random.Random(7)
    events = [Departure(1 + i / 500, rng.randrange(-80, 1200) / 4, i) for i in range(14_000)]
    for start in range(0, len(events), 2_000):
        assert set(await kept.apply(events[start : start + 2_000])) == {A}
    found = await kept.values(30)
    assert found is not None
    delays = sorted(event.delay for event in events)
    for aggregate, value, exact in zip(AGGREGATES, found, brute(events), strict=True):
        if aggregate.quantile is None:
            assert value == exact
        else:
            assert isinstance(value, float)
            below, upto = (cut(delays, value) / len(delays) for cut in (bisect_left, bisect_right))
            assert below - 2 * RANK_ERROR <= aggregate.quantile <= upto + 2 * RANK_ERROR
    [stored] = (await kept.store.fetch([(kept.view, "JFK")])).rows
    assert isinstance(stored, StoredWindow)
    assert stored.num_bytes < len(stored.tiles) * 5_000


async def test_late_events_are_put_aside_with_all_that_is_known_of_them(client: Redis) -> None:
    kept, events = Kept(client, kinds_view()), [Departure(90, 5, 0), Departure(30, -2.5, 1), Departure(2, 7, 2)]
    assert await kept.apply(events) == [A, L, E]
    assert await kept.apply(events[1:2]) == [L], "delivered again"
    found = await kept.store.windows.late_events(kept.view.name, 10)
    put_aside = [LateEvent(L, events[1].to(kept.plan)), LateEvent(E, events[2].to(kept.plan))]
    assert sorted(found, key=lambda late: late.event.offset) == put_aside
    assert len(await kept.store.windows.late_events(kept.view.name, 1)) == 1
    assert await client.pttl(late_key(kept.view)) > 0
    assert await kept.values(130) == brute([]), "none of them is in the window"


async def test_no_key_of_a_window_stays_for_ever(client: Redis) -> None:
    kept = Kept(client, kinds_view())
    await kept.apply([Departure(1, 5, 0), Departure(20, 5, 1)])
    names = [name async for name in client.scan_iter(f"hr:{kept.view.name}:*")]
    assert len(names) == 3
    lifetimes = [await client.pttl(name) for name in names]
    assert min(lifetimes) > 0
    coordinates = [await client.pttl(n) for n in names if bytes(n).startswith(applied_key(kept.view, "JFK").encode())]
    assert min(coordinates) > await client.pttl(window_key(kept.view, "JFK")), "they outlive the tile that they are of"


async def test_a_sketch_that_is_none_is_named_by_view_and_entity_and_the_others_are_served(client: Redis) -> None:
    kept = Kept(client, kinds_view())
    await kept.apply([Departure(1, 5, 0), Departure(1, 5, 1, origin="LGA")])
    tile = kept.plan.tile_of(round(at(1).timestamp() * 1e6))
    assert await client.hset(window_key(kept.view, "JFK"), f"k:{tile}:0", b"none of ours") == 0, "it was there"
    with pytest.raises(UnreadablePayload, match=f"feature view {kept.view.name}, entity airport = 'JFK': 12 bytes are"):
        await kept.apply([Departure(2, 5, 2)])
    with pytest.raises(UnreadablePayload):
        await kept.values(10)
    assert await kept.values(10, "LGA") == brute([Departure(1, 5, 1)])


async def test_two_views_of_one_topic_share_a_delivery(client: Redis) -> None:
    views = [kinds_view(EXACT), kinds_view()]
    store = OnlineStore(client, views, DAY_S)
    plans = [WindowPlan(view) for view in views]
    events = [Departure(i, i, i, origin=("JFK", "LGA")[i % 2]).to(plan) for i in range(1, 30) for plan in plans]
    assert await store.windows.apply(events) == [A] * len(events)
    assert await store.windows.apply(events[::-1]) == [D] * len(events)


def test_a_declaration_of_every_kind_survives_its_json() -> None:
    view = kinds_view(tumbling=True)
    assert msgspec.json.decode(msgspec.json.encode(view), type=FeatureView) == view
