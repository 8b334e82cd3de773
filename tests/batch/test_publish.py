"""A job's predictions are served all at once or not at all, and never in place of a newer job's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from sqlalchemy import Engine

from batch.checkpoints import Checkpoint, JobStore, Run, Status
from batch.door import Parts, run_job
from batch.errors import JobTakenOver
from batch.job import Job
from batch.publish import publish
from core_engine.contracts import Deadline
from core_engine.errors import HeadraceError, InvalidRequest, StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.generations import GenerationFault, Superseded, generation_key
from featurestore.online.connection import connect
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.predictions import Pointer, PredictionRow, PredictionStore
from tests.batch.conftest import MakeJob
from tests.batch.doubles import NAME, FakeWork
from tests.featurestore.valkey import Valkey

_numbers = itertools.count()
NEVER = Deadline.never()
PREDICTOR = f"{NAME}:1"


@pytest.fixture(autouse=True)
async def _begin_anew(client: Redis) -> None:
    """Jobs of these tests publish under one predictor: each test begins without what another one published."""
    await forget(client)


async def forget(client: Redis) -> None:
    async for key in client.scan_iter(match=f"hr:predictions:{{{PREDICTOR}}}*"):
        await client.delete(key)


def computed(store: JobStore, job: Job, values: dict[str, str]) -> Run:
    """A job whose units are all done."""
    run = store.begin(job)
    store.record(run, [Checkpoint(at, name, value) for at, (name, value) in enumerate(values.items())])
    store.end(run, Status.DONE)
    return run


async def served(client: Redis, entity: str) -> tuple[object, str] | None:
    stored = await OnlinePredictionReader(client).lookup(PREDICTOR, entity, NEVER)
    return None if stored is None else (stored.value, stored.generation)


async def test_a_job_is_published_as_of_its_beginning(client: Redis, store: JobStore, make_job: MakeJob) -> None:
    job = make_job(job="night")
    run = computed(store, job, {"a": "A", "b": "B"})
    generation = await publish(store, run, job, PredictionStore(client, 60.0), OnlinePredictionReader(client))
    assert generation == f"night.{run.fence}"
    assert store.jobs()[0].generation == generation
    stored = await OnlinePredictionReader(client, lambda: run.created_at).lookup(PREDICTOR, "b", NEVER)
    assert stored is not None
    assert (stored.value, stored.age_s) == ("B", 0.0)


async def test_publishing_again_changes_nothing(client: Redis, store: JobStore, make_job: MakeJob) -> None:
    job, predictions = make_job(), PredictionStore(client, 60.0)
    first = computed(store, job, {"a": "A"})
    generation = await publish(store, first, job, predictions, OnlinePredictionReader(client))
    again = await publish(store, store.begin(job), job, predictions, OnlinePredictionReader(client))
    assert again == generation


async def test_a_store_that_lost_everything_is_given_it_again(
    client: Redis, store: JobStore, make_job: MakeJob
) -> None:
    job, predictions = make_job(), PredictionStore(client, 60.0)
    run = computed(store, job, {"a": "A"})
    await publish(store, run, job, predictions, OnlinePredictionReader(client))
    await forget(client)
    second = store.begin(job)
    assert await publish(store, second, job, predictions, OnlinePredictionReader(client)) == f"{job.id}.{second.fence}"
    assert await served(client, "a") == ("A", f"{job.id}.{second.fence}")


async def test_a_late_old_job_never_replaces_a_newer_one_however_often_it_is_resumed(
    client: Redis, store: JobStore, make_job: MakeJob
) -> None:
    monday, tuesday = make_job(job="monday"), make_job([{"name": "x"}], job="tuesday")
    predictions, reader = PredictionStore(client, 60.0), OnlinePredictionReader(client)
    computed(store, monday, {"a": "old"})
    newer = computed(store, tuesday, {"a": "new"})
    await publish(store, newer, tuesday, predictions, reader)
    resumed = store.begin(monday)
    assert resumed.fence > newer.fence
    with pytest.raises(Superseded, match=f"job monday is older than what {PREDICTOR} serves"):
        await publish(store, resumed, monday, predictions, reader)
    assert await served(client, "a") == ("new", f"tuesday.{newer.fence}")


async def test_a_run_that_was_overtaken_while_it_wrote_does_not_flip(
    client: Redis, store: JobStore, make_job: MakeJob
) -> None:
    class Slow(PredictionStore):
        async def seal(self, predictor: str, generation: str, num_predictions: int, as_of: datetime) -> None:
            await super().seal(predictor, generation, num_predictions, as_of)
            store.begin(job)

    job = make_job()
    run = computed(store, job, {"a": "A"})
    with pytest.raises(JobTakenOver):
        await publish(store, run, job, Slow(client, 60.0), OnlinePredictionReader(client))
    assert await served(client, "a") is None


async def test_what_reads_back_differently_is_not_published(client: Redis, store: JobStore, make_job: MakeJob) -> None:
    class Altered(PredictionStore):
        async def seal(self, predictor: str, generation: str, num_predictions: int, as_of: datetime) -> None:
            await client.hset(generation_key(predictor, generation), "b", b"\xa1X")
            await super().seal(predictor, generation, num_predictions, as_of)

    job = make_job()
    run = computed(store, job, {"a": "A", "b": "B"})
    with pytest.raises(GenerationFault, match="read back and does not hold what was written for b"):
        await publish(store, run, job, Altered(client, 60.0), OnlinePredictionReader(client))
    assert await served(client, "a") is None


async def test_rows_of_one_entity_are_one_prediction_the_last(
    client: Redis, store: JobStore, make_job: MakeJob
) -> None:
    job = make_job()
    run = store.begin(job)
    store.record(run, [Checkpoint(0, "a", "first"), Checkpoint(1, "a", "last"), Checkpoint(2, "b", "B")])
    await publish(store, run, job, PredictionStore(client, 60.0), OnlinePredictionReader(client))
    assert (await served(client, "a") or ("",))[0] == "last"


async def test_a_job_without_a_prediction_publishes_nothing(client: Redis, store: JobStore, make_job: MakeJob) -> None:
    job = make_job()
    run = store.begin(job)
    store.record(run, [Checkpoint(0, fault="bad")])
    with pytest.raises(InvalidRequest, match="has no prediction to publish"):
        await publish(store, run, job, PredictionStore(client, 60.0), OnlinePredictionReader(client))


class Interrupted(Exception):
    pass


class Interruptible(PredictionStore):
    """Ends at its `life`-th step: before it, after it, or (a write) in the middle."""

    def __init__(self, client: Redis, life: int, *, is_done: bool) -> None:
        super().__init__(client, 60.0)
        self._life, self._is_done = life, is_done

    def _tick(self) -> bool:
        """Whether this step is the last one, which is still done."""
        self._life -= 1
        if self._life < 0 or (self._life == 0 and not self._is_done):
            raise Interrupted
        return self._life == 0

    async def pointer(self, predictor: str) -> Pointer:
        is_last = self._tick()
        held = await super().pointer(predictor)
        if is_last:
            raise Interrupted
        return held

    async def write(self, predictor: str, generation: str, rows: AsyncIterator[Sequence[PredictionRow]]) -> int:  # type: ignore[override]
        async def broken() -> AsyncIterator[Sequence[PredictionRow]]:
            async for page in rows:
                for row in page:
                    is_last = self._tick()
                    yield [row]
                    if is_last:
                        raise Interrupted

        return await super().write(predictor, generation, broken())

    async def seal(self, predictor: str, generation: str, num_predictions: int, as_of: datetime) -> None:
        is_last = self._tick()
        await super().seal(predictor, generation, num_predictions, as_of)
        if is_last:
            raise Interrupted

    async def flip(self, predictor: str, generation: str, fence: int) -> Pointer:
        is_last = self._tick()
        pointer = await super().flip(predictor, generation, fence)
        if is_last:
            raise Interrupted
        return pointer


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("life", range(1, 10))
async def test_interrupted_at_any_step_the_old_generation_is_served_whole_and_the_next_run_publishes(
    client: Redis, store: JobStore, make_job: MakeJob, life: int, *, is_done: bool
) -> None:
    reader, names = OnlinePredictionReader(client), ["a", "b", "c"]
    old = make_job(job="old")
    await publish(store, computed(store, old, dict.fromkeys(names, "old")), old, PredictionStore(client, 60.0), reader)
    new = make_job([{"name": "x"}], job="new")
    run = computed(store, new, dict.fromkeys(names, "new"))
    try:
        await publish(store, run, new, Interruptible(client, life, is_done=is_done), reader)
    except Interrupted:
        pass
    found = {(await served(client, name) or ("nothing",))[0] for name in names}
    assert found in ({"old"}, {"new"})  # one night, whole
    await publish(store, store.begin(new), new, PredictionStore(client, 60.0), reader)
    assert {(await served(client, name) or ("nothing",))[0] for name in names} == {"new"}


@given(order=st.permutations(range(4)))
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
async def test_of_jobs_published_at_once_the_newest_is_served(
    database: Engine, make_job: MakeJob, redis_url: str, order: list[int]
) -> None:
    client, store, night = connect(RedisSettings(url=redis_url)), JobStore(database), next(_numbers)
    await forget(client)
    predictions, reader = PredictionStore(client, 60.0), OnlinePredictionReader(client)
    jobs = [make_job([{"name": f"n{at}"}], job=f"j{night}-{at}") for at in range(4)]
    runs = [computed(store, job, {"a": job.id}) for job in jobs]
    outcomes = await asyncio.gather(
        *(publish(store, runs[at], jobs[at], predictions, reader) for at in order), return_exceptions=True
    )
    assert all(isinstance(outcome, str | Superseded) for outcome in outcomes), outcomes
    assert (await served(client, "a") or ("",))[0] == jobs[3].id
    await client.aclose()


class TestWholeJob:
    """`run_job` with publishing, and a store that is away."""

    def parts(self, store: JobStore, client: Redis, work: FakeWork | None = None) -> Parts:
        return Parts(store, work or FakeWork(), PredictionStore(client, 60.0), OnlinePredictionReader(client))

    async def test_a_job_is_run_and_served(self, client: Redis, store: JobStore, make_job: MakeJob) -> None:
        job = make_job(publish=True)
        report = await run_job(self.parts(store, client), job)
        assert report.generation is not None
        assert (report.n, report.bad, report.entities, report.computed) == (5, 0, 5, 5)
        assert sum(report.batch_sizes.values()) == 5
        assert await served(client, "n3") == ("N3", report.generation)

    async def test_a_store_that_is_away_at_the_start_is_said_before_any_work(
        self, own_server: Valkey, store: JobStore, make_job: MakeJob
    ) -> None:
        own_server.kill()
        away, work = connect(RedisSettings(url=own_server.url)), FakeWork()
        with pytest.raises(StoreUnavailable):
            await run_job(self.parts(store, away, work), make_job(publish=True))
        assert (work.num_ready, store.jobs()) == (0, [])
        await away.aclose()

    async def test_a_store_that_is_lost_meanwhile_costs_no_unit_and_the_next_run_publishes(
        self, own_server: Valkey, store: JobStore, make_job: MakeJob
    ) -> None:
        client, job = connect(RedisSettings(url=own_server.url)), make_job(publish=True)
        work = FakeWork(lambda unit: own_server.kill() if unit == 4 else None)
        with pytest.raises(StoreUnavailable):
            await run_job(self.parts(store, client, work), job)
        (held,) = store.jobs()
        assert (held.status, held.generation, store.num_done(job.id)) == ("done", None, 5)
        own_server.start()
        again = FakeWork()
        report = await run_job(self.parts(store, client, again), job)
        assert again.asked == []
        assert await served(client, "n0") == ("N0", report.generation)
        await client.aclose()

    async def test_no_engine_leaves_a_job_that_says_why(
        self, client: Redis, store: JobStore, make_job: MakeJob
    ) -> None:
        work = FakeWork()
        work.not_ready = StoreUnavailable("no engine at ipc://engine after 10 s")
        with pytest.raises(HeadraceError, match="no engine"):
            await run_job(self.parts(store, client, work), make_job())
        assert [(job.status, job.detail) for job in store.jobs()] == [
            ("stopped", "no engine at ipc://engine after 10 s")
        ]

    @pytest.mark.parametrize(
        ("rows", "why"),
        [
            ([], "it has no rows"),
            ([b"\x00\x01", b"{"], "the first of its 2 bad rows: the line is no JSON"),
            ([{"name": "bad"}], "the first of its 1 bad rows: input 'name'"),
        ],
    )
    async def test_an_input_without_a_good_row_is_an_error_and_publishes_nothing(
        self, client: Redis, store: JobStore, make_job: MakeJob, rows: list[object], why: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=f"gives no result; {why}"):
            await run_job(self.parts(store, client), make_job(rows, publish=True))
        assert await served(client, "bad") is None
        assert store.jobs()[0].status == "stopped"
