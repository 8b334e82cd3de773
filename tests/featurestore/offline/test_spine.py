"""What a spine may be made of, and what is refused by the name of its column."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import entity_key
from core_engine.errors import InvalidRequest
from featurestore.catalog import compile_view
from featurestore.offline.spine import EntityColumns, spine_instants, spine_keys
from tests.featurestore.rows import PROPERTY, make_view

INSTANT = pa.timestamp("us", tz="UTC")
VIEW = compile_view(make_view(name="v"))


def keys_of(entity_columns: EntityColumns, **columns: Any) -> list[str | None]:
    keys: list[str | None] = spine_keys(pa.table(columns), VIEW, entity_columns).to_pylist()
    return keys


@PROPERTY
@given(parts=st.lists(st.tuples(st.text(alphabet="a-%25Dé"), st.integers(-(2**63), 2**63 - 1))))
def test_a_key_made_of_its_parts_is_the_one_that_a_request_makes(parts: list[tuple[str, int]]) -> None:
    gates, numbers = pa.array([gate for gate, _ in parts], pa.string()), pa.array([n for _, n in parts], pa.int64())
    made = keys_of({"plane": ("gate", "number")}, gate=gates, number=numbers)
    assert made == [entity_key(gate, number) for gate, number in parts]


def test_a_key_lacking_a_part_is_null() -> None:
    gates, numbers = pa.array(["A", None, "A", None]), pa.array([1, 1, None, None], pa.uint8())
    expected = ["A-1", None, None, None]
    assert keys_of({"plane": ["gate", "number"]}, gate=gates, number=numbers) == expected
    assert keys_of({"plane": ["gate", "number"]}, gate=gates.dictionary_encode(), number=numbers) == expected
    assert keys_of({"plane": ["number"]}, number=numbers) == ["1", "1", None, None]


def test_keys_may_be_dictionaries_large_strings_or_nulls_in_any_chunks() -> None:
    chunks = pa.chunked_array([pa.array([key]).dictionary_encode() for key in ("N2", "N1")])
    for column in (chunks, pa.array(["N2", "N1"], pa.large_string()), pa.chunked_array([["N2"], ["N1"]])):
        assert keys_of({"plane": "tail"}, tail=column) == ["N2", "N1"]
    assert keys_of({"plane": "tail"}, tail=pa.nulls(2)) == [None, None]
    assert keys_of({"plane": "tail"}, tail=pa.chunked_array([], pa.string())) == []


def test_an_instant_is_what_its_zone_and_unit_say() -> None:
    for unit, number in (("s", 7), ("ms", 7_000), ("us", 7_000_000), ("ns", 7_000_000_000)):
        due = pa.array([number], pa.timestamp(unit, tz="America/New_York"))
        assert spine_instants(pa.table({"due": due}), "due").to_pylist() == [7_000_000]


def test_nanoseconds_are_floored_so_that_no_row_is_visible_too_early() -> None:
    due = pa.array([-1, 999, 1000, 1001], pa.timestamp("ns", tz="UTC"))
    assert spine_instants(pa.table({"due": due}), "due").to_pylist() == [-1, 0, 1, 1]


@pytest.mark.parametrize(
    ("due", "found"),
    [
        (pa.array([datetime(2013, 1, 1)]), r"timestamp\[us\]"),
        (pa.array([None], INSTANT), "1 nulls"),
        (pa.array(["2013-01-01T00:00:00Z"]), "string"),
    ],
)
def test_an_instant_that_is_none_is_refused(due: pa.Array, found: str) -> None:
    with pytest.raises(InvalidRequest, match=f"spine column due has {found}: expected a timestamp with a timezone"):
        spine_instants(pa.table({"due": due}), "due")


@pytest.mark.parametrize(
    ("entity_columns", "message"),
    [
        ({"plane": "plane"}, r"the spine has no column 'plane'; it has \['tail'"),
        ({"plane": "number"}, "the spine has 2 columns 'number'"),
        ({"plane": "ratio"}, "spine column ratio has double: expected strings, as contracts.entity_key writes them"),
        ({"plane": ("tail", "ratio")}, "spine column ratio has double: expected strings or integers"),
        ({"plane": ("tail", "late")}, "spine column late has bool: expected strings or integers"),
        ({"route": "tail"}, r"entity_columns lacks entity 'plane' of feature view v; it has \['route'\]"),
        ({"plane": ()}, "entity_columns lacks entity 'plane' of feature view v"),
    ],
)
def test_a_spine_that_lacks_or_mistypes_a_key_is_refused(entity_columns: EntityColumns, message: str) -> None:
    columns: list[Any] = [["N1"], [1], [2], [0.5], [True]]
    spine = pa.table(columns, names=["tail", "number", "number", "ratio", "late"])
    with pytest.raises(InvalidRequest, match=message):
        spine_keys(spine, VIEW, entity_columns)
