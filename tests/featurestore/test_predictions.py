"""Generations on a real server: served only after the flip, never changed after it, and an older fence never wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from core_engine.contracts import Deadline
from core_engine.errors import StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.generations import GenerationFault, Superseded, Value, generation_key
from featurestore.online.connection import connect
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.predictions import ABANDONED_S, CALL_ROWS, CALLS_IN_FLIGHT, Pointer, PredictionRow, PredictionStore
from tests.featurestore.rows import NOW, PROPERTY, unique
from tests.featurestore.valkey import Valkey

RETENTION_S = 600.0


@pytest.fixture
def store(client: Redis) -> PredictionStore:
    return PredictionStore(client, RETENTION_S)


@pytest.fixture
def predictor() -> str:
    """Names are unique, so that tests can share one server."""
    return f"{unique('brief')}:1"


async def paged(*pages: Sequence[PredictionRow]) -> AsyncIterator[Sequence[PredictionRow]]:
    for page in pages:
        yield page


def rows(values: dict[str, Value]) -> list[PredictionRow]:
    return [PredictionRow(entity, value) for entity, value in values.items()]


async def publish(
    store: PredictionStore, predictor: str, generation: str, values: dict[str, Value], fence: int
) -> None:
    added = await store.write(predictor, generation, paged(rows(values)))
    await store.seal(predictor, generation, added, NOW)
    await store.flip(predictor, generation, fence)


async def served(client: Redis, predictor: str, entity: str) -> Value:
    stored = await OnlinePredictionReader(client).lookup(predictor, entity, Deadline.never())
    return None if stored is None else stored.value


@given(values=st.dictionaries(st.text(min_size=1), st.floats(allow_nan=False) | st.text(), min_size=1, max_size=20))
@PROPERTY
async def test_what_is_published_is_read_as_it_was_written(values: dict[str, Value], redis_url: str) -> None:
    client = connect(RedisSettings(url=redis_url))
    predictor = f"{unique('any')}:1"
    await publish(PredictionStore(client, RETENTION_S), predictor, "g1", values, fence=1)
    view = OnlinePredictionReader(client).pinned(predictor)
    for entity, value in values.items():
        stored = await view.lookup(entity, Deadline.never())
        assert stored is not None
        assert (stored.value, type(stored.value), stored.generation) == (value, type(value), "g1")
    await client.aclose()


async def test_nothing_is_served_before_the_flip(client: Redis, store: PredictionStore, predictor: str) -> None:
    await store.write(predictor, "g1", paged(rows({"a": 1.0})))
    assert await served(client, predictor, "a") is None
    await store.seal(predictor, "g1", 1, NOW)
    assert await served(client, predictor, "a") is None
    assert await store.flip(predictor, "g1", 5) == Pointer("g1", 5, "")
    assert await served(client, predictor, "a") == 1.0


async def test_the_flip_replaces_all_at_once_and_keeps_the_previous_generation_for_a_while(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    await publish(store, predictor, "g1", {"a": 1.0, "gone": 2.0}, 1)
    await publish(store, predictor, "g2", {"a": 3.0}, 2)
    assert await served(client, predictor, "a") == 3.0
    assert await served(client, predictor, "gone") is None
    assert await store.pointer(predictor) == Pointer("g2", 2, "g1")
    assert await client.pttl(generation_key(predictor, "g2")) == -1
    assert 0 < await client.pttl(generation_key(predictor, "g1")) <= RETENTION_S * 1000


async def test_an_abandoned_generation_disappears_by_itself(
    client: Redis, store: PredictionStore, predictor: str
) -> None:
    await store.write(predictor, "half", paged(rows({"a": 1.0})))
    assert 0 < await client.pttl(generation_key(predictor, "half")) <= ABANDONED_S * 1000
    await store.seal(predictor, "half", 1, NOW)
    assert 0 < await client.pttl(generation_key(predictor, "half")) <= ABANDONED_S * 1000


@pytest.mark.parametrize("fence", [7, 6, 0])
async def test_a_fence_that_is_not_newer_never_flips(
    client: Redis, store: PredictionStore, predictor: str, fence: int
) -> None:
    await publish(store, predictor, "new", {"a": 1.0}, 7)
    with pytest.raises(Superseded, match=rf"generation new .* \(fence 7\) .* than late \(fence {fence}\)"):
        await publish(store, predictor, "late", {"a": 2.0}, fence)
    assert await served(client, predictor, "a") == 1.0
    assert await store.pointer(predictor) == Pointer("new", 7, "")


async def test_fences_of_milliseconds_are_compared_exactly(store: PredictionStore, predictor: str) -> None:
    fence = 9_999_999_999_999  # the year 2286
    await publish(store, predictor, "g1", {"a": 1.0}, fence)
    await publish(store, predictor, "g2", {"a": 2.0}, fence + 1)
    assert await store.pointer(predictor) == Pointer("g2", fence + 1, "g1")


async def test_flipping_again_changes_nothing(store: PredictionStore, predictor: str) -> None:
    await publish(store, predictor, "g1", {"a": 1.0}, 1)
    assert await store.flip(predictor, "g1", 1) == Pointer("g1", 1, "")


@given(fences=st.permutations([1, 2, 3, 4, 5]))
@PROPERTY
async def test_of_publishers_at_once_the_highest_fence_is_served(fences: list[int], redis_url: str) -> None:
    client = connect(RedisSettings(url=redis_url))
    store, predictor = PredictionStore(client, RETENTION_S), f"{unique('race')}:1"
    outcomes = await asyncio.gather(
        *(publish(store, predictor, f"g{fence}", {"a": float(fence)}, fence) for fence in fences),
        return_exceptions=True,
    )
    assert all(outcome is None or isinstance(outcome, Superseded) for outcome in outcomes), outcomes
    assert (await store.pointer(predictor)).fence == 5
    assert await served(client, predictor, "a") == 5.0
    await client.aclose()


async def test_another_publisher_between_look_and_flip_is_noticed(client: Redis, predictor: str) -> None:
    class Overtaken(PredictionStore):
        async def pointer(self, predictor: str) -> Pointer:
            held = await super().pointer(predictor)
            if not self.overtaken:
                self.overtaken = True
                await publish(PredictionStore(client, RETENTION_S), predictor, "other", {"a": 1.0}, 1)
            return held

        overtaken = True

    store = Overtaken(client, RETENTION_S)
    await store.write(predictor, "mine", paged(rows({"a": 2.0})))
    await store.seal(predictor, "mine", 1, NOW)
    store.overtaken = False
    assert await store.flip(predictor, "mine", 2) == Pointer("mine", 2, "other")


async def test_a_generation_that_lacks_a_row_is_not_sealed(store: PredictionStore, predictor: str) -> None:
    await store.write(predictor, "g1", paged(rows({"a": 1.0})))
    with pytest.raises(GenerationFault, match="holds 1 predictions instead of 2"):
        await store.seal(predictor, "g1", 2, NOW)
    with pytest.raises(GenerationFault, match="not sealed"):
        await store.flip(predictor, "g1", 1)
    assert await store.pointer(predictor) == Pointer()


async def test_a_sealed_generation_never_changes(client: Redis, store: PredictionStore, predictor: str) -> None:
    await publish(store, predictor, "g1", {"a": 1.0}, 1)
    with pytest.raises(GenerationFault, match="sealed"):
        await store.write(predictor, "g1", paged(rows({"a": 2.0})))
    with pytest.raises(GenerationFault, match="sealed"):
        await store.seal(predictor, "g1", 1, NOW + timedelta(days=1))
    assert await served(client, predictor, "a") == 1.0


async def test_many_rows_go_in_bounded_calls_and_a_repeated_entity_counts_once(
    store: PredictionStore, predictor: str
) -> None:
    num = CALL_ROWS * CALLS_IN_FLIGHT * 2 + 7
    page = [PredictionRow(f"e{at % (num - 1)}", float(at)) for at in range(num)]
    assert await store.write(predictor, "g1", paged(page[:333], page[333:])) == num - 1
    await store.seal(predictor, "g1", num - 1, NOW)


async def test_versions_do_not_share_a_pointer(client: Redis, store: PredictionStore, predictor: str) -> None:
    await publish(store, predictor, "g1", {"a": 1.0}, 1)
    assert await served(client, predictor.replace(":1", ":2"), "a") is None


async def test_a_store_that_is_lost_in_the_middle_leaves_the_old_generation_and_a_new_attempt_works(
    own_server: Valkey,
) -> None:
    client = connect(RedisSettings(url=own_server.url))
    store = PredictionStore(client, RETENTION_S)

    async def lost_after_one_page() -> AsyncIterator[Sequence[PredictionRow]]:
        yield rows({str(at): float(at) for at in range(CALL_ROWS * CALLS_IN_FLIGHT)})
        own_server.kill()
        yield rows({"last": 1.0})

    with pytest.raises(StoreUnavailable):
        await store.write("p:1", "g1", lost_after_one_page())
    own_server.start()  # empty, and without the functions
    await publish(store, "p:1", "g2", {"a": 2.0}, 2)
    assert await served(client, "p:1", "a") == 2.0
    await client.aclose()
