"""As-of joins: leak-free on both clocks against brute force, one output row per input row, in order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.contracts import FeatureState, entity_key
from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.codec import ABSENT
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import to_us
from featurestore.offline.source_schema import arrow_type
from featurestore.offline.store import STATE_SUFFIX, OfflineStore
from tests.featurestore.offline.oracle import HISTORIES, SPINES, Known, columns, hours, newest_known, served
from tests.featurestore.rows import HOUR, NOW, PROPERTY, make_view, write_source

INSTANT = pa.timestamp("us", tz="UTC")


def spine_of(rows: list[tuple[str | None, datetime]], **more: Any) -> pa.Table:
    keys, instants = [key for key, _ in rows], [at for _, at in rows]
    return pa.table({"tail": pa.array(keys, pa.string()), "due": pa.array(instants, INSTANT), **more})


def history_view(folder: Path, history: list[Known], name: str = "v", **more: Any) -> FeatureView:
    return make_view(name=name, path=write_source(folder / f"{name}.parquet", columns(history)), **more)


def join(view: FeatureView, spine: pa.Table, shift: timedelta = timedelta()) -> list[tuple[Any, Any]]:
    joined = OfflineStore([view], shift).as_of_join(spine, ["v.delay"], {"plane": "tail"}, "due")
    return list(zip(joined["v.delay"].to_pylist(), joined["v.delay" + STATE_SUFFIX].to_pylist(), strict=True))


@settings(PROPERTY, max_examples=80)
@given(history=HISTORIES, spine=SPINES, ttl_hours=st.integers(1, 8), shift_hours=st.sampled_from([-3, 0, 5]))
def test_every_row_is_what_brute_force_says_was_known(
    tmp_path: Path, history: list[Known], spine: list[tuple[str | None, datetime]], ttl_hours: int, shift_hours: int
) -> None:
    view = history_view(tmp_path, history, ttl_s=ttl_hours * 3600.0)
    shift = shift_hours * HOUR
    expected = [served(newest_known(history, key, at), at, ttl_hours * HOUR) for key, at in spine]
    assert join(view, spine_of([(key, at + shift) for key, at in spine]), shift) == expected


def test_rows_come_out_as_they_went_in_duplicates_included(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW, NOW, 1), Known("N2", NOW, NOW, 2)])
    rows = [("N2", NOW), ("N1", NOW), ("N2", NOW), (None, NOW), ("N1", NOW - HOUR), ("N2", NOW), ("N1", NOW)] * 300
    spine = spine_of(rows, note=pa.array([{"i": i} for i in range(len(rows))]))
    joined = OfflineStore([view]).as_of_join(spine, ["v.delay"], {"plane": "tail"}, "due")
    assert joined["v.delay"].to_pylist() == [2, 1, 2, None, None, 2, 1] * 300
    assert joined.select(spine.column_names).equals(spine)


@settings(PROPERTY, max_examples=40)
@given(history=HISTORIES, spine=SPINES, data=st.data())
def test_neither_the_order_of_rows_nor_that_of_views_matters(
    tmp_path: Path, history: list[Known], spine: list[tuple[str | None, datetime]], data: st.DataObject
) -> None:
    distinct = list({(row.key, row.event, row.created): row for row in history}.values())
    moved = data.draw(st.permutations(distinct))
    views = [history_view(tmp_path, distinct, name) for name in ("a", "b")]
    shuffled = [history_view(tmp_path, moved, name) for name in ("b", "a")]
    order = data.draw(st.permutations(range(len(spine))))
    names = ["a.delay", "a.delay" + STATE_SUFFIX, "b.delay", "b.delay" + STATE_SUFFIX]
    plain = OfflineStore(views).as_of_join(spine_of(spine), ["a.delay", "b.delay"], {"plane": "tail"}, "due")
    again = OfflineStore(shuffled).as_of_join(
        spine_of([spine[i] for i in order]), ["b.delay", "a.delay"], {"plane": "tail"}, "due"
    )
    assert again.select(names).to_pylist() == plain.select(names).take(pa.array(order, pa.int64())).to_pylist()


FLIGHTS = st.lists(st.tuples(st.sampled_from(["N1", "N2", None]), st.sampled_from(["N1", "N2"]), hours(-8, 8)))


@settings(PROPERTY, max_examples=40)
@given(history=HISTORIES, flights=FLIGHTS)
def test_one_view_may_be_joined_by_several_columns(
    tmp_path: Path, history: list[Known], flights: list[tuple[str | None, str, datetime]]
) -> None:
    view = history_view(tmp_path, history)
    rows = [(key, at) for key, _, at in flights]
    spine = spine_of(rows, before=pa.array([before for _, before, _ in flights], pa.string()))
    refs, by_key = ["v@previous.delay", "v.delay"], {"plane": "tail", "previous": "before"}
    joined = OfflineStore([view]).as_of_join(spine, refs, by_key, "due")
    for ref, keys in (("v.delay", spine["tail"].to_pylist()), ("v@previous.delay", spine["before"].to_pylist())):
        known = [served(newest_known(history, key, at), at, HOUR) for key, (_, at) in zip(keys, rows, strict=True)]
        assert list(zip(joined[ref].to_pylist(), joined[ref + STATE_SUFFIX].to_pylist(), strict=True)) == known


def test_a_key_may_be_made_of_the_columns_of_its_parts(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known(entity_key("a-b", -7), NOW, NOW, 1)], entity="stand")
    spine = pa.table({"gate": ["a-b", "a-b", None], "number": [-7, 7, -7], "due": pa.array([NOW] * 3, INSTANT)})
    joined = OfflineStore([view]).as_of_join(spine, ["v.delay"], {"stand": ("gate", "number")}, "due")
    assert joined["v.delay"].to_pylist() == [1, None, None]


def test_on_the_days_when_clocks_change_instants_count_and_not_wall_clocks(tmp_path: Path) -> None:
    zone = ZoneInfo("America/New_York")
    first = datetime(2013, 11, 3, 1, 30, tzinfo=zone)  # summer time, and an hour later it is half past one again
    second = first.replace(fold=1)
    spring = datetime(2013, 3, 10, 3, 0, tzinfo=zone)  # one minute after 01:59
    history = [
        Known("N1", each.astimezone(UTC), each.astimezone(UTC), i) for i, each in enumerate((spring, first, second))
    ]
    view = history_view(tmp_path, history, ttl_s=3600.0)
    minute = timedelta(minutes=1)
    instants = [each.astimezone(UTC) for each in (spring, first, second)]
    due = [at + change for at in instants for change in (-minute, timedelta())]
    spine = pa.table({"tail": ["N1"] * 6, "due": pa.array(due, pa.timestamp("s", tz="America/New_York"))})
    assert [(value, state) for value, state in join(view, spine)] == [
        (None, FeatureState.MISSING),
        (0, FeatureState.PRESENT),
        (0, FeatureState.STALE),
        (1, FeatureState.PRESENT),
        (1, FeatureState.PRESENT),
        (2, FeatureState.PRESENT),
    ]


def test_views_of_several_entities_are_joined_each_by_its_own_key(tmp_path: Path) -> None:
    plane = history_view(tmp_path, [Known("N1", NOW, NOW, 1)], "plane_stats")
    route = history_view(tmp_path, [Known("JFK-LAX", NOW, NOW, 2)], "route_stats", entity="route")
    spine = spine_of([("N1", NOW), ("N2", NOW)], route=["JFK-SFO", "JFK-LAX"])
    refs = ["route_stats.delay", "plane_stats.delay"]
    joined = OfflineStore([plane, route]).as_of_join(spine, refs, {"plane": "tail", "route": "route"}, "due")
    expected = ["tail", "due", "route"]
    expected += [name for ref in refs for name in (ref, ref + STATE_SUFFIX)]
    assert joined.column_names == expected
    assert joined["plane_stats.delay"].to_pylist() == [1, None]
    assert joined["route_stats.delay"].to_pylist() == [None, 2]


DEFAULTS = [
    (Field(name="x", type=FeatureType.INT64, default=0), 0),
    (Field(name="x", type=FeatureType.STRING, default=""), ""),
    (Field(name="x", type=FeatureType.DECIMAL, default="1.5", decimal_places=2), Decimal("1.50")),
]


@pytest.mark.parametrize(("field", "default"), DEFAULTS)
def test_an_absent_column_takes_its_default_where_a_row_is_known(tmp_path: Path, field: Field, default: object) -> None:
    path = write_source(tmp_path / "v.parquet", columns([Known("N1", NOW, NOW, 1)]))
    store = OfflineStore([make_view(field, path=path, name="v", ttl_s=3600.0)])
    spine = spine_of([("N1", NOW), ("N1", NOW + 2 * HOUR), ("N2", NOW)])
    joined = store.as_of_join(spine, ["v.x"], {"plane": "tail"}, "due")
    assert joined["v.x"].to_pylist() == [default, default, None]
    assert joined["v.x__state"].to_pylist() == ["default", "stale", "missing"]
    assert joined.schema.field("v.x").type == arrow_type(field)


VALUES: list[tuple[Field, Any]] = [
    (Field(name="x", type=FeatureType.BOOL), True),
    (Field(name="x", type=FeatureType.INT64), 2**63 - 1),
    (Field(name="x", type=FeatureType.FLOAT64), -0.0),
    (Field(name="x", type=FeatureType.STRING), "東京"),
    (Field(name="x", type=FeatureType.BYTES), b"\0\xff"),
    (Field(name="x", type=FeatureType.TIMESTAMP), NOW),
    (Field(name="x", type=FeatureType.DECIMAL, decimal_places=2), Decimal("-12345678901234567890.12")),
    (Field(name="x", type=FeatureType.FLOAT64, is_list=True), [1.5, -0.0]),
    (Field(name="x", type=FeatureType.STRING, is_list=True), []),
]


@pytest.mark.parametrize(("field", "value"), VALUES)
def test_every_type_keeps_its_values(tmp_path: Path, field: Field, value: Any) -> None:
    usual = {"entity_key": ["N1", "N2"], "event_time": [NOW] * 2, "created_time": [NOW] * 2}
    path = write_source(tmp_path / "v.parquet", usual | {"x": pa.array([value, None], arrow_type(field))})
    spine = spine_of([("N3", NOW), ("N2", NOW), ("N1", NOW)])
    joined = OfflineStore([make_view(field, path=path, name="v")]).as_of_join(spine, ["v.x"], {"plane": "tail"}, "due")
    assert repr(joined["v.x"].to_pylist()[:2]) == "[None, None]"
    assert joined["v.x"].combine_chunks()[2:].equals(pa.array([value], arrow_type(field)))
    assert str(joined["v.x"][2].as_py()) == str(value.astimezone(UTC) if isinstance(value, datetime) else value)
    assert joined["v.x__state"].to_pylist() == ["missing", "null", "present"]


def test_stale_begins_one_microsecond_past_the_ttl(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW, NOW, 1)], ttl_s=3600.0)
    at_ttl = NOW + HOUR
    assert join(view, spine_of([("N1", at_ttl), ("N1", at_ttl + timedelta(microseconds=1))])) == [
        (1, FeatureState.PRESENT),
        (1, FeatureState.STALE),
    ]


def test_a_spine_in_many_chunks_is_one_spine(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW, NOW, 1)])
    spine = pa.concat_tables([spine_of([("N1", NOW)]), spine_of([("N2", NOW)]), spine_of([("N1", NOW - HOUR)])])
    assert [value for value, _ in join(view, spine)] == [1, None, None]


def test_a_spine_that_has_a_results_name_is_refused(tmp_path: Path) -> None:
    for name in ("v.delay", "v.delay" + STATE_SUFFIX):
        with pytest.raises(InvalidRequest, match=f"the spine has a column '{name}'"):
            join(history_view(tmp_path, []), spine_of([("N1", NOW)], **{name: [1]}))


def test_what_is_not_declared_is_refused(tmp_path: Path) -> None:
    store = OfflineStore([history_view(tmp_path, [])])
    for ref in ("w.delay", "v.gate"):
        with pytest.raises(ConfigurationError):
            store.as_of_join(spine_of([]), [ref], {"plane": "tail"}, "due")


def test_no_rows_and_no_history_give_no_rows_and_missing(tmp_path: Path) -> None:
    view = history_view(tmp_path, [])
    assert join(view, spine_of([])) == []
    assert join(view, spine_of([("N1", NOW)])) == [(None, FeatureState.MISSING)]


def test_one_entitys_row_can_be_asked_for(tmp_path: Path) -> None:
    history = [Known("N1", NOW, NOW, 1), Known("N1", NOW + HOUR, NOW + HOUR, 2), Known("N2", NOW, NOW, 3)]
    path = write_source(tmp_path / "v.parquet", columns(history))
    fields = (Field(name="gate", type=FeatureType.STRING, default=""), Field(name="delay", type=FeatureType.INT64))
    store = OfflineStore([make_view(*fields, path=path, name="v")])
    known = store.known_row("v", "N1", to_us(NOW, ""))
    assert known is not None
    assert (known.event_us, known.values) == (to_us(NOW, ""), [ABSENT, 1])
    assert store.known_row("v", "N1", to_us(NOW, "") - 1) is None
    assert store.known_row("v", "N3", to_us(NOW, "")) is None
    with pytest.raises(ConfigurationError, match="'w' is not declared"):
        store.known_row("w", "N1", 0)
