"""What a tile holds and how tiles are put together. Every content is a sum, an extreme, the newest few or a sketch, so
that neither the order of events nor the way in which tiles were cut decides anything.

Numbers are whole millionths (`amounts`), and sums of them and of their squares are Python's integers: exact.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from featurestore.definitions import Aggregate, AggregateKind
from featurestore.windows import sketches

MILLION: Final = 1_000_000


class Holds(enum.StrEnum):
    SUM = "sum"
    SQUARES = "squares"
    MIN = "min"
    MAX = "max"
    NEWEST = "newest"
    DISTINCT = "distinct"
    QUANTILES = "quantiles"


IS_SKETCH: Final = frozenset({Holds.DISTINCT, Holds.QUANTILES})

NEEDED: Final[Mapping[AggregateKind, tuple[Holds, ...]]] = {
    AggregateKind.COUNT: (),
    AggregateKind.SUM: (Holds.SUM,),
    AggregateKind.MEAN: (Holds.SUM,),
    AggregateKind.STDDEV: (Holds.SUM, Holds.SQUARES),
    AggregateKind.MIN: (Holds.MIN,),
    AggregateKind.MAX: (Holds.MAX,),
    AggregateKind.LAST: (Holds.NEWEST,),
    AggregateKind.DISTINCT: (Holds.DISTINCT,),
    AggregateKind.QUANTILE: (Holds.QUANTILES,),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """What is taken of an event: the number in its field `of`, whether that reaches `at_least`, or its text."""

    of: str
    at_least: float | None = None
    is_text: bool = False

    @property
    def name(self) -> str:
        return self.of if self.at_least is None else f"{self.of}>={self.at_least:g}"


@dataclass(frozen=True, slots=True)
class Content:
    """One part of a tile: what it `holds` of a measure, at most `size` of the newest."""

    measure: Measure
    holds: Holds
    size: int = 0

    @property
    def name(self) -> str:
        """Its column in the history of tiles; a sum has the name of its measure."""
        return self.measure.name if self.holds is Holds.SUM else f"{self.measure.name}:{self.holds}"


class Newest(NamedTuple):
    """An event of the newest few. Tuples compare as events are ordered; `source` as its UTF-8 bytes do."""

    event_us: int
    source: str
    offset: int
    amount: int


@dataclass(frozen=True, slots=True)
class Tile:
    """`events` of them, and one value per `Content` of the plan: an integer, a tuple of `Newest` from the newest on, or
    a sketch's bytes. With 0 events a value is 0, () or None."""

    events: int
    contents: tuple[Any, ...]


def combined(contents: Sequence[Content], tiles: Sequence[Tile]) -> Tile:
    """One tile as if all events of `tiles` had been in it."""
    values = [
        _COMBINE[content.holds](content, [tile.contents[i] for tile in tiles]) for i, content in enumerate(contents)
    ]
    return Tile(sum(tile.events for tile in tiles), tuple(values))


def _newest(content: Content, parts: Iterable[tuple[Newest, ...]]) -> tuple[Newest, ...]:
    return tuple(sorted((entry for part in parts for entry in part), reverse=True)[: content.size])


_COMBINE: Final[Mapping[Holds, Callable[[Content, list[Any]], Any]]] = {
    Holds.SUM: lambda _, parts: sum(parts),
    Holds.SQUARES: lambda _, parts: sum(parts),
    Holds.MIN: lambda _, parts: min(parts, default=None),
    Holds.MAX: lambda _, parts: max(parts, default=None),
    Holds.NEWEST: _newest,
    Holds.DISTINCT: lambda _, parts: sketches.distinct_union(parts),
    Holds.QUANTILES: lambda _, parts: sketches.quantiles_union(parts),
}


def value_of(aggregate: Aggregate, events: int, held: Sequence[Any]) -> Any:
    """An aggregate's value by what it `NEEDED`, in that order. Without events: counts and sums 0, the newest none, and
    all others null."""
    match aggregate.kind:
        case AggregateKind.COUNT:
            return events
        case AggregateKind.SUM:
            return held[0] / MILLION
        case AggregateKind.LAST:
            return [entry.amount / MILLION for entry in held[0][: aggregate.size]]
        case AggregateKind.DISTINCT:
            return 0 if held[0] is None else sketches.distinct_estimate(held[0])
    return _statistic(aggregate, events, held) if events else None


def _statistic(aggregate: Aggregate, events: int, held: Sequence[Any]) -> float:
    match aggregate.kind:
        case AggregateKind.MEAN:
            return float(held[0] / MILLION / events)
        case AggregateKind.STDDEV:  # n^2 times the variance is n * sum of squares - (sum)^2: exact, and never negative
            return math.sqrt(events * held[1] - held[0] ** 2) / (events * MILLION)
        case AggregateKind.QUANTILE:
            assert aggregate.quantile is not None
            return sketches.quantile(held[0], aggregate.quantile)
    return float(held[0] / MILLION)
