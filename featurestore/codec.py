"""One row of a feature view as bytes, and back to values, without an object per value.

Layout, little endian: schema version (1 byte) | two bits per field (0 value, 1 absent, 2 null) | one slot per field in
schema order | the bytes of strings, blobs and lists, end to end (`field_codec`). Absent and null fields keep a zero
slot, so that one precompiled `Struct` reads every row of a view. It knows no store: the online store hands it values,
the reader hands it payloads.
"""

from __future__ import annotations

import enum
import reprlib
import struct
from collections.abc import Mapping
from typing import Any, Final

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.definitions import FeatureView
from featurestore.field_codec import INT64_MAX, INT64_MIN, NOT_EXACT, FieldCodec, field_codec

__all__ = ["ABSENT", "INT64_MAX", "INT64_MIN", "SCHEMA_VERSION", "Absent", "RowCodec", "UnreadablePayload"]

SCHEMA_VERSION: Final = 1


class Absent(enum.Enum):
    """What a decoded row holds for a field that its writer left out; null is None."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
FLAG_ABSENT: Final = 1
FLAG_NULL: Final = 2


class UnreadablePayload(ConfigurationError):
    """A stored payload that this build cannot read: an unknown schema version, or bytes that do not fit the view."""

    code = "unreadable_payload"


class RowCodec:
    """Encodes and decodes the rows of one view; everything that depends only on the schema is worked out here."""

    def __init__(self, view: FeatureView) -> None:
        self._view = view.name
        self._fields = tuple((field.name, field_codec(field)) for field in view.schema)
        self._names = frozenset(name for name, _ in self._fields)
        self._bitmap_bytes = (2 * len(self._fields) + 7) // 8
        self._all_present = bytes(self._bitmap_bytes)
        slots = "".join(codec.code for _, codec in self._fields)
        self._layout = struct.Struct(f"<B{self._bitmap_bytes}s{slots}")
        loads = [(i, codec.load, codec.in_tail) for i, (_, codec) in enumerate(self._fields)]
        self._tail = tuple((i, load) for i, load, in_tail in loads if in_tail)
        self._loads = tuple((i, load) for i, load, in_tail in loads if load is not None and not in_tail)

    def encode(self, values: Mapping[str, Any], entity: str | None = None) -> bytes:
        """`values` by field name as one payload; a name left out is absent, None is null.

        `entity` is the key whose row this is, for messages.

        Raises:
            InvalidRequest: for an unknown name or a value that does not fit its type exactly, naming view.field, value
                and expectation.
        """
        if not values.keys() <= self._names:
            self._refuse_unknown(values, entity)
        flags, slots, tail = 0, [], []
        for i, (name, codec) in enumerate(self._fields):
            value = values.get(name, ABSENT)
            if value is ABSENT or value is None:
                flags |= (FLAG_NULL if value is None else FLAG_ABSENT) << (2 * i)
                slots.append(codec.unset)
                continue
            slot = self._dump(name, codec, value, entity)
            if codec.in_tail:
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
        except (struct.error, ValueError, ArithmeticError) as error:
            raise UnreadablePayload(
                f"feature view {self._view}: a payload of {len(payload)} bytes does not fit its schema ({error});"
                " a changed schema needs a new version of the view"
            ) from None

    def _decode(self, payload: bytes) -> list[Any]:
        _, bitmap, *values = self._layout.unpack_from(payload)
        at = self._layout.size
        for i, load in self._tail:
            end = at + values[i]
            part = payload[at:end]
            values[i] = part if load is None else load(part)
            at = end
        if at != len(payload):
            raise ValueError(f"its parts end at byte {at}")
        for i, load in self._loads:
            values[i] = load(values[i])
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

    def _dump(self, name: str, codec: FieldCodec, value: Any, entity: str | None) -> Any:
        try:
            return codec.dump(value)
        except NOT_EXACT:
            field = f"{self._view}.{name}"
            raise InvalidRequest(
                f"{field} = {reprlib.repr(value)}{_of(entity)}: expected {codec.expected}",
                field=field,
                value=value,
                expected=codec.expected,
            ) from None

    def _refuse_unknown(self, values: Mapping[str, Any], entity: str | None) -> None:
        name = min(values.keys() - self._names)
        expected = f"one of {[name for name, _ in self._fields]}"
        raise InvalidRequest(
            f"{self._view}.{name}{_of(entity)} is not in the view's schema: expected {expected}",
            field=f"{self._view}.{name}",
            value=values[name],
            expected=expected,
        )


def _of(entity: str | None) -> str:
    return "" if entity is None else f" of entity {entity!r}"
