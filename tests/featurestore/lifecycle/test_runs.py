"""What a run has to do by what the registry and the store say, and which unfinished run it goes on with."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from featurestore.lifecycle.marks import Held
from featurestore.lifecycle.runs import Kind, Wanted, plan
from featurestore.lifecycle.watermarks import Cursor, Run, Standing, Watermark

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DAY = timedelta(days=1)
DONE = Standing(Watermark(NOW - DAY, "same"), None, None)
HELD = Held(NOW - DAY)
CURSORS = {0: Cursor(10, 1), 1: Cursor(20, 2)}
MARKS = {("t", 0): Cursor(10, 1), ("t", 1): Cursor(15, 7)}
CUT = Run("t", "incremental", NOW - DAY / 2, NOW - DAY, 2, "same", CURSORS)


def same(_at: datetime) -> str:
    return "same"


@pytest.mark.parametrize(
    ("wanted", "standing", "held", "kind", "why"),
    [
        (Wanted(NOW, 1), Standing(None, None, None), Held(), Kind.FULL, "never materialized"),
        (Wanted(NOW, 1), DONE, HELD, Kind.INCREMENTAL, "since the watermark 2026-11-29 12:00:00 UTC"),
        (Wanted(NOW - DAY, 1), DONE, HELD, Kind.INCREMENTAL, "since the watermark"),
        (Wanted(NOW - 2 * DAY, 1), DONE, HELD, Kind.REBUILD, "the past, before the watermark"),
        (Wanted(NOW, 1, is_full=True), DONE, HELD, Kind.FULL, "asked for"),
        (Wanted(NOW, 1), DONE, Held(), Kind.FULL, "has lost what it held"),
        (Wanted(NOW, 1), DONE, Held(NOW - 3 * DAY), Kind.FULL, "holds it as at 2026-11-27"),
        (
            Wanted(NOW, 1),
            Standing(Watermark(NOW - DAY, "other"), None, None),
            HELD,
            Kind.FULL,
            "have come, gone or moved",
        ),
    ],
)
def test_what_a_run_has_to_do(wanted: Wanted, standing: Standing, held: Held, kind: Kind, why: str) -> None:
    made = plan(wanted, standing, held, same)
    assert (made.run.kind, made.run.since) == (kind, NOW - DAY if kind is Kind.INCREMENTAL else None)
    assert why in made.why
    assert not made.is_resumed


def test_an_unfinished_run_goes_on_by_the_lesser_word_of_registry_and_store() -> None:
    standing = replace(DONE, run=CUT)
    made = plan(Wanted(NOW, 2), standing, Held(NOW - DAY, MARKS), same)
    assert made.run.cursors == {0: Cursor(10, 1), 1: Cursor(15, 7)}
    assert made.run.token == "t"
    assert made.run.as_of == NOW, "it goes on to what is wanted now"


def test_a_shard_of_which_the_store_holds_nothing_begins_anew() -> None:
    made = plan(Wanted(NOW, 2), replace(DONE, run=CUT), Held(NOW - DAY, {("t", 0): Cursor(10, 1)}), same)
    assert made.run.cursors == {0: Cursor(10, 1)}


@pytest.mark.parametrize(
    ("wanted", "run", "held"),
    [
        (Wanted(NOW, 3), CUT, HELD),
        (Wanted(NOW, 2), replace(CUT, digest="other"), HELD),
        (Wanted(NOW, 2, is_full=True), CUT, HELD),
        (Wanted(NOW - DAY, 2), CUT, HELD),
        (Wanted(NOW, 2), CUT, Held()),
        (Wanted(NOW, 2), replace(CUT, since=NOW - 2 * DAY), HELD),
        (Wanted(NOW - 2 * DAY, 2), replace(CUT, kind="rebuild", since=None, as_of=NOW - 3 * DAY), HELD),
    ],
    ids=["shards", "source", "kind", "earlier", "lost", "watermark", "another past"],
)
def test_a_run_of_other_rows_begins_anew(wanted: Wanted, run: Run, held: Held) -> None:
    made = plan(wanted, replace(DONE, run=run), replace(held, cursors=MARKS), same)
    assert made.run.cursors == {}
    assert made.run.token != "t"


def test_a_rebuild_of_the_same_instant_goes_on() -> None:
    run = replace(CUT, kind="rebuild", since=None, as_of=NOW - 2 * DAY)
    made = plan(Wanted(NOW - 2 * DAY, 2), replace(DONE, run=run), replace(HELD, cursors=MARKS), same)
    assert made.is_resumed
