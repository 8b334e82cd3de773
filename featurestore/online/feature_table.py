"""Features of many requests as one table. Stored rows stay as they were decoded; values get their state when asked for.

An object per value would cost more than reading it: 100 entities of 250 features are 25,000 objects for 500 rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from core_engine.contracts import FeatureRow, FeatureValue, ReadCost
from featurestore.catalog import CompiledView, Feature
from featurestore.codec import ABSENT, UnreadablePayload
from featurestore.states import MISSING, judge
from featurestore.windows.plan import WindowRow


class DecodedRow(NamedTuple):
    """A stored row: the instant that it is about, and its values in schema order as `RowCodec.decode` gives them."""

    event_us: int
    values: list[Any]


Cell: TypeAlias = DecodedRow | WindowRow | UnreadablePayload | None
Groups: TypeAlias = Sequence[tuple[CompiledView, Sequence[Feature]]]


class FeatureTable:
    """`num_rows` requests by the features of `groups`; `columns` hold one cell per group and row.

    `failure` says why nothing could be read; every value is then missing.
    """

    def __init__(
        self,
        groups: Groups,
        columns: Sequence[Sequence[Cell]],
        num_rows: int,
        now_us: int,
        cost: ReadCost,
        failure: str | None,
    ) -> None:
        self.num_rows = num_rows
        self.cost = cost
        self.failure = failure
        self._groups = groups
        self._columns = columns
        self._now_us = now_us
        self._places = {feature.ref: (i, feature) for i, (_, features) in enumerate(groups) for feature in features}

    def value(self, row: int, ref: str) -> FeatureValue:
        """One value with its state. Raises `KeyError` for a reference that was not read."""
        group, feature = self._places[ref]
        cell = self._columns[group][row]
        if cell is None or isinstance(cell, UnreadablePayload):
            return MISSING
        return judge(feature.compiled, [feature], cell.values, cell.event_us, self._now_us)[ref]

    def row(self, row: int) -> FeatureRow:
        """All values of one request; the cost is the table's and is in no row."""
        values: dict[str, FeatureValue] = {}
        for (compiled, features), column in zip(self._groups, self._columns, strict=True):
            values |= judged(compiled, features, column[row], self._now_us)
        if self.failure is not None:
            return FeatureRow(values, failure=self.failure)
        return FeatureRow(values, at_us=self._now_us, unreadable=self._unreadable(row))

    def column(self, ref: str) -> list[Any]:
        """The values of one feature, of any age, one per request: the default where a row left it out, or None."""
        group, feature = self._places[ref]
        default = feature.compiled.defaults[feature.position]
        values = []
        for cell in self._columns[group]:
            value = None if cell is None or isinstance(cell, UnreadablePayload) else cell.values[feature.position]
            values.append(default if value is ABSENT else value)
        return values

    def _unreadable(self, row: int) -> tuple[str, ...]:
        cells = zip(self._groups, self._columns, strict=True)
        names = (compiled.view.name for (compiled, _), column in cells if isinstance(column[row], UnreadablePayload))
        return tuple(dict.fromkeys(names))


def judged(compiled: CompiledView, features: Sequence[Feature], cell: Cell, now_us: int) -> Mapping[str, FeatureValue]:
    """The features of one cell, all missing where there is none or it cannot be read."""
    if cell is None or isinstance(cell, UnreadablePayload):
        return dict.fromkeys((feature.ref for feature in features), MISSING)
    return judge(compiled, features, cell.values, cell.event_us, now_us)
