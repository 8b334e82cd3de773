"""A changed declaration is told by the innermost fields that differ, whatever stands around them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.definitions import FeatureType, Field
from featurestore.lifecycle.differences import UNSET, Difference, differences
from tests.featurestore.rows import make_view

JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=3),
    max_leaves=8,
)
VIEW = make_view(
    Field(name="delay", type=FeatureType.INT64, default=0), Field(name="gate", type=FeatureType.STRING), name="v"
)


def told(change: dict[str, Any]) -> list[str]:
    held, declared = (msgspec.to_builtins(view) for view in (VIEW, msgspec.structs.replace(VIEW, **change)))
    return list(map(str, differences(held, declared)))


@given(held=JSON, declared=JSON)
def test_there_are_differences_exactly_where_values_differ(held: Any, declared: Any) -> None:
    found = list(differences(held, declared))
    assert bool(found) == (held != declared)
    assert all(difference.held != difference.declared for difference in found)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ttl_s": 7.0}, ["ttl_s: 3600.0 -> 7.0"]),
        ({"source": msgspec.structs.replace(VIEW.source, path="b")}, ["source.path: 'none' -> 'b'"]),
        (
            {"schema": (Field(name="new", type=FeatureType.BOOL), *VIEW.schema)},
            ["schema.new: unset -> {'name': 'new', 'type': 'bool'}"],
        ),
        ({"schema": VIEW.schema[:1]}, ["schema.gate: {'name': 'gate', 'type': 'string'} -> unset"]),
        ({"schema": VIEW.schema[::-1]}, ["schema (order): ['delay', 'gate'] -> ['gate', 'delay']"]),
        (
            {"schema": (msgspec.structs.replace(VIEW.schema[0], default=None), VIEW.schema[1])},
            ["schema.delay.default: 0 -> unset"],
        ),
        ({"owner": "us", "description": "x"}, ["owner: 'tests' -> 'us'", "description: '' -> 'x'"]),
    ],
)
def test_each_is_told_by_its_path_and_both_sides(change: dict[str, Any], expected: list[str]) -> None:
    assert told(change) == expected


def test_items_without_distinct_names_are_one_difference() -> None:
    held, declared = [{"name": "a"}, {"name": "a"}], [{"name": "a"}]
    assert list(differences({"x": held}, {"x": declared})) == [Difference("x", held, declared)]
    assert list(differences([1, 2], [1], "y")) == [Difference("y", [1, 2], [1])]
    assert list(differences({}, {"z": None})) == [Difference("z", UNSET, None)]
