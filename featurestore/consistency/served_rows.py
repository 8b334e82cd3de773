"""What is logged of one read, and its bytes: a frame of length, checksum and msgpack, which executes nothing.

The types of values survive exactly: msgpack has bools, 64-bit integers, doubles by their bits, text, bytes, instants
and lists; a decimal is an extension of ours. The writer makes frames, the recomputation reads them.
"""

from __future__ import annotations

import struct
import zlib
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from core_engine.contracts import FeatureState

HEAD: Final = struct.Struct("<II")  # bytes of the body, CRC-32 of the body
LARGEST_BODY: Final = 16 << 20
DECIMAL: Final = 1  # our extension type


class ServedView(msgspec.Struct, frozen=True, array_like=True):
    """The features of one view as one read served them; `values` and `states` in the order of `features`.

    `event_us` is what the values are about, microseconds since 1970; None where nothing was found. `failure` says why
    nothing could be read, where it could not.
    """

    name: str
    version: int
    key: str
    event_us: int | None
    features: tuple[str, ...]
    states: tuple[FeatureState, ...]
    values: tuple[Any, ...]
    failure: str | None = None


class ServedComputed(msgspec.Struct, frozen=True, array_like=True):
    """The features of one on-demand view as one read computed them, and what from.

    `keys` by entity, the request's `inputs` by name, and in `uses` the version of each view that they are made of.
    """

    name: str
    version: int
    keys: dict[str, str]
    inputs: dict[str, Any]
    uses: dict[str, int]
    features: tuple[str, ...]
    states: tuple[FeatureState, ...]
    values: tuple[Any, ...]
    failure: str | None = None


class ServedRow(msgspec.Struct, frozen=True, array_like=True):
    """One read. `at_us` is the instant that its states and ages were judged at."""

    at_us: int
    views: tuple[ServedView, ...]
    computed: tuple[ServedComputed, ...] = ()


AnyServed = TypeVar("AnyServed", ServedView, ServedComputed)


class Frame(NamedTuple):
    """A row as it is written, and its `at_us`."""

    at_us: int
    data: bytes


def to_frame(row: ServedRow) -> Frame:
    """Raises `TypeError`, `ValueError` or `OverflowError` for a value of no feature type, or a row too large to log."""
    views, computed = tuple(map(_writable, row.views)), tuple(map(_computed, row.computed))
    body = _ENCODER.encode(msgspec.structs.replace(row, views=views, computed=computed))
    if len(body) > LARGEST_BODY:
        raise ValueError(f"a served row of {len(body)} bytes is too large to log")
    return Frame(row.at_us, HEAD.pack(len(body), zlib.crc32(body)) + body)


def from_body(body: bytes, checksum: int) -> ServedRow:
    """Raises `ValueError` where `body` is not what was written."""
    if zlib.crc32(body) != checksum:
        raise ValueError("the checksum does not match")
    return _DECODER.decode(body)


def _writable(view: AnyServed) -> AnyServed:
    return msgspec.structs.replace(view, values=tuple(map(_as_msgpack, view.values)))


def _computed(view: ServedComputed) -> ServedComputed:
    inputs = {name: _as_msgpack(value) for name, value in view.inputs.items()}
    return msgspec.structs.replace(_writable(view), inputs=inputs)


def _as_msgpack(value: Any) -> Any:
    match value:
        case Decimal():  # msgspec would write it as text, and text would be read
            return msgspec.msgpack.Ext(DECIMAL, str(value).encode())
        case list() | tuple():
            return [_as_msgpack(each) for each in value]
        case None | bool() | int() | float() | str() | bytes():
            return value
        case datetime() if value.tzinfo is not None:
            return value
    raise TypeError(f"{value!r} is of no feature type")


def _from_extension(code: int, data: memoryview) -> Decimal:
    if code != DECIMAL:
        raise ValueError(f"extension type {code} is not known to this release")
    return Decimal(str(data, "ascii"))


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ServedRow, ext_hook=_from_extension)
