"""One row of a feature view as bytes, and back to values, without an object per value.

Layout, little endian: schema version (1 byte) | two bits per field (0 value, 1 absent, 2 null) | one slot per field in
schema order | the bytes of strings and blobs, end to end. A slot is a bool, an int64, a float64, microseconds since
1970, or the length of a string or blob; absent and null fields keep a zero slot, so that one precompiled `Struct` reads
every row of a view. It knows no store: the online store hands it values, the reader hands it payloads.
"""

from __future__ import annotations

import enum
import reprlib
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import from_us, to_us

SCHEMA_VERSION: Final = 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class Absent(enum.Enum):
    """What a decoded row holds for a field that its writer left out; null is None."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
FLAG_ABSENT: Final = 1
FLAG_NULL: Final = 2


class UnreadablePayload(ConfigurationError):
    """A stored payload that this build cannot read: an unknown schema version, or bytes that do not fit the view."""

    code = "unreadable_payload"


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


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _timestamp(value: Any) -> int:
    return to_us(value.astimezone(UTC) if _is_aware(value) else value, "timestamp")


def _is_aware(value: Any) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


class _Wire(enum.Enum):
    """How a type is written: its struct code, its conversion, and what a caller must give."""

    BOOL = ("?", _bool, "true or false")
    INT64 = ("q", _int64, "an integer from -2**63 to 2**63 - 1")
    FLOAT64 = ("d", _float64, "a number that a double holds exactly")
    STRING = ("I", _string, "a string of valid Unicode")
    BYTES = ("I", _bytes, "bytes")
    TIMESTAMP = ("q", _timestamp, "a datetime with a timezone, in the years 1 to 9999 UTC")

    def __init__(self, code: str, convert: Callable[[Any], Any], expected: str) -> None:
        self.code = code
        self.convert = convert
        self.expected = expected


class RowCodec:
    """Encodes and decodes the rows of one view; everything that depends only on the schema is worked out here."""

    def __init__(self, view: FeatureView) -> None:
        self._view = view.name
        self._fields = tuple((field.name, _Wire[field.type.name]) for field in view.schema)
        self._names = frozenset(name for name, _ in self._fields)
        self._bitmap_bytes = (2 * len(self._fields) + 7) // 8
        self._all_present = bytes(self._bitmap_bytes)
        slots = "".join(wire.code for _, wire in self._fields)
        self._layout = struct.Struct(f"<B{self._bitmap_bytes}s{slots}")
        self._tail = tuple((i, wire is _Wire.STRING) for i, (_, wire) in enumerate(self._fields) if wire.code == "I")
        self._instants = tuple(i for i, (_, wire) in enumerate(self._fields) if wire is _Wire.TIMESTAMP)

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """`values` by field name as one payload; a name left out is absent, None is null.

        Raises:
            InvalidRequest: for an unknown name or a value that does not fit its type exactly, naming view.field, value
                and expectation.
        """
        if not values.keys() <= self._names:
            self._refuse_unknown(values)
        flags, slots, tail = 0, [], []
        for i, (name, wire) in enumerate(self._fields):
            value = values.get(name, ABSENT)
            if value is ABSENT or value is None:
                flags |= (FLAG_NULL if value is None else FLAG_ABSENT) << (2 * i)
                slots.append(0)
                continue
            slot = self._convert(name, wire, value)
            if wire.code == "I":
                tail.append(slot)
                slot = len(slot)
            slots.append(slot)
        bitmap = flags.to_bytes(self._bitmap_bytes, "little")
        return self._layout.pack(SCHEMA_VERSION, bitmap, *slots) + b"".join(tail)

    def decode(self, payload: bytes) -> list[Any]:
        """Values in schema order: `ABSENT` where the writer left a field out, None where it wrote null.

        Raises:
            UnreadablePayload: for an unknown schema version or bytes that do not fit the view.
        """
        if not payload or payload[0] != SCHEMA_VERSION:
            raise UnreadablePayload(
                f"feature view {self._view}: payload of schema version {payload[0] if payload else 'none'}, this build"
                f" reads {SCHEMA_VERSION}; write the view again, or upgrade the reader"
            )
        try:
            return self._decode(payload)
        except (struct.error, ValueError, OverflowError) as error:
            raise UnreadablePayload(
                f"feature view {self._view}: a payload of {len(payload)} bytes does not fit its schema ({error});"
                " a changed schema needs a new version of the view"
            ) from None

    def _decode(self, payload: bytes) -> list[Any]:
        _, bitmap, *values = self._layout.unpack_from(payload)
        at = self._layout.size
        for i, is_text in self._tail:
            end = at + values[i]
            values[i] = payload[at:end].decode() if is_text else payload[at:end]
            at = end
        if at != len(payload):
            raise ValueError(f"its parts end at byte {at}")
        for i in self._instants:
            values[i] = from_us(values[i])
        if bitmap != self._all_present:
            self._clear_unset(values, int.from_bytes(bitmap, "little"))
        return values

    def _clear_unset(self, values: list[Any], flags: int) -> None:
        for i in range(len(values)):
            match (flags >> (2 * i)) & 3:
                case 0:
                    pass
                case 1:
                    values[i] = ABSENT
                case 2:
                    values[i] = None
                case flag:
                    raise ValueError(f"flag {flag} for field {i}")

    def _convert(self, name: str, wire: _Wire, value: Any) -> Any:
        try:
            return wire.convert(value)
        except (TypeError, ValueError, OverflowError, InvalidRequest):
            field = f"{self._view}.{name}"
            raise InvalidRequest(
                f"{field} = {reprlib.repr(value)}: expected {wire.expected}",
                field=field,
                value=value,
                expected=wire.expected,
            ) from None

    def _refuse_unknown(self, values: Mapping[str, Any]) -> None:
        name = min(values.keys() - self._names)
        expected = f"one of {[name for name, _ in self._fields]}"
        raise InvalidRequest(
            f"{self._view}.{name} is not in the view's schema: expected {expected}",
            field=f"{self._view}.{name}",
            value=values[name],
            expected=expected,
        )


def served_default(view: FeatureView, field: Field) -> Any:
    """The field's default as it is served; None where it has none.

    Raises:
        ConfigurationError: where the default does not fit the field's type, or the type (bytes, timestamp) has none.
    """
    if field.default is None:
        return None
    wire = _Wire[field.type.name]
    try:
        if field.type in (FeatureType.BYTES, FeatureType.TIMESTAMP):
            raise TypeError
        converted = wire.convert(field.default)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(
            f"feature {view.name}.{field.name}: default {field.default!r} is not a {field.type} that can be declared"
        ) from None
    return converted.decode() if wire is _Wire.STRING else converted
