"""How one field is written: a slot of its row, or bytes after all slots whose length is the slot.

Scalars have slots of one size: a bool, an int64, a float64, microseconds since 1970, or the 16 bytes of a decimal's
whole number of units. Strings, bytes and lists go to the tail. A list of values of one size is those, end to end; one
of strings or bytes is their number, their lengths and then their bytes. `codec` makes rows of both.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import Any, Final

from core_engine.errors import InvalidRequest
from featurestore.definitions import DECIMAL_DIGITS, FeatureType, Field
from featurestore.instants import from_us, to_us

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
DECIMAL_BYTES: Final = 16  # 10**38 < 2**127
NOT_EXACT: Final = (TypeError, ValueError, ArithmeticError, InvalidRequest)
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """`code` is the slot's in `struct`; `dump` makes the slot, or the bytes of the tail where `in_tail`.

    `dump` raises one of `NOT_EXACT` for what does not fit; `load` is its inverse, None where the slot is the value.
    """

    code: str
    expected: str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any] | None = None
    in_tail: bool = False

    @property
    def unset(self) -> Any:
        """The slot of a field that has no value."""
        return b"" if self.code.endswith("s") else 0

    def exact(self, value: Any) -> Any:
        """`value` as a stored row would give it back. Raises one of `NOT_EXACT`."""
        stored = self.dump(value)
        return stored if self.load is None else self.load(stored)


def field_codec(field: Field) -> FieldCodec:
    """The codec of `field`; a list's elements are coded as values of its type are."""
    scalar = _scalar_codec(field)
    return _list_codec(scalar) if field.is_list else scalar


def _scalar_codec(field: Field) -> FieldCodec:
    match field.type:
        case FeatureType.DECIMAL:
            return _decimal_codec(field.decimal_places)
        case FeatureType.FLOAT64 if field.refuse_nan:
            return replace(_SCALARS[field.type], expected="a number, because the field refuses NaN", dump=_no_nan)
        case kind:
            return _SCALARS[kind]


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _int64(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not INT64_MIN <= value <= INT64_MAX:
        raise TypeError
    return value


def _float64(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    converted = float(value)
    if isinstance(value, int) and converted != value:  # an int that a double would round
        raise ValueError
    return converted


def _no_nan(value: Any) -> float:
    number = _float64(value)
    if math.isnan(number):
        raise ValueError
    return number


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _timestamp(value: Any) -> int:
    is_aware = isinstance(value, datetime) and value.utcoffset() is not None
    return to_us(value.astimezone(UTC) if is_aware else value, "timestamp")


_SCALARS: Final = {
    FeatureType.BOOL: FieldCodec("?", "true or false", _bool),
    FeatureType.INT64: FieldCodec("q", "an integer from -2**63 to 2**63 - 1", _int64),
    FeatureType.FLOAT64: FieldCodec("d", "a number that a double holds exactly", _float64),
    FeatureType.STRING: FieldCodec("I", "a string of valid Unicode", _string, bytes.decode, in_tail=True),
    FeatureType.BYTES: FieldCodec("I", "bytes", _bytes, in_tail=True),
    FeatureType.TIMESTAMP: FieldCodec(
        "q", "a datetime with a timezone, in the years 1 to 9999 UTC", _timestamp, from_us
    ),
}


def _decimal_codec(places: int) -> FieldCodec:
    """A decimal as the whole number of its last place. Traps make everything that would round an error."""
    exact = Context(prec=DECIMAL_DIGITS, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
    unit = Decimal(1).scaleb(-places)

    def dump(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, Decimal | int):
            raise TypeError
        units = Decimal(value).quantize(unit, context=exact).scaleb(places, exact)
        return int(units).to_bytes(DECIMAL_BYTES, "little", signed=True)  # `int` refuses NaN

    def load(slot: bytes) -> Decimal:
        return Decimal(int.from_bytes(slot, "little", signed=True)).scaleb(-places, exact)

    expected = f"a Decimal of at most {DECIMAL_DIGITS} digits, {places} of them after the point"
    return FieldCodec(f"{DECIMAL_BYTES}s", expected, dump, load)


def _list_codec(element: FieldCodec) -> FieldCodec:
    dump, load = _parted(element) if element.in_tail else _packed(element)

    def dump_list(values: Any) -> bytes:
        if not isinstance(values, list | tuple):
            raise TypeError
        return dump([element.dump(value) for value in values])

    return FieldCodec("I", f"a list; each element {element.expected}, none null", dump_list, load, in_tail=True)


def _packed(element: FieldCodec) -> tuple[Callable[[list[Any]], bytes], Callable[[bytes], list[Any]]]:
    """Elements of one size."""
    one, load_one = struct.Struct(f"<{element.code}"), element.load

    def dump(slots: list[Any]) -> bytes:
        return b"".join(map(one.pack, slots))

    def load(part: bytes) -> list[Any]:
        slots = [slot for (slot,) in one.iter_unpack(part)]
        return slots if load_one is None else [load_one(slot) for slot in slots]

    return dump, load


def _parted(element: FieldCodec) -> tuple[Callable[[list[bytes]], bytes], Callable[[bytes], list[Any]]]:
    """Elements of any length."""
    load_one = element.load

    def dump(parts: list[bytes]) -> bytes:
        return struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts)) + b"".join(parts)

    def load(part: bytes) -> list[Any]:
        if not part:  # of a field without a value
            return []
        [count] = _LENGTH.unpack_from(part)
        at, values = _LENGTH.size * (count + 1), []
        if at > len(part):
            raise ValueError(f"a list of {count} elements in {len(part)} bytes")
        for (length,) in _LENGTH.iter_unpack(part[_LENGTH.size : at]):
            piece = part[at : at + length]
            values.append(piece if load_one is None else load_one(piece))
            at += length
        if at != len(part):
            raise ValueError(f"a list's elements end at byte {at} of {len(part)}")
        return values

    return dump, load
