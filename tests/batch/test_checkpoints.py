"""Who may write to a job, and what its checkpoints say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from batch import checkpoints
from batch.checkpoints import Checkpoint, JobStore, Run, Status, Tally
from batch.errors import JobChanged, JobTakenOver
from batch.tables import Base
from core_engine.contracts import Reason, Rung
from core_engine.predictors.tables import open_database
from tests.batch.conftest import MakeJob

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def good(unit: int, **changes: object) -> Checkpoint:
    told = {"entity": f"e{unit}", "value": float(unit), "rung": Rung.MODEL, "latency_ms": 1.0, "batch_size": 1}
    return Checkpoint(unit, **{**told, **changes})  # type: ignore[arg-type]


def test_a_new_job_publishes_under_the_fence_of_its_first_run_for_ever(store: JobStore, make_job: MakeJob) -> None:
    first, second = store.begin(make_job()), store.begin(make_job())
    assert (first.is_new, second.is_new) == (True, False)
    assert second.fence > first.fence == first.publish_fence == second.publish_fence
    assert second.created_at == first.created_at


def test_fences_grow_over_all_jobs_and_never_lie_behind_the_clock(database: Engine, make_job: MakeJob) -> None:
    clock = [LONG_AGO]
    store = JobStore(database, lambda: clock[0])
    fences = [store.begin(make_job(job=name)).fence for name in ("a", "b", "a", "c")]
    assert fences == sorted(set(fences))
    assert fences[0] == int(LONG_AGO.timestamp() * 1000)
    clock[0] = LONG_AGO - timedelta(days=1)  # a clock that is set back changes nothing
    assert store.begin(make_job(job="d")).fence == fences[-1] + 1
    clock[0] = LONG_AGO + timedelta(days=1)
    assert store.begin(make_job(job="e")).fence == int(clock[0].timestamp() * 1000)


def test_runners_that_begin_at_once_get_a_fence_each(tmp_path: Path, make_job: MakeJob) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    engine = open_database(url)
    Base.metadata.create_all(engine)
    engine.dispose()
    job, fences, started = make_job(), list[int](), threading.Barrier(6)

    def begin() -> None:
        own = open_database(url)
        started.wait()
        fences.append(JobStore(own, lambda: LONG_AGO).begin(job).fence)
        own.dispose()

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fences) == [fences_from(LONG_AGO) + at for at in range(6)]


def fences_from(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


def test_an_id_belongs_to_one_fingerprint(store: JobStore, make_job: MakeJob) -> None:
    store.begin(make_job(job="night"))
    with pytest.raises(JobChanged, match=r"job night was begun with another input.*give this one an id of its own"):
        store.begin(make_job([{"name": "else"}], job="night"))


def test_a_run_that_was_overtaken_writes_nothing_any_more(store: JobStore, make_job: MakeJob) -> None:
    job = make_job()
    old = store.begin(job)
    store.record(old, [good(0)])
    new = store.begin(job)
    writes: list[Callable[[], None]] = [
        lambda: store.record(old, [good(1)]),
        lambda: store.end(old, Status.DONE),
        lambda: store.check(old),
    ]
    for write in writes:
        with pytest.raises(JobTakenOver, match=f"taken over by a later run .*fence {old.fence}"):
            write()
    store.record(new, [good(1)])
    assert store.done_units(job.id, 0, 9) == {0, 1}
    assert store.jobs()[0].status == Status.RUNNING


@given(steps=st.lists(st.sampled_from(["begin", "record by the newest", "record by an older"]), max_size=12))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_only_the_newest_run_ever_writes(database: Engine, make_job: MakeJob, steps: list[str]) -> None:
    store = JobStore(database)
    job = make_job(job=f"job-{id(steps)}-{datetime.now(UTC).timestamp()}")
    runs: list[Run] = [store.begin(job)]
    written: set[int] = set()
    for unit, step in enumerate(steps):
        if step == "begin":
            runs.append(store.begin(job))
        elif step == "record by the newest":
            store.record(runs[-1], [good(unit)])
            written.add(unit)
        elif len(runs) > 1:
            with pytest.raises(JobTakenOver):
                store.record(runs[-2], [good(unit)])
    assert store.done_units(job.id, 0, len(steps)) == written
    assert store.num_done(job.id) == len(written)


def test_a_page_of_checkpoints_is_kept_whole_or_not_at_all(store: JobStore, make_job: MakeJob) -> None:
    run = store.begin(make_job())
    store.record(run, [good(0)])
    with pytest.raises(IntegrityError):  # a result is never replaced
        store.record(run, [good(1), good(0)])
    assert store.done_units(run.job_id, 0, 9) == {0}


def test_values_come_back_exactly_and_in_order(
    store: JobStore, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "PAGE_ROWS", 2)
    run = store.begin(make_job())
    told = [
        good(4, value=0.1 + 0.2, reason=Reason.FEATURE_STATE, rung=Rung.STUDENT),
        good(0, value="ü✈", finish_reason="length"),
        good(2, value=None, entity=None),
        Checkpoint(1, fault="input 'x' is wrong"),
        good(3, value=-0.0),
    ]
    store.record(run, told)
    pages = list(store.pages(run.job_id))
    assert [len(page) for page in pages] == [2, 2]
    assert [unit for page in pages for unit in page] == sorted(
        (t for t in told if t.fault is None), key=lambda t: t.unit
    )
    assert list(store.pages(run.job_id, bad=True)) == [[told[3]]]


def test_the_tally_counts_good_units_and_ranks_their_latencies(store: JobStore, make_job: MakeJob) -> None:
    run = store.begin(make_job())
    store.record(run, [good(at, latency_ms=float(at + 1), batch_size=1 + at % 2) for at in range(100)])
    store.record(run, [Checkpoint(100, fault="bad"), good(101, entity="e0", latency_ms=1e6, batch_size=8)])
    assert store.tally(run.job_id) == Tally(
        good=101, bad=1, entities=100, p50_ms=51.0, p99_ms=100.0,
        batch_sizes={"1": 50, "2": 50, "8": 1}, rungs={"model": 101},
    )  # fmt: skip
    assert store.tally("nobody") == Tally(0, 0, 0, 0.0, 0.0, {}, {})


def test_jobs_are_listed_newest_first_with_how_they_stand(store: JobStore, make_job: MakeJob) -> None:
    first, second = store.begin(make_job(job="a")), store.begin(make_job(job="b"))
    store.end(first, Status.STOPPED, "no engine")
    store.end(second, Status.DONE)
    store.published(second, "b.1")
    assert [(job.id, job.status, job.detail, job.generation) for job in store.jobs()] == [
        ("b", "done", None, "b.1"),
        ("a", "stopped", "no engine", None),
    ]
    assert store.begin(make_job(job="b")).status is Status.DONE
    assert [job.status for job in store.jobs()] == ["done", "stopped"]  # a look at a finished job does not reopen it
