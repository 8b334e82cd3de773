"""A job that is killed, cancelled or fails anywhere, any number of times, ends with the bytes of one that was not.

The kill is a database that answers nothing any more, from some operation on, before or after that operation was done:
what a dead process wrote until then is all that there is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from sqlalchemy import Engine

from batch import checkpoints, output
from batch.checkpoints import Checkpoint, JobStore, Run, Status, Tally
from batch.door import Parts, run_job
from batch.job import Job
from batch.output import ERRORS, RESULTS, write_output
from batch.runner import Limits
from batch.tables import Base
from core_engine.errors import HeadraceError
from core_engine.predictors.tables import open_database
from core_engine.settings import RedisSettings
from featurestore.online.connection import connect
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.predictions import PredictionStore
from tests.batch.conftest import MakeJob
from tests.batch.doubles import FakeWork

T = TypeVar("T")
NAMES = ["a", "b", "bad", "c", "d", "e", "bad", "f", "g", "h", "i"]
_numbers = itertools.count()


class Killed(Exception):
    """The process is dead."""


class MortalStore(JobStore):
    """Dies at its `life`-th operation: before it is done, or right after, when nobody hears of it any more."""

    def __init__(self, database: Engine, life: int, *, is_done: bool) -> None:
        super().__init__(database)
        self._life = life
        self._is_done = is_done

    def _do(self, work: Callable[[], T]) -> T:
        self._life -= 1
        if self._life < 0 or (self._life == 0 and not self._is_done):
            raise Killed
        done = work()
        if self._life == 0:
            raise Killed
        return done

    def begin(self, job: Job) -> Run:
        return self._do(lambda: super(MortalStore, self).begin(job))

    def record(self, run: Run, checkpoints: Sequence[Checkpoint]) -> None:
        self._do(lambda: super(MortalStore, self).record(run, checkpoints))

    def check(self, run: Run) -> None:
        self._do(lambda: super(MortalStore, self).check(run))

    def end(self, run: Run, status: Status, detail: str | None = None) -> None:
        self._do(lambda: super(MortalStore, self).end(run, status, detail))

    def published(self, run: Run, generation: str) -> None:
        self._do(lambda: super(MortalStore, self).published(run, generation))

    def done_units(self, job_id: str, first: int, last: int) -> set[int]:
        return self._do(lambda: super(MortalStore, self).done_units(job_id, first, last))

    def tally(self, job_id: str) -> Tally:
        return self._do(lambda: super(MortalStore, self).tally(job_id))

    def pages(self, job_id: str, *, bad: bool = False) -> Iterator[list[Checkpoint]]:
        pages = super().pages(job_id, bad=bad)
        while page := self._do(lambda: next(pages, [])):
            yield page


@dataclass(frozen=True)
class Kill:
    life: int
    is_done: bool


@dataclass(frozen=True)
class Cancel:
    at_unit: int


@dataclass(frozen=True)
class Fail:
    at_unit: int


END = st.one_of(
    st.builds(Kill, st.integers(1, 30), st.booleans()),
    st.builds(Cancel, st.integers(0, 10)),
    st.builds(Fail, st.integers(0, 10)),
)


class Broken(HeadraceError):
    """Something that ends a run."""


async def run_until(end: Kill | Cancel | Fail | None, database: Engine, job: Job, client: Redis, num: int) -> FakeWork:
    """One run of the job, which meets its end or finishes; returns what it asked for."""
    store = MortalStore(database, end.life, is_done=end.is_done) if isinstance(end, Kill) else JobStore(database)

    def meet_it(unit: int) -> None:
        if isinstance(end, Cancel) and unit == end.at_unit:
            task.cancel()
        if isinstance(end, Fail) and unit == end.at_unit:
            raise Broken

    work = FakeWork(meet_it)
    parts = Parts(store, work, PredictionStore(client, 60.0), OnlinePredictionReader(client), Limits(num))
    task = asyncio.ensure_future(run_job(parts, job))
    await asyncio.wait({task})
    ending = None if task.cancelled() else task.exception()
    assert ending is None or isinstance(ending, Killed | Broken), ending
    return work


def bytes_of(job: Job) -> tuple[bytes, bytes]:
    return (job.output / RESULTS).read_bytes(), (job.output / ERRORS).read_bytes()


@given(ends=st.lists(END, max_size=5), concurrency=st.integers(1, 4))
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
async def test_whatever_ends_it_however_often_the_output_is_the_same(
    database: Engine,
    make_job: MakeJob,
    redis_url: str,
    tmp_path: Path,
    ends: list[Kill | Cancel | Fail],
    concurrency: int,
) -> None:
    client, rows = connect(RedisSettings(url=redis_url)), [{"name": name} for name in NAMES]
    job = make_job(rows, job=f"resumed-{next(_numbers)}")
    store = JobStore(database)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "PAGE_ROWS", 3)  # so that a kill falls between two pages of the output too
        for end in ends:
            kept = store.done_units(job.id, 0, 99)
            work = await run_until(end, database, job, client, concurrency)
            assert not kept & set(work.asked), "a unit with a checkpoint was asked for again"
        await run_until(None, database, job, client, concurrency)
        found = bytes_of(job)
        assert found == await uninterrupted(tmp_path, job, client)
        write_output(store, store.begin(job), job)
        assert bytes_of(job) == found
    assert [p.name for p in job.output.iterdir() if p.name.startswith(".")] == []
    await client.aclose()


async def uninterrupted(folder: Path, job: Job, client: Redis) -> tuple[bytes, bytes]:
    """The bytes of the same job, in one go and one unit after the other, on a database of its own."""
    database = open_database(f"sqlite:///{folder / job.id}.whole.db")
    Base.metadata.create_all(database)
    whole = replace(job, output=folder / "whole")
    await run_until(None, database, whole, client, 1)
    database.dispose()
    return bytes_of(whole)


async def test_a_second_runner_takes_over_and_the_first_one_changes_nothing_more(
    database: Engine, store: JobStore, make_job: MakeJob, client: Redis
) -> None:
    job, parts_of = make_job([{"name": name} for name in NAMES]), PredictionStore(client, 60.0)
    first_work, reached = FakeWork(), asyncio.Event()
    first_work.hold = asyncio.Event()
    first_work.before = lambda _: reached.set()
    reader = OnlinePredictionReader(client)
    first = asyncio.create_task(run_job(Parts(store, first_work, parts_of, reader, Limits(2)), job))
    await reached.wait()
    await run_job(Parts(JobStore(database), FakeWork(), parts_of, reader, Limits(2)), job)
    found = bytes_of(job)
    first_work.hold.set()
    with pytest.raises(HeadraceError, match="taken over by a later run"):
        await first
    assert bytes_of(job) == found
    assert store.jobs()[0].status == Status.DONE


async def test_a_finished_job_asks_for_nothing_and_writes_what_is_missing(
    store: JobStore, make_job: MakeJob, client: Redis
) -> None:
    job = make_job()
    parts = Parts(store, FakeWork(), PredictionStore(client, 60.0), OnlinePredictionReader(client), Limits(2))
    first = await run_job(parts, job)
    found = bytes_of(job)
    (job.output / RESULTS).unlink()
    again = FakeWork()
    second = await run_job(Parts(store, again, parts.predictions, parts.reader, Limits(2)), job)
    assert again.num_ready == 0  # no engine is waited for
    assert again.asked == []
    assert bytes_of(job) == found
    assert (first.computed, first.resumed) == (5, 0)
    assert (second.computed, second.resumed, second.n) == (0, 5, 5)


def test_an_output_that_cannot_be_written_leaves_the_old_one(
    store: JobStore, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    run = store.begin(job)
    store.record(run, [Checkpoint(0, entity="a", value="A")])
    write_output(store, run, job)
    found = bytes_of(job)

    def full(_path: Path, _pages: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "_write_errors", full)
    with pytest.raises(HeadraceError, match=r"output folder .*out: No space left"):
        write_output(store, run, job)
    assert bytes_of(job) == found
    assert sorted(path.name for path in job.output.iterdir()) == [ERRORS, RESULTS]
