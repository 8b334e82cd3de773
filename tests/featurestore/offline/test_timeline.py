from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from hypothesis import given, settings

from featurestore.instants import to_us
from featurestore.offline.source import Source
from featurestore.offline.timeline import known_positions, newest_positions
from tests.featurestore.offline.oracle import HISTORIES, KEYS, SPINES, Known, columns, hours, newest_known
from tests.featurestore.rows import HOUR, NOW, PROPERTY

Spine = list[tuple[str | None, datetime]]


def source_of(history: list[Known]) -> Source:
    table = columns(history)
    event_us, created_us = (table[name].cast(pa.int64()) for name in ("event_time", "created_time"))
    return Source(table["entity_key"], event_us, created_us, {})


def positions(history: list[Known], spine: Spine) -> list[int]:
    keys = pa.array([key for key, _ in spine], pa.string())
    at_us = pa.array([to_us(at, "at") for _, at in spine], pa.int64())
    return list(map(int, known_positions(source_of(history), keys, at_us)))


@settings(PROPERTY, max_examples=100)
@given(history=HISTORIES, spine=SPINES)
def test_the_join_finds_what_brute_force_finds(history: list[Known], spine: Spine) -> None:
    expected = [newest_known(history, key, at) for key, at in spine]
    found = [None if position < 0 else history[position] for position in positions(history, spine)]
    assert [row is known for row, known in zip(found, expected, strict=True)] == [True] * len(spine)


@settings(PROPERTY, max_examples=50)
@given(history=HISTORIES, as_of=hours(-8, 8))
def test_the_newest_of_every_entity_is_what_brute_force_finds(history: list[Known], as_of: datetime) -> None:
    expected = [known for key in KEYS if (known := newest_known(history, key, as_of)) is not None]
    found = [history[position] for position in newest_positions(source_of(history), to_us(as_of, "as_of"))]
    assert sorted(map(id, found)) == sorted(map(id, expected))


def test_an_event_known_late_does_not_hide_what_was_known() -> None:
    """ASOF on event time, filtered by created time afterwards, finds nothing at the second instant."""
    known = Known("N1", NOW, NOW, 1)
    late = Known("N1", NOW + HOUR, NOW + 3 * HOUR, 2)
    spine: Spine = [("N1", NOW), ("N1", NOW + 2 * HOUR), ("N1", NOW + 3 * HOUR)]
    assert positions([late, known], spine) == [1, 1, 0]


def test_an_old_event_known_late_never_replaces_a_newer_one() -> None:
    newer, backfilled = Known("N1", NOW, NOW, 1), Known("N1", NOW - HOUR, NOW + HOUR, 2)
    assert positions([newer, backfilled], [("N1", NOW + 2 * HOUR)]) == [0]


def test_equal_event_times_are_settled_by_created_time_then_position() -> None:
    first, correction = Known("N1", NOW, NOW, 1), Known("N1", NOW, NOW + HOUR, 2)
    assert positions([correction, first], [("N1", NOW), ("N1", NOW + HOUR)]) == [1, 0]
    assert positions([first, first], [("N1", NOW)]) == [1]


def test_a_large_spine_takes_another_plan_and_finds_the_same() -> None:
    """DuckDB joins small spines by nested loops; both plans must be right."""
    history = [Known("N1", NOW + i * HOUR, NOW + (i + i % 3) * HOUR, i) for i in range(50)]
    spine: Spine = [("N1", NOW + (i % 60) * HOUR) for i in range(5_000)]
    large = positions(history, spine)
    assert large[:60] == positions(history, spine[:60])
    assert large == large[:60] * 83 + large[:20]


def test_no_rows_on_either_side() -> None:
    assert positions([], [("N1", NOW)]) == [-1]
    assert positions([Known("N1", NOW, NOW, 1)], []) == []
    assert newest_positions(source_of([]), 0).tolist() == []
