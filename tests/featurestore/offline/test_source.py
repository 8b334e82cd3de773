"""A file either fits its view exactly or is refused by view, path and column."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError, StoreUnavailable
from featurestore.codec import RowCodec
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import to_us
from featurestore.offline.source import read_source
from featurestore.offline.source_schema import SourceDrift, arrow_type, source_drift
from tests.featurestore.rows import HOUR, NOW, PROPERTY, make_view, write_source
from tests.featurestore.values import fields, same, values_of

USUAL = {"entity_key": ["N1", "N2"], "event_time": [NOW, NOW + HOUR], "created_time": [NOW + HOUR, NOW + HOUR]}
ALL_TYPES = [Field(name=kind.value, type=kind) for kind in FeatureType]


def view_of(tmp_path: Path, columns: dict[str, Any], *fields: Field) -> FeatureView:
    return make_view(*fields, path=write_source(tmp_path / "history.parquet", columns), name="v")


def test_rows_come_in_the_files_order_with_both_clocks_in_microseconds(tmp_path: Path) -> None:
    source = read_source(view_of(tmp_path, USUAL | {"delay": [3, None]}), ["delay"])
    assert source.keys.to_pylist() == ["N1", "N2"]
    assert source.event_us.to_pylist() == [to_us(NOW, ""), to_us(NOW + HOUR, "")]
    assert source.created_us.to_pylist() == [to_us(NOW + HOUR, "")] * 2
    assert source.columns["delay"].to_pylist() == [3, None]
    assert len(source) == 2


def test_a_shift_moves_both_clocks_and_no_value(tmp_path: Path) -> None:
    due = Field(name="due", type=FeatureType.TIMESTAMP)
    view = view_of(tmp_path, USUAL | {"due": pa.array([NOW, None], pa.timestamp("us", tz="UTC"))}, due)
    source = read_source(view, ["due"], timedelta(days=7, microseconds=1))
    assert source.event_us[0].as_py() == to_us(NOW, "") + 7 * 86_400_000_000 + 1
    assert source.created_us[0].as_py() == to_us(NOW + HOUR, "") + 7 * 86_400_000_000 + 1
    assert source.columns["due"].to_pylist() == [NOW, None]


def test_one_entitys_rows_can_be_read_alone(tmp_path: Path) -> None:
    view = view_of(tmp_path, USUAL | {"delay": [3, 4]})
    assert read_source(view, ["delay"], key="N2").columns["delay"].to_pylist() == [4]
    assert len(read_source(view, ["delay"], key="N3")) == 0


def test_a_field_with_a_default_may_be_no_column_of_the_source(tmp_path: Path) -> None:
    view = view_of(tmp_path, USUAL, Field(name="delay", type=FeatureType.INT64, default=0))
    assert read_source(view, ["delay"]).columns == {}
    assert source_drift(view) == SourceDrift(defaulted=("delay",), undeclared=())


def test_a_column_lacking_without_a_default_is_refused_by_view_and_column(tmp_path: Path) -> None:
    view = view_of(tmp_path, USUAL | {"gate": ["A", "B"]})
    with pytest.raises(
        ConfigurationError,
        match=r"feature view v: source .* lacks column 'delay'; it has .*'gate'\].* declare a default",
    ):
        read_source(view, ["delay"])
    assert len(read_source(view, [])) == 2  # features that are not asked for are not looked at


def test_a_column_that_nobody_declared_is_passed_over_and_reported(tmp_path: Path) -> None:
    view = view_of(tmp_path, USUAL | {"delay": [3, 4], "gate": ["A", "B"]})
    assert list(read_source(view, ["delay"]).columns) == ["delay"]
    assert source_drift(view) == SourceDrift(defaulted=(), undeclared=("gate",))


def test_a_column_that_nobody_declared_is_refused_where_the_source_says_so(tmp_path: Path) -> None:
    view = view_of(tmp_path, USUAL | {"delay": [3, 4], "gate": ["A", "B"]})
    strict = msgspec.structs.replace(view, source=msgspec.structs.replace(view.source, refuse_extra=True))
    with pytest.raises(ConfigurationError, match=r"feature view v: source .* has \['gate'\], which the view does not"):
        read_source(strict, ["delay"])


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_column_that_one_of_several_files_lacks_is_refused_by_file(tmp_path: Path, first: str) -> None:
    """Arrow would fill in nulls, or, where the first file lacks it, drop the column of all others."""
    write_source(tmp_path / f"{first}.parquet", USUAL | {"delay": [1, 2]})
    write_source(tmp_path / f"{'b' if first == 'a' else 'a'}.parquet", USUAL)
    view = make_view(Field(name="delay", type=FeatureType.INT64, default=0), path=str(tmp_path), name="v")
    with pytest.raises(ConfigurationError, match=r"feature view v: source .* lacks column 'delay' in '.*\.parquet'"):
        read_source(view, ["delay"])


def test_a_column_of_another_type_in_one_of_several_files_is_refused_by_file(tmp_path: Path) -> None:
    """Arrow would read the text as numbers."""
    write_source(tmp_path / "a.parquet", USUAL | {"delay": [1, 2]})
    write_source(tmp_path / "b.parquet", USUAL | {"delay": ["3", "4"]})
    with pytest.raises(ConfigurationError, match=r"column delay is string in '.*b\.parquet'; expected int64"):
        read_source(make_view(path=str(tmp_path)), ["delay"])


def test_a_column_may_be_in_the_names_of_folders(tmp_path: Path) -> None:
    for terminal in (1, 2):
        (tmp_path / f"terminal={terminal}").mkdir()
        write_source(tmp_path / f"terminal={terminal}" / "a.parquet", USUAL)
    view = make_view(Field(name="terminal", type=FeatureType.INT64), path=str(tmp_path))
    assert read_source(view, ["terminal"]).columns["terminal"].to_pylist() == [1, 1, 2, 2]


def test_several_files_are_one_history(tmp_path: Path) -> None:
    write_source(tmp_path / "a.parquet", USUAL | {"delay": [1, 2]})
    write_source(tmp_path / "b.parquet", USUAL | {"delay": [3, 4]})
    source = read_source(make_view(path=str(tmp_path)), ["delay"])
    assert source.columns["delay"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "column", "values"),
    [
        (FeatureType.BOOL, pa.array([True, None]), [True, None]),
        (FeatureType.INT64, pa.array([-(2**63), 2**63 - 1]), [-(2**63), 2**63 - 1]),
        (FeatureType.INT64, pa.array([7, 8], pa.uint8()), [7, 8]),
        (FeatureType.FLOAT64, pa.array([0.5, None], pa.float32()), [0.5, None]),
        (FeatureType.STRING, pa.array(["é", ""], pa.large_string()), ["é", ""]),
        (FeatureType.STRING, pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (FeatureType.BYTES, pa.array([b"\xff", None]), [b"\xff", None]),
        (FeatureType.TIMESTAMP, pa.array([NOW, None], pa.timestamp("us", tz="America/New_York")), [NOW, None]),
        (FeatureType.DECIMAL, pa.array([Decimal("12"), None], pa.decimal128(4, 0)), [Decimal("12"), None]),
        (FeatureType.DECIMAL, pa.array([Decimal(10**38 - 1), Decimal("1.00")], pa.decimal256(60, 2)), [10**38 - 1, 1]),
    ],
)
def test_a_column_of_its_kind_is_read_exactly(tmp_path: Path, kind: FeatureType, column: pa.Array, values: Any) -> None:
    view = view_of(tmp_path, USUAL | {kind.value: column}, *ALL_TYPES)
    assert read_source(view, [kind.value]).columns[kind.value].to_pylist() == values


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (FeatureType.BOOL, pa.array([0, 1])),
        (FeatureType.INT64, pa.array([1.0, 2.0])),
        (FeatureType.INT64, pa.array([2**63, 0], pa.uint64())),
        (FeatureType.INT64, pa.array([True, False])),
        (FeatureType.FLOAT64, pa.array([1, 2])),
        (FeatureType.STRING, pa.array([1, 2])),
        (FeatureType.STRING, pa.array([b"a", b"b"])),
        (FeatureType.BYTES, pa.array(["a", "b"])),
        (FeatureType.TIMESTAMP, pa.array([datetime(2013, 1, 1)] * 2)),
        (FeatureType.TIMESTAMP, pa.array([1, 2])),
        (FeatureType.DECIMAL, pa.array([1.5, 2.5])),
        (FeatureType.DECIMAL, pa.array([Decimal("0.5"), None], pa.decimal128(4, 1))),
        (FeatureType.DECIMAL, pa.array([Decimal(10**38), None], pa.decimal256(60, 0))),
        (FeatureType.INT64, pa.array([[1], [2]])),
    ],
)
def test_a_column_of_another_kind_is_refused(tmp_path: Path, kind: FeatureType, column: pa.Array) -> None:
    view = view_of(tmp_path, USUAL | {kind.value: column}, *ALL_TYPES)
    with pytest.raises(ConfigurationError, match=rf"feature view v: source .*column {kind.value} is"):
        read_source(view, [kind.value])


@pytest.mark.parametrize(
    ("kind", "column", "values"),
    [
        (FeatureType.FLOAT64, pa.array([[0.5, math.inf], None], pa.list_(pa.float32())), [[0.5, math.inf], None]),
        (FeatureType.FLOAT64, pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)), [[1.0, 2.0], [3.0, 4.0]]),
        (FeatureType.STRING, pa.array([["", "é"], []], pa.large_list(pa.large_string())), [["", "é"], []]),
        (FeatureType.TIMESTAMP, pa.array([[NOW], []], pa.list_(pa.timestamp("us", tz="Asia/Tokyo"))), [[NOW], []]),
        (FeatureType.DECIMAL, pa.array([[Decimal(7)], []], pa.list_(pa.decimal128(9, 0))), [[Decimal(7)], []]),
    ],
)
def test_a_column_of_lists_is_read_exactly(
    tmp_path: Path, kind: FeatureType, column: pa.Array, values: list[Any]
) -> None:
    view = view_of(tmp_path, USUAL | {"f": column}, Field(name="f", type=kind, is_list=True))
    assert read_source(view, ["f"]).columns["f"].to_pylist() == values


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, 2.0]),
        pa.array([[1], [2]]),
        pa.array([[[1.0]], [[2.0]]]),
    ],
    ids=["no list", "of another type", "of lists"],
)
def test_a_column_that_is_no_list_of_its_type_is_refused(tmp_path: Path, column: pa.Array) -> None:
    view = view_of(tmp_path, USUAL | {"last": column}, Field(name="last", type=FeatureType.FLOAT64, is_list=True))
    with pytest.raises(
        ConfigurationError, match=r"column last is .*; expected a list of float64, as the view declares"
    ):
        read_source(view, ["last"])


@pytest.mark.parametrize(
    ("field", "column", "message"),
    [
        (Field(name="f", type=FeatureType.FLOAT64, refuse_nan=True), pa.array([None, math.nan]), "is NaN"),
        (
            Field(name="f", type=FeatureType.FLOAT64, refuse_nan=True, is_list=True),
            pa.array([[], [0.0, math.nan]]),
            "is NaN",
        ),
        (Field(name="f", type=FeatureType.INT64, is_list=True), pa.array([[1], [2, None]]), "has a null in its list"),
    ],
)
def test_a_value_that_is_refused_is_named_with_its_row_and_entity(
    tmp_path: Path, field: Field, column: pa.Array, message: str
) -> None:
    view = view_of(tmp_path, USUAL | {"f": column}, field)
    with pytest.raises(ConfigurationError, match=rf"view v: source .*: column f of row 1 \(entity 'N2'\) {message}"):
        read_source(view, ["f"])


def test_nan_is_a_value_where_it_is_not_refused(tmp_path: Path) -> None:
    field = Field(name="f", type=FeatureType.FLOAT64)
    source = read_source(view_of(tmp_path, USUAL | {"f": pa.array([math.nan, None])}, field), ["f"])
    assert math.isnan(source.columns["f"][0].as_py())
    assert source.columns["f"].null_count == 1


@PROPERTY
@given(st.data())
def test_what_a_source_gives_is_what_the_online_store_gives_back(tmp_path: Path, data: st.DataObject) -> None:
    field = data.draw(fields("f"))
    values = data.draw(st.lists(st.one_of(st.none(), values_of(field)), min_size=2, max_size=2))
    view = view_of(tmp_path, USUAL | {"f": pa.array(values, arrow_type(field))}, field)
    codec = RowCodec(view)
    for wanted, read in zip(values, read_source(view, ["f"]).columns["f"].to_pylist(), strict=True):
        assert same(read, wanted)
        assert same(codec.decode(codec.encode({"f": read}))[0], wanted)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("event_time", pa.array([datetime(2013, 1, 1)] * 2), r"event_time is timestamp\[us\]; expected .* timezone"),
        ("created_time", pa.array([NOW] * 2, pa.timestamp("ns", tz="UTC")), r"created_time is timestamp\[ns, tz=UTC\]"),
        ("event_time", pa.array([1, 2]), "event_time is int64"),
        ("event_time", [NOW, None], "1 rows have no event_time, the first is row 1; drop or repair"),
        ("created_time", [None, None], "2 rows have no created_time"),
        ("entity_key", [None, "N2"], "1 rows have no entity_key"),
        ("entity_key", pa.array([1, 2]), "entity_key is int64; expected string"),
    ],
)
def test_a_row_that_cannot_be_placed_is_refused(tmp_path: Path, column: str, values: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_source(view_of(tmp_path, USUAL | {column: values}), [])


def test_a_missing_key_or_clock_names_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"lacks column 'created_time'; it has \['entity_key', 'event_time'\]"):
        read_source(view_of(tmp_path, {name: USUAL[name] for name in ("entity_key", "event_time")}), [])


def test_no_file_and_no_parquet_are_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"feature view v: source .*nowhere.parquet' does not exist"):
        read_source(make_view(path=str(tmp_path / "nowhere.parquet"), name="v"), [])
    (tmp_path / "notes.parquet").write_text("not Parquet at all")
    with pytest.raises(ConfigurationError, match=r"notes.parquet' is not Parquet"):
        read_source(make_view(path=str(tmp_path / "notes.parquet")), [])


def test_a_disk_that_fails_is_unavailable_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(5, "Input/output error")

    view = view_of(tmp_path, USUAL)
    monkeypatch.setattr(pq, "ParquetDataset", fail)
    with pytest.raises(StoreUnavailable, match=r"cannot be read: .*Input/output error"):
        read_source(view, [])
