"""On both databases: one lease at a time, what an old holder writes is refused, a watermark never goes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError
from featurestore.lifecycle.watermarks import LEASE, Cursor, Run, ViewBusy, Watermark, Watermarks
from featurestore.registry import Status, register_view, set_status
from tests.featurestore.rows import make_view

NOW = datetime(2026, 11, 30, 12, 0, 0, 123_456, UTC)
RUN = Run("token", "full", NOW, None, 2, "digest", {})


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watermarks(database: Engine, clock: Clock) -> Watermarks:
    return Watermarks(database, clock)


def test_a_second_run_is_refused_and_told_by_whom_and_until_when(watermarks: Watermarks) -> None:
    watermarks.acquire("v", 1, "process 7 on here")
    with pytest.raises(ViewBusy, match=r"view v version 1 is being written by process 7 on here, .* 12:00:15 UTC"):
        watermarks.acquire("v", 1, "another")
    assert watermarks.standing("v", 1).holder == "process 7 on here"


def test_other_views_and_versions_have_leases_of_their_own(watermarks: Watermarks) -> None:
    for name, version in (("v", 1), ("v", 11), ("v_1", 1)):
        watermarks.acquire(name, version, "me")


def test_a_lease_given_back_is_free_at_once_and_one_that_ran_out_by_its_time(
    watermarks: Watermarks, clock: Clock
) -> None:
    first = watermarks.acquire("v", 1, "first")
    watermarks.release(first)
    second = watermarks.acquire("v", 1, "second")
    clock.now += LEASE - timedelta(microseconds=1)
    with pytest.raises(ViewBusy):
        watermarks.acquire("v", 1, "third")
    clock.now += timedelta(microseconds=1)
    third = watermarks.acquire("v", 1, "third")
    assert first.fence < second.fence < third.fence


def test_a_word_that_comes_after_its_lease_was_given_back_takes_no_lease(watermarks: Watermarks) -> None:
    """A cancelled run's thread may still be on its way to the database."""
    lease = watermarks.acquire("v", 1, "me")
    watermarks.release(lease)
    with pytest.raises(ViewBusy):
        watermarks.save(lease, 0, Cursor(1, 1))
    watermarks.acquire("v", 1, "other")


def test_a_renewed_lease_holds_from_then(watermarks: Watermarks, clock: Clock) -> None:
    lease = watermarks.acquire("v", 1, "me")
    clock.now += LEASE
    watermarks.renew(lease)
    with pytest.raises(ViewBusy):
        watermarks.acquire("v", 1, "other")


def test_of_many_that_ask_at_once_one_gets_the_lease(watermarks: Watermarks) -> None:
    got: list[object] = []
    ready = threading.Barrier(6)

    def ask() -> None:
        ready.wait()
        try:
            got.append(watermarks.acquire("v", 1, "one of six"))
        except ViewBusy as refused:
            got.append(refused)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(each, ViewBusy) for each in got) == 5
    assert len(got) == 6


def test_nothing_that_an_old_holder_says_is_kept(watermarks: Watermarks, clock: Clock) -> None:
    old = watermarks.acquire("v", 1, "old")
    watermarks.begin(old, RUN)
    clock.now += LEASE
    new = watermarks.acquire("v", 1, "new")
    before = watermarks.standing("v", 1)
    writes: list[Callable[[], None]] = [
        lambda: watermarks.save(old, 0, Cursor(1, 1)),
        lambda: watermarks.finish(old, Watermark(NOW, "d")),
        lambda: watermarks.begin(old, Run("x", "full", NOW, None, 1, "", {})),
        lambda: watermarks.forget(old),
        lambda: watermarks.renew(old),
    ]
    for write in writes:
        with pytest.raises(ViewBusy, match="another process took over"):
            write()
    watermarks.release(old)
    assert watermarks.standing("v", 1) == before
    watermarks.renew(new)


def test_a_run_and_its_cursors_are_there_until_it_is_finished(watermarks: Watermarks) -> None:
    lease = watermarks.acquire("v", 1, "me")
    watermarks.begin(lease, RUN)
    for cursor in (Cursor(2**62, 5), Cursor(2**62, 9)):
        watermarks.save(lease, 1, cursor)
    run = watermarks.standing("v", 1).run
    assert run is not None
    assert run.cursors == {1: Cursor(2**62, 9)}
    watermarks.begin(lease, run)
    assert watermarks.standing("v", 1).run == run, "begun again, it goes on"
    watermarks.begin(lease, RUN)
    assert watermarks.standing("v", 1).run == RUN, "another one has no cursors"
    watermarks.finish(lease, Watermark(NOW, "digest"))
    assert watermarks.standing("v", 1).run is None


def test_the_watermark_moves_forward_only_and_in_utc(watermarks: Watermarks) -> None:
    lease = watermarks.acquire("v", 1, "me")
    assert watermarks.standing("v", 1).watermark is None
    elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
    moves = [Watermark(elsewhere, "a"), Watermark(NOW - timedelta(microseconds=1), "b"), None]
    for move in moves:
        watermarks.finish(lease, move)
        held = watermarks.standing("v", 1).watermark
        assert held == Watermark(NOW, "a")
        assert held.at.utcoffset() == timedelta()
    watermarks.finish(lease, Watermark(NOW, "c"))
    assert watermarks.standing("v", 1).watermark == Watermark(NOW, "c")


def test_a_forgotten_version_begins_anew_under_higher_fences(watermarks: Watermarks) -> None:
    lease = watermarks.acquire("v", 1, "me")
    watermarks.begin(lease, RUN)
    watermarks.save(lease, 0, Cursor(1, 1))
    watermarks.finish(lease, Watermark(NOW, "d"))
    watermarks.forget(lease)
    watermarks.release(lease)
    standing = watermarks.standing("v", 1)
    assert (standing.watermark, standing.run, standing.holder) == (None, None, None)
    assert watermarks.acquire("v", 1, "me").fence > lease.fence


def test_a_version_on_its_way_out_is_not_written(database: Engine, watermarks: Watermarks) -> None:
    view = make_view(name="v")
    watermarks.check_alive("v", 1)
    for status in Status:
        with Session(database) as session, session.begin():
            register_view(session, view) if status is Status.REGISTERED else set_status(session, "v", 1, status)
        if status is Status.REGISTERED:
            watermarks.check_alive("v", 1)
        else:
            with pytest.raises(ConfigurationError, match=f"v version 1 is {status}"):
                watermarks.check_alive("v", 1)


def test_a_naive_watermark_is_refused(watermarks: Watermarks) -> None:
    lease = watermarks.acquire("v", 1, "me")
    with pytest.raises(StatementError, match="naive"):
        watermarks.finish(lease, Watermark(datetime(2026, 1, 1), "d"))
