"""Which rows a run writes, held to the oracle that looks at every row; and when a history counts as another one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.instants import to_us
from featurestore.lifecycle.history import Shard, digest, shard_of, shards
from featurestore.lifecycle.watermarks import Cursor
from featurestore.offline.source import Source, read_source
from tests.featurestore.offline.oracle import HISTORIES, KEYS, Known, columns, hours, newest_known
from tests.featurestore.rows import HOUR, NOW, PROPERTY, make_view, write_source


def source_of(history: list[Known]) -> Source:
    table = columns(history)
    event, created = (table[name].cast(pa.int64()) for name in ("event_time", "created_time"))
    return Source(table["entity_key"], event, created, {"delay": table["delay"]})


def places(parts: list[Shard]) -> list[int]:
    return sorted(int(position) for part in parts for position in part.positions)


def known_from(row: Known) -> datetime:
    return max(row.event, row.created)


@settings(PROPERTY)
@given(history=HISTORIES, since=st.none() | hours(-8, 8), as_of=hours(-8, 8), num_shards=st.integers(1, 4))
def test_a_run_writes_each_newest_row_that_became_known_since_and_no_other(
    history: list[Known], since: datetime | None, as_of: datetime, num_shards: int
) -> None:
    newest = [row for key in KEYS if (row := newest_known(history, key, as_of))]
    expected = [history.index(row) for row in newest if since is None or known_from(row) > since]
    since_us = None if since is None else to_us(since, "")
    parts = shards(source_of(history), to_us(as_of, ""), since_us, num_shards, {})
    rows = [history[place] for place in places(parts)]
    assert sorted(map(repr, rows)) == sorted(repr(history[place]) for place in expected)
    assert [part.number for part in parts] == list(range(num_shards))
    for part in parts:
        assert {shard_of(history[int(place)].key, num_shards) for place in part.positions} <= {part.number}
        order = [(known_from(history[int(place)]), int(place)) for place in part.positions]
        assert order == sorted(order)


@settings(PROPERTY)
@given(history=HISTORIES, first=hours(-8, 8), then=hours(-8, 8), data=st.data())
def test_a_run_cut_anywhere_and_one_that_goes_on_later_leave_what_one_run_would(
    history: list[Known], first: datetime, then: datetime, data: st.DataObject
) -> None:
    """The cursor of a run as of `first` holds for one as of `then`, whatever became known in between."""
    first, then = sorted((first, then))
    source = source_of(history)
    online: dict[str, Known] = {}
    cursors: dict[int, Cursor] = {}
    for part in shards(source, to_us(first, ""), None, 2, {}):
        cut = data.draw(st.integers(0, len(part)))
        for known_us, place in list(zip(part.known_us, part.positions, strict=True))[:cut]:
            cursors[part.number] = Cursor(int(known_us), int(place))
            online[history[int(place)].key] = history[int(place)]
    for part in shards(source, to_us(then, ""), None, 2, cursors):
        online.update({history[int(place)].key: history[int(place)] for place in part.positions})
    assert online == {key: row for key in KEYS if (row := newest_known(history, key, then))}


@given(key=st.text(), num_shards=st.integers(1, 100))
def test_a_key_is_always_in_one_shard(key: str, num_shards: int) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        return
    assert 0 <= shard_of(key, num_shards) < num_shards


def test_shards_are_what_they_were_in_other_releases() -> None:
    """CRC-32 of "123456789" is 0xCBF43926, the check value of its definition (ISO 3309)."""
    assert shard_of("123456789", 2**32) == 0xCBF43926


ROWS = [Known("N1", NOW - HOUR, NOW - HOUR, 1), Known("東京", NOW - 2 * HOUR, NOW, 2), Known("N3", NOW, NOW + HOUR, 3)]


@settings(PROPERTY)
@given(history=HISTORIES, later=HISTORIES, at=hours(-8, 4))
def test_what_becomes_known_later_leaves_the_digest_as_it_was(
    history: list[Known], later: list[Known], at: datetime
) -> None:
    late = [row for row in later if known_from(row) > at]
    at_us = to_us(at, "")
    assert digest(source_of(history + late), at_us) == digest(source_of(history), at_us)


def test_the_digest_sees_rows_that_came_late_went_or_moved_and_no_values() -> None:
    def of(history: list[Known]) -> str:
        return digest(source_of(history), to_us(NOW, ""))

    renamed = [Known("N11", *known) for known in [(ROWS[0].event, ROWS[0].created, 1)]]
    others: list[list[Known]] = [
        [],
        ROWS[1:],
        [ROWS[1], ROWS[0], ROWS[2]],
        [*ROWS, Known("N4", NOW - HOUR, NOW - HOUR, 1)],
        [*renamed, *ROWS[1:]],
        [Known("N1", NOW - HOUR, NOW - 2 * HOUR, 1), *ROWS[1:]],
    ]
    seen = {of(ROWS), *map(of, others)}
    assert len(seen) == 1 + len(others)
    assert of([Known("N1", NOW - HOUR, NOW - HOUR, 99), *ROWS[1:]]) == of(ROWS)


def test_the_digest_of_a_file_is_that_of_its_rows(tmp_path: Path) -> None:
    names: dict[str, Any] = columns(ROWS)
    view = make_view(path=write_source(tmp_path / "h.parquet", names))
    assert digest(read_source(view, ["delay"]), to_us(NOW, "")) == digest(source_of(ROWS), to_us(NOW, ""))
