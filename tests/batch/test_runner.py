"""Units in flight are bounded, finished ones are kept whatever happens, and waiting for an engine has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from batch.checkpoints import Checkpoint, JobStore, Run
from batch.errors import InputFileError, JobStopped, JobTakenOver, ModelFault
from batch.reader import PAGE_ROWS, Row, read_rows
from batch.runner import MODEL_ATTEMPTS, Limits, Runner
from core_engine.errors import EngineUnavailable, HeadraceError
from tests.batch.conftest import MakeJob
from tests.batch.doubles import FakeWork


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


def rows(num: int) -> Iterator[list[Row]]:
    for first in range(0, num, PAGE_ROWS):
        yield [Row(unit, {"name": f"n{unit}"}) for unit in range(first, min(num, first + PAGE_ROWS))]


@pytest.fixture
def run(store: JobStore, make_job: MakeJob) -> Run:
    return store.begin(make_job())


def checkpoints(store: JobStore, run: Run) -> list[Checkpoint]:
    pages = [*store.pages(run.job_id), *store.pages(run.job_id, bad=True)]
    return sorted((unit for page in pages for unit in page), key=lambda unit: unit.unit)


@pytest.mark.parametrize("concurrency", [1, 3, 32])
async def test_every_unit_is_asked_once_with_a_bounded_number_in_flight(
    store: JobStore, run: Run, concurrency: int
) -> None:
    progress: list[int] = []

    def let_go_when_full(_: int) -> None:
        if work.in_flight + 1 == concurrency:
            full.set()

    work, full = FakeWork(let_go_when_full), asyncio.Event()
    work.hold = full
    await Runner(store, run, rows(150), work, Limits(concurrency), progress.append).run()
    assert sorted(work.asked) == list(range(150))
    assert work.most_in_flight == concurrency
    assert progress[-1] == 150
    assert progress == sorted(progress)
    assert [unit.value for unit in checkpoints(store, run)] == [f"N{at}" for at in range(150)]


async def test_units_with_a_checkpoint_are_passed_over(store: JobStore, run: Run) -> None:
    store.record(run, [Checkpoint(unit, value="kept") for unit in (0, 70, 71, 149)])
    work = FakeWork()
    await Runner(store, run, rows(150), work, Limits(8)).run()
    assert sorted(work.asked) == sorted(set(range(150)) - {0, 70, 71, 149})
    assert [unit.value for unit in checkpoints(store, run)].count("kept") == 4


async def test_a_bad_row_is_kept_with_its_reason_and_the_others_go_on(store: JobStore, make_job: MakeJob) -> None:
    job = make_job([{"name": "a"}, {"name": "bad"}, b"no json", {"name": "b"}])
    run = store.begin(job)
    await Runner(store, run, read_rows(job.input), FakeWork(), Limits(2)).run()
    first, bad, unread, last = checkpoints(store, run)
    assert (first.value, last.value) == ("A", "B")
    assert bad.fault == "input 'name' = 'bad' has the wrong kind"
    assert unread.fault is not None
    assert unread.fault.startswith("the line is no JSON")


async def test_an_engine_that_comes_back_is_waited_for(store: JobStore, run: Run) -> None:
    clock, times = Clock(), dict[int, int]()

    def away_twice(unit: int) -> None:
        times[unit] = times.get(unit, 0) + 1
        if times[unit] <= 2:
            raise EngineUnavailable("gone")

    runner = Runner(store, run, rows(5), FakeWork(away_twice), Limits(2, 60.0), clock=clock, sleep=clock.sleep)
    await runner.run()
    assert len(checkpoints(store, run)) == 5
    assert clock.slept == sorted(clock.slept) or max(clock.slept) == 0.2
    assert {unit.fault for unit in checkpoints(store, run)} == {None}


async def test_an_engine_that_stays_away_ends_the_run_and_what_was_finished_is_kept(store: JobStore, run: Run) -> None:
    clock = Clock()

    def away_after_three(unit: int) -> None:
        if unit >= 3:
            raise EngineUnavailable("no engine answers at ipc://engine")

    runner = Runner(store, run, rows(9), FakeWork(away_after_three), Limits(2, 60.0), clock=clock, sleep=clock.sleep)
    with pytest.raises(JobStopped, match=r"no unit could be finished for 6\d s: no engine answers at ipc://engine"):
        await runner.run()
    assert store.done_units(run.job_id, 0, 9) == {0, 1, 2}
    assert max(clock.slept) == 2.0  # backoff, bounded


async def test_patience_counts_from_the_last_finished_unit(store: JobStore, run: Run) -> None:
    clock = Clock()

    def every_other_is_late(unit: int) -> None:
        if unit % 2 and clock.now_s < unit * 50.0:
            raise EngineUnavailable("busy")

    runner = Runner(
        store, run, rows(6), FakeWork(every_other_is_late), Limits(1, 120.0), clock=clock, sleep=clock.sleep
    )
    await runner.run()
    assert clock.now_s > 120.0
    assert len(checkpoints(store, run)) == 6


async def test_a_row_that_the_model_fails_on_is_tried_again_and_then_is_bad(store: JobStore, run: Run) -> None:
    clock = Clock()

    def broken(unit: int) -> None:
        if unit == 1:
            raise ModelFault("expected one finite score, got [nan]")

    work = FakeWork(broken)
    await Runner(store, run, rows(3), work, Limits(1), clock=clock, sleep=clock.sleep).run()
    assert work.asked.count(1) == MODEL_ATTEMPTS
    assert checkpoints(store, run)[1].fault == f"after {MODEL_ATTEMPTS} attempts: expected one finite score, got [nan]"


async def test_a_cancelled_run_keeps_what_is_finished_and_aborts_the_rest(store: JobStore, run: Run) -> None:
    work, hold = FakeWork(), asyncio.Event()
    reached = asyncio.Event()

    def hold_after_four(unit: int) -> None:
        if unit == 4:
            work.hold = hold
            reached.set()

    work.before = hold_after_four
    task = asyncio.create_task(Runner(store, run, rows(20), work, Limits(2)).run())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.in_flight == 0
    done = store.done_units(run.job_id, 0, 20)
    assert {0, 1, 2} <= done
    assert 4 not in done
    again = FakeWork()
    await Runner(store, run, rows(20), again, Limits(2)).run()
    assert sorted(again.asked) == sorted(set(range(20)) - done)


@pytest.mark.parametrize("end", [JobTakenOver("a later run has it"), InputFileError("it broke off")])
async def test_what_ends_a_run_is_told_as_it_is(store: JobStore, run: Run, end: HeadraceError) -> None:
    def broken_off() -> Iterator[list[Row]]:
        yield from rows(3)
        raise end

    with pytest.raises(type(end), match=str(end)):
        await Runner(store, run, broken_off(), FakeWork(), Limits(4)).run()


async def test_a_run_that_is_overtaken_stops_at_its_next_checkpoint(
    store: JobStore, run: Run, make_job: MakeJob
) -> None:
    def overtake(unit: int) -> None:
        if unit == 2:
            store.begin(make_job())

    with pytest.raises(JobTakenOver):
        await Runner(store, run, rows(9), FakeWork(overtake), Limits(1)).run()
    assert store.done_units(run.job_id, 0, 9) == {0, 1}
