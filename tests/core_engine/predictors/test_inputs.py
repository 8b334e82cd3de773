"""Inputs are taken exactly as declared or refused by name; no input is a crash."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import EMPTY
from core_engine.errors import InvalidRequest
from core_engine.predictors.declaration import EntityUse, InputField, InputKind, LMGenerate, Predictor
from core_engine.predictors.inputs import check_inputs, entity_keys

FIELDS = {
    "text": InputField(name="text", kind=InputKind.STRING, max_length=5),
    "count": InputField(name="count", kind=InputKind.INT, required=False, minimum=-3, maximum=9),
    "big": InputField(name="big", kind=InputKind.INT, required=False),
    "rate": InputField(name="rate", kind=InputKind.FLOAT, required=False, minimum=0.5, maximum=1.5),
    "is_on": InputField(name="is_on", kind=InputKind.BOOL, required=False),
    "at": InputField(name="at", kind=InputKind.TIMESTAMP, required=False),
}
PREDICTOR = Predictor(
    name="p",
    version=1,
    owner="tests",
    model=LMGenerate(system_prompt=""),
    inputs=tuple(FIELDS.values()),
    entities=(EntityUse(entity="thing", fields=("text", "count")),),
)
EASTERN = timezone(timedelta(hours=-5))


def checked(**inputs: Any) -> Any:
    return check_inputs(PREDICTOR, {"text": "abc"} | inputs)


@pytest.mark.parametrize(
    ("name", "given_value", "taken"),
    [
        ("text", "", ""),
        ("text", "äöü🎈x", "äöü🎈x"),
        ("count", -3, -3),
        ("count", 9, 9),
        ("big", 2**63 - 1, 2**63 - 1),
        ("big", -(2**63), -(2**63)),
        ("rate", 1, 1.0),
        ("rate", 0.5, 0.5),
        ("is_on", False, False),
        ("at", "2013-11-05T17:30:00-05:00", datetime(2013, 11, 5, 17, 30, tzinfo=EASTERN)),
        ("at", "2013-11-05T22:30:00Z", datetime(2013, 11, 5, 22, 30, tzinfo=UTC)),
        ("at", datetime(2013, 11, 5, tzinfo=UTC), datetime(2013, 11, 5, tzinfo=UTC)),
    ],
)
def test_values_that_are_taken(name: str, given_value: object, taken: object) -> None:
    value = checked(**{name: given_value})[name]
    assert value == taken
    assert type(value) is type(taken)


@pytest.mark.parametrize(
    ("name", "value", "expectation"),
    [
        ("text", 5, "a string"),
        ("text", "abcdef", "at most 5 characters"),
        ("text", "\ud800", "lone surrogates"),
        ("text", None, "a value of kind string"),
        ("count", 5.0, "an integer"),
        ("count", "5", "an integer"),
        ("count", True, "an integer"),
        ("count", 10, "at most 9"),
        ("count", -4, "at least -3"),
        ("big", 2**63, "64 bits"),
        ("big", -(2**63) - 1, "64 bits"),
        ("rate", "1.0", "a number"),
        ("rate", True, "a number"),
        ("rate", float("nan"), "finite"),
        ("rate", float("inf"), "finite"),
        ("rate", 10**400, "finite"),
        ("rate", 0.4, "at least 0.5"),
        ("rate", 1.6, "at most 1.5"),
        ("is_on", 1, "true or false"),
        ("is_on", "true", "true or false"),
        ("at", "2013-11-05T17:30:00", "with an offset"),
        ("at", datetime(2013, 11, 5), "with an offset"),
        ("at", "tomorrow", "with an offset"),
        ("at", 1383690600, "with an offset"),
        ("at", "0001-01-01T00:00:00+14:00", "years 1 to 9999"),
        ("at", "2013-11-05T17:30:00Z" + " " * 100, "with an offset"),
        ("nothing", 1, "text, count, big, rate, is_on, at"),
    ],
)
def test_values_that_are_refused_by_field_value_and_expectation(name: str, value: object, expectation: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(**{name: value})
    assert caught.value.field == name
    assert caught.value.value is value
    assert expectation in str(caught.value.expected)
    assert name in str(caught.value)
    assert caught.value.status == 422


def test_a_message_shows_the_start_of_a_long_value() -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(text="x" * 10_000)
    assert len(str(caught.value)) < 200


def test_optional_fields_left_out_or_null_are_absent() -> None:
    assert checked(count=None) == {"text": "abc", "count": None, "big": None, "rate": None, "is_on": None, "at": None}


def test_a_key_is_made_of_its_fields_in_order() -> None:
    assert entity_keys(PREDICTOR, checked(text="a-b", count=7)) == {"thing": "a%2Db-7"}


@pytest.mark.parametrize("inputs", [{"text": "", "count": 1}, {"text": "a"}])
def test_a_key_with_a_part_missing_is_refused(inputs: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="part of the key of entity thing"):
        entity_keys(PREDICTOR, checked(**inputs))


def test_a_predictor_without_inputs_takes_none() -> None:
    bare = Predictor(name="p", version=1, owner="tests", model=LMGenerate(system_prompt=""))
    assert check_inputs(bare, EMPTY) == {}
    with pytest.raises(InvalidRequest, match="declared inputs: none"):
        check_inputs(bare, {"x": 1})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes() | st.characters(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*FIELDS, "other"]), json_values))
def test_no_input_is_a_crash_and_what_passes_is_of_its_kind(inputs: dict[str, Any]) -> None:
    try:
        values = check_inputs(PREDICTOR, inputs)
        keys = entity_keys(PREDICTOR, values)
    except InvalidRequest as error:
        faults = (error.field, error.expected)
        assert all(faults)
        return
    kinds = {"text": str, "count": int, "big": int, "rate": float, "is_on": bool, "at": datetime}
    for name, value in values.items():
        assert value is None or type(value) is kinds[name]
        assert not isinstance(value, datetime) or value.utcoffset() is not None
    assert keys["thing"].encode()


@given(st.datetimes(timezones=st.timezones()))
def test_every_aware_instant_survives_its_text(instant: datetime) -> None:
    try:
        instant.astimezone(UTC)
    except OverflowError:
        return
    assert checked(at=instant.isoformat())["at"] == instant.replace(tzinfo=timezone(instant.utcoffset() or timedelta()))
