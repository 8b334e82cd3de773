"""As-of joins: leak-free on both clocks against brute force, one output row per input row, in order."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.contracts import FeatureState
from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.codec import ABSENT
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import to_us
from featurestore.offline_store import STATE_SUFFIX, OfflineStore
from tests.featurestore.oracle import HISTORIES, SPINES, Known, columns, newest_known, served
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


def test_absent_columns_take_their_default_where_a_row_is_known(tmp_path: Path) -> None:
    fields = (
        Field(name="flights", type=FeatureType.INT64, default=0),
        Field(name="gate", type=FeatureType.STRING),
    )
    path = write_source(tmp_path / "v.parquet", columns([Known("N1", NOW, NOW, 1)]))
    store = OfflineStore([make_view(*fields, path=path, name="v", ttl_s=3600.0)])
    spine = spine_of([("N1", NOW), ("N1", NOW + 2 * HOUR), ("N2", NOW)])
    joined = store.as_of_join(spine, ["v.flights", "v.gate"], {"plane": "tail"}, "due")
    assert joined["v.flights"].to_pylist() == [0, 0, None]
    assert joined["v.flights__state"].to_pylist() == ["default", "stale", "missing"]
    assert joined["v.gate"].to_pylist() == [None, None, None]
    assert joined["v.gate__state"].to_pylist() == ["null", "stale", "missing"]
    assert joined.schema.field("v.flights").type == pa.int64()


def test_every_type_keeps_its_values(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "bool": True,
        "int64": 2**63 - 1,
        "float64": -0.0,
        "string": "東京",
        "bytes": b"\0\xff",
        "timestamp": NOW,
    }
    usual = {"entity_key": ["N1"], "event_time": [NOW], "created_time": [NOW]}
    typed = {name: pa.array([value], INSTANT if name == "timestamp" else None) for name, value in values.items()}
    path = write_source(tmp_path / "v.parquet", usual | typed)
    view = make_view(*(Field(name=kind.value, type=kind) for kind in FeatureType), path=path, name="v")
    refs = [f"v.{name}" for name in values]
    joined = OfflineStore([view]).as_of_join(spine_of([("N1", NOW)]), refs, {"plane": "tail"}, "due")
    assert {name: joined[f"v.{name}"][0].as_py() for name in values} == values
    assert str(joined["v.float64"][0].as_py()) == "-0.0"


def test_stale_begins_one_microsecond_past_the_ttl(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW, NOW, 1)], ttl_s=3600.0)
    at_ttl = NOW + HOUR
    assert join(view, spine_of([("N1", at_ttl), ("N1", at_ttl + timedelta(microseconds=1))])) == [
        (1, FeatureState.PRESENT),
        (1, FeatureState.STALE),
    ]


def test_nanoseconds_make_no_row_visible_too_early(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW, NOW, 1)])
    now_ns = to_us(NOW, "") * 1000
    due = pa.array([now_ns - 1, now_ns, now_ns + 1], pa.timestamp("ns", tz="UTC"))
    assert [value for value, _ in join(view, pa.table({"tail": ["N1"] * 3, "due": due}))] == [None, 1, 1]


def test_keys_may_be_dictionaries_or_large_strings(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW, NOW, 1)])
    for keys in (pa.array(["N1"]).dictionary_encode(), pa.array(["N1"], pa.large_string())):
        assert join(view, pa.table({"tail": keys, "due": pa.array([NOW], INSTANT)})) == [(1, FeatureState.PRESENT)]


def test_a_spine_in_many_chunks_is_one_spine(tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW, NOW, 1)])
    spine = pa.concat_tables([spine_of([("N1", NOW)]), spine_of([("N2", NOW)]), spine_of([("N1", NOW - HOUR)])])
    assert [value for value, _ in join(view, spine)] == [1, None, None]


@pytest.mark.parametrize(
    ("due", "found"),
    [
        (pa.array([datetime(2013, 1, 1)]), r"timestamp\[us\]"),
        (pa.array([None], INSTANT), "1 nulls"),
        (pa.array(["2013-01-01T00:00:00Z"]), "string"),
    ],
)
def test_an_instant_that_is_none_is_refused(tmp_path: Path, due: pa.Array, found: str) -> None:
    view = history_view(tmp_path, [])
    with pytest.raises(InvalidRequest, match=f"spine column due has {found}: expected a timestamp with a timezone"):
        join(view, pa.table({"tail": ["N1"], "due": due}))


def test_a_spine_that_lacks_or_mistypes_a_column_is_refused(tmp_path: Path) -> None:
    view = history_view(tmp_path, [])
    store = OfflineStore([view])
    spine = spine_of([("N1", NOW)], number=[1])
    for entity_columns, time_column, message in (
        ({"plane": "tail"}, "when", "the spine has no column 'when'"),
        ({"plane": "plane"}, "due", "the spine has no column 'plane'"),
        ({"plane": "number"}, "due", "spine column number is int64: expected strings"),
        ({"route": "tail"}, "due", "entity_columns lacks entity 'plane' of feature view v"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            store.as_of_join(spine, ["v.delay"], entity_columns, time_column)


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
    fields = (Field(name="gate", type=FeatureType.STRING), Field(name="delay", type=FeatureType.INT64))
    store = OfflineStore([make_view(*fields, path=path, name="v")])
    known = store.known_row("v", "N1", to_us(NOW, ""))
    assert known is not None
    assert (known.event_us, known.values) == (to_us(NOW, ""), [ABSENT, 1])
    assert store.known_row("v", "N1", to_us(NOW, "") - 1) is None
    assert store.known_row("v", "N3", to_us(NOW, "")) is None
    with pytest.raises(ConfigurationError, match="'w' is not declared"):
        store.known_row("w", "N1", 0)
