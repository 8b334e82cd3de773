"""Checks a request's inputs against what the predictor declares. Pure: every door calls it through the ladder.

Strict, because a silent conversion becomes a wrong feature:

- `int` takes integers of 64 bits; 5.0, "5" and true are refused.
- `float` takes integers too (a JSON writer drops `.0`); true, NaN and infinities are refused.
- `bool` takes true and false only.
- `string` must be encodable (no lone surrogates) and within `max_length` characters.
- `timestamp` takes ISO 8601 text or a datetime, with an offset; its own offset is kept, because hour and weekday are
  read in it.
- null is absence: refused where the field is required or part of an entity's key. Unknown fields are refused.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NoReturn

from core_engine.contracts import Scalar, entity_key
from core_engine.errors import InvalidRequest
from core_engine.predictors.declaration import InputField, InputKind, Predictor

INT64 = 2**63
AWARE = "an ISO 8601 timestamp with an offset, such as 2013-11-05T17:30:00-05:00"


def check_inputs(predictor: Predictor, inputs: Mapping[str, object]) -> dict[str, Scalar]:
    """Every declared field with its checked value; None where an optional one is absent. Timestamps become datetimes.

    Raises:
        InvalidRequest: names field, value and expectation.
    """
    declared = [field.name for field in predictor.inputs]
    for name, value in inputs.items():
        if name not in declared:
            _refuse(name, value, f"one of the declared inputs: {', '.join(declared) or 'none'}", "is unknown")
    return {field.name: _check(field, inputs.get(field.name)) for field in predictor.inputs}


def entity_keys(predictor: Predictor, inputs: Mapping[str, Scalar]) -> dict[str, str]:
    """The key of every entity that the predictor reads, from checked inputs.

    Raises:
        InvalidRequest: a part of a key is absent or empty.
    """
    keys = {}
    for use in predictor.entities:
        parts = []
        for name in use.fields:
            part = inputs.get(name)
            if not isinstance(part, str | int) or part == "":
                _refuse(name, part, f"a value: it is part of the key of entity {use.entity}", "is missing")
            parts.append(part)
        keys[use.entity] = entity_key(*parts)
    return keys


def lookup_key(predictor: Predictor, inputs: Mapping[str, Scalar]) -> str:
    """The key of a precomputed prediction, from checked inputs. A timestamp counts as the instant that it is.

    Raises:
        InvalidRequest: the predictor declares no such key, or a part of it is empty.
    """
    if predictor.precomputed is None:
        raise InvalidRequest(f"predictor {predictor.name} declares no key of precomputed predictions")
    return entity_key(*(_key_part(name, inputs.get(name)) for name in predictor.precomputed.key))


def _key_part(name: str, value: Scalar) -> str | int:
    if isinstance(value, datetime):
        instant = value.astimezone(UTC)
        micros = f".{instant.microsecond:06d}" if instant.microsecond else ""
        return f"{instant:%Y%m%dT%H%M%S}{micros}Z"  # no dash and no colon, so that it stands in a URL as it is
    if not isinstance(value, str | int) or value == "":
        _refuse(name, value, "a value: it is part of the key of precomputed predictions", "is missing")
    return value


def _check(field: InputField, value: object) -> Scalar:
    if value is None:
        if field.required:
            _refuse(field.name, value, f"a value of kind {field.kind}", "is missing")
        return None
    return _CHECKS[field.kind](field, value)


def _string(field: InputField, value: object) -> str:
    if not isinstance(value, str):
        _refuse(field.name, value, "a string")
    if len(value) > field.max_length:
        _refuse(field.name, value, f"at most {field.max_length} characters", f"has {len(value)} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(field.name, value, "text without lone surrogates")
    return value


def _int(field: InputField, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(field.name, value, "an integer, without fraction, quotes or exponent")
    if not -INT64 <= value < INT64:
        _refuse(field.name, value, "an integer of 64 bits")
    _bounded(field, value)
    return value


def _float(field: InputField, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        _refuse(field.name, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse(field.name, value, "a finite number")
    _bounded(field, number)
    return number


def _bool(field: InputField, value: object) -> bool:
    if not isinstance(value, bool):
        _refuse(field.name, value, "true or false")
    return value


def _timestamp(field: InputField, value: object) -> datetime:
    instant = value
    if isinstance(value, str) and len(value) <= field.max_length:
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            _refuse(field.name, value, AWARE)
    if not isinstance(instant, datetime):
        _refuse(field.name, value, AWARE)
    if instant.utcoffset() is None:
        _refuse(field.name, value, AWARE, "has no offset")
    try:
        instant.astimezone(UTC)
    except OverflowError:
        _refuse(field.name, value, "an instant within the years 1 to 9999 in UTC")
    return instant


_CHECKS: Mapping[InputKind, Callable[[InputField, object], Scalar]] = {
    InputKind.STRING: _string,
    InputKind.INT: _int,
    InputKind.FLOAT: _float,
    InputKind.BOOL: _bool,
    InputKind.TIMESTAMP: _timestamp,
}


def _bounded(field: InputField, value: float) -> None:
    if field.minimum is not None and value < field.minimum:
        _refuse(field.name, value, f"at least {field.minimum:g}", "is too small")
    if field.maximum is not None and value > field.maximum:
        _refuse(field.name, value, f"at most {field.maximum:g}", "is too large")


def _refuse(name: str, value: object, expected: str, fault: str = "has the wrong kind") -> NoReturn:
    shown = "" if value is None else f" = {reprlib.repr(value)}"
    raise InvalidRequest(
        f"input {reprlib.repr(name)}{shown} {fault}; expected {expected}", field=name, value=value, expected=expected
    )
