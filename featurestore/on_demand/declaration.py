"""On-demand views as data: features that are computed when they are asked for, from a request and stored features.

A transform reads its operands in the order of `of`: `view.feature` (stored, or itself on demand) or `request.name` (an
input of the request, a column of a training table). What it computes is in `functions`; it knows no store.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

import msgspec

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType

REQUEST: Final = "request"  # no view may have this name

NUMBERS: Final = frozenset({FeatureType.INT64, FeatureType.FLOAT64, FeatureType.DECIMAL})
INSTANTS: Final = frozenset({FeatureType.TIMESTAMP})
EXACT: Final = frozenset(FeatureType) - {FeatureType.FLOAT64, FeatureType.DECIMAL}
WORDS: Final = frozenset({FeatureType.BOOL, FeatureType.INT64, FeatureType.STRING})


class Transform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every transform: how many operands (None: one or more), of which types, and the type of its result."""

    of: tuple[str, ...]

    arity: ClassVar[int | None] = 1
    accepts: ClassVar[frozenset[FeatureType]] = NUMBERS
    gives: ClassVar[FeatureType] = FeatureType.FLOAT64

    @property
    def result(self) -> FeatureType:
        return self.gives


class HashBucket(Transform, frozen=True, kw_only=True, tag="hash_bucket"):
    """A bucket from 0 to `buckets` - 1, the same in every process and on every machine.

    BLAKE2b (RFC 7693) of 8 bytes, little endian, modulo `buckets`; of a string's UTF-8, of bytes themselves, and of 8
    little endian bytes of an int64, a bool (0 or 1) or a timestamp (microseconds since 1970). Features of different
    `salt` (at most 16 bytes) collide at different values.
    """

    buckets: int
    salt: str = ""

    accepts: ClassVar[frozenset[FeatureType]] = EXACT
    gives: ClassVar[FeatureType] = FeatureType.INT64


class Bucket(Transform, frozen=True, kw_only=True, tag="bucket"):
    """How many of the ascending `boundaries` are at or below the number; null for NaN."""

    boundaries: tuple[float, ...]

    gives: ClassVar[FeatureType] = FeatureType.INT64


class Cross(Transform, frozen=True, kw_only=True, tag="cross"):
    """Two or more values as one string, written as `contracts.entity_key` writes them; a bool is 0 or 1."""

    arity: ClassVar[int | None] = None
    accepts: ClassVar[frozenset[FeatureType]] = WORDS
    gives: ClassVar[FeatureType] = FeatureType.STRING


class Ratio(Transform, frozen=True, kw_only=True, tag="ratio"):
    """The first number over the second, in float64; null where the second is zero."""

    arity: ClassVar[int | None] = 2


class Difference(Transform, frozen=True, kw_only=True, tag="difference"):
    """The first less the second: of two numbers in float64, of two timestamps in seconds."""

    arity: ClassVar[int | None] = 2
    accepts: ClassVar[frozenset[FeatureType]] = NUMBERS | INSTANTS


class Log1p(Transform, frozen=True, kw_only=True, tag="log1p"):
    """The natural logarithm of one plus the number; null at -1 and below."""


class Haversine(Transform, frozen=True, kw_only=True, tag="haversine"):
    """Great-circle distance in km on a sphere of 6,371.0088 km between two points in degrees.

    `of`: latitude and longitude of the one, latitude and longitude of the other. Null for a latitude beyond 90 degrees
    and for what is not finite.
    """

    arity: ClassVar[int | None] = 4


class HourOfDay(Transform, frozen=True, kw_only=True, tag="hour_of_day"):
    """The hour on the clocks of a time zone (IANA name), 0 to 23."""

    time_zone: str

    accepts: ClassVar[frozenset[FeatureType]] = INSTANTS
    gives: ClassVar[FeatureType] = FeatureType.INT64


class DayOfWeek(Transform, frozen=True, kw_only=True, tag="day_of_week"):
    """The weekday in a time zone (IANA name), 0 = Monday."""

    time_zone: str

    accepts: ClassVar[frozenset[FeatureType]] = INSTANTS
    gives: ClassVar[FeatureType] = FeatureType.INT64


class Custom(Transform, frozen=True, kw_only=True, tag="custom"):
    """A function of the user's own, by import path (`package.module:function`).

    It is called with one array per operand, all of one length, and gives an array of that length; element i of the
    result may depend on the operands' elements i alone. It sees rows in which every operand has a value, and no others.
    Arrays are bool, int64, float64 or datetime64[us] (UTC), and of objects for str, bytes, Decimal and lists. A masked
    element of the result (`numpy.ma`) is null.
    """

    function: str
    returns: FeatureType

    arity: ClassVar[int | None] = None
    accepts: ClassVar[frozenset[FeatureType]] = frozenset(FeatureType)

    @property
    def result(self) -> FeatureType:
        return self.returns


AnyTransform: TypeAlias = (
    HashBucket | Bucket | Cross | Ratio | Difference | Log1p | Haversine | HourOfDay | DayOfWeek | Custom
)


class RequestInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input that the view's transforms read as `request.name`; null where the request leaves it out."""

    name: str
    type: FeatureType


class OnDemandFeature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    transform: AnyTransform
    description: str = ""


class OnDemandView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named, versioned group of computed features, asked for by `view.feature` like stored ones."""

    name: str
    version: int
    owner: str
    features: tuple[OnDemandFeature, ...]
    inputs: tuple[RequestInput, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        for names in ([f.name for f in self.features], [i.name for i in self.inputs]):
            if len(set(names)) != len(names):
                raise ConfigurationError(f"on-demand view {self.name}: its names must be distinct, got {names}")
        if not self.features:
            raise ConfigurationError(f"on-demand view {self.name}: it declares no feature")
