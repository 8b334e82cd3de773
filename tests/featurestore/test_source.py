"""A file either fits its view exactly or is refused by view, path and column."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core_engine.errors import ConfigurationError, StoreUnavailable
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import to_us
from featurestore.source import read_source
from tests.featurestore.rows import HOUR, NOW, make_view, write_source

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


def test_a_feature_that_the_file_leaves_out_is_absent(tmp_path: Path) -> None:
    assert read_source(view_of(tmp_path, USUAL), ["delay"]).columns == {}


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
    ],
)
def test_a_column_of_another_kind_is_refused(tmp_path: Path, kind: FeatureType, column: pa.Array) -> None:
    view = view_of(tmp_path, USUAL | {kind.value: column}, *ALL_TYPES)
    with pytest.raises(ConfigurationError, match=rf"feature view v: source .*column {kind.value} is"):
        read_source(view, [kind.value])


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("event_time", pa.array([datetime(2013, 1, 1)] * 2), r"event_time is timestamp\[us\]; expected .* timezone"),
        ("created_time", pa.array([NOW] * 2, pa.timestamp("ns", tz="UTC")), r"created_time is timestamp\[ns, tz=UTC\]"),
        ("event_time", pa.array([1, 2]), "event_time is int64"),
        ("event_time", [NOW, None], "1 rows have no event_time"),
        ("created_time", [None, None], "2 rows have no created_time"),
        ("entity_key", [None, "N2"], "1 rows have no entity_key"),
        ("entity_key", pa.array([1, 2]), "entity_key is int64; expected string"),
    ],
)
def test_a_row_that_cannot_be_placed_is_refused(tmp_path: Path, column: str, values: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_source(view_of(tmp_path, USUAL | {column: values}), [])


def test_a_missing_key_or_clock_names_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"lacks \['created_time'\]; it has \['entity_key', 'event_time'\]"):
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
