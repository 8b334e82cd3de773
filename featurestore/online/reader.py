"""The feature reader of the predict flow: every view of a request from Redis in one round trip.

It implements `core_engine.readers.FeatureReader`, resolves references before it touches the store, and turns a lost
store or a passed deadline into `missing` with a `failure`; the ladder decides what that means. A stored value that
cannot be read makes its own view's features missing and is named in the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import structlog

from core_engine.contracts import EMPTY, Deadline, FeatureRow, FeatureValue, ReadCost, Scalar
from core_engine.errors import StoreBreakerOpen, StoreUnavailable
from featurestore.catalog import CompiledView, ViewCatalog, entity_key_of
from featurestore.codec import UnreadablePayload
from featurestore.definitions import FeatureView
from featurestore.instants import Clock, to_us, utc_now
from featurestore.online.feature_table import Cell, DecodedRow, FeatureTable, Groups, judged
from featurestore.online.fetched import Read, Stored, StoredPayload
from featurestore.online.store import HASHES_OF_A_WINDOW, OnlineStore
from featurestore.states import all_missing
from featurestore.windows.plan import StoredWindow

DEADLINE: Final = "deadline"
STORE_UNAVAILABLE: Final = "store_unavailable"
BREAKER_OPEN: Final = "breaker_open"
KNOWN_REQUESTS: Final = 256  # sets of references that are resolved once: there are as many as predictors

log = structlog.get_logger(__name__)


class OnlineFeatureReader:
    """Reads the online store: one pipelined round trip per request, whatever the number of views and entities."""

    def __init__(self, store: OnlineStore, views: Iterable[FeatureView], clock: Clock = utc_now) -> None:
        self._store = store
        self._clock = clock
        self._groups = lru_cache(KNOWN_REQUESTS)(ViewCatalog(views).by_view)

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        """Values for `refs`, judged against the wall clock.

        `failure` is "store_unavailable", "breaker_open" (nothing was asked) or "deadline"; every value is then missing.

        Raises:
            ConfigurationError: for a view or feature that is not declared.
            InvalidRequest: where `keys` lacks the entity of a view.
        """
        groups: Groups = self._groups(tuple(refs))
        reads = [(compiled.view, entity_key_of(compiled, keys)) for compiled, _ in groups]
        rows, cost, failure = await self._fetched(reads, deadline)
        if failure is not None:
            return FeatureRow(all_missing(refs), cost, failure)
        if not reads:
            return FeatureRow({})
        now_us = to_us(self._clock(), "clock")
        values: dict[str, FeatureValue] = {}
        unreadable = dict[str, None]()
        for (compiled, features), read, stored in zip(groups, reads, rows, strict=True):
            cell = _cell(compiled, read, stored, now_us)
            if isinstance(cell, UnreadablePayload):
                unreadable[compiled.view.name] = None
            values |= judged(compiled, features, cell, now_us)
        return FeatureRow(values, cost, at_us=now_us, unreadable=tuple(unreadable))

    async def read_many(
        self, refs: Sequence[str], keys: Sequence[Mapping[str, str]], deadline: Deadline
    ) -> FeatureTable:
        """As `read`, for one request per element of `keys`: all in one round trip, one table with a row for each."""
        groups: Groups = self._groups(tuple(refs))
        reads = [(compiled.view, entity_key_of(compiled, each)) for compiled, _ in groups for each in keys]
        found, cost, failure = await self._fetched(reads, deadline)
        now_us = to_us(self._clock(), "clock")
        if failure is not None:
            return FeatureTable(groups, [[None] * len(keys) for _ in groups], len(keys), now_us, cost, failure)
        columns = []
        for i, (compiled, _) in enumerate(groups):
            part = slice(i * len(keys), (i + 1) * len(keys))
            pairs = zip(reads[part], found[part], strict=True)
            columns.append([_cell(compiled, read, stored, now_us) for read, stored in pairs])
        return FeatureTable(groups, columns, len(keys), now_us, cost, None)

    async def _fetched(
        self, reads: Sequence[Read], deadline: Deadline
    ) -> tuple[Sequence[Stored], ReadCost, str | None]:
        """Rows in the order of `reads`, what they cost, and why there are none."""
        if not reads:
            return [], ReadCost(), None
        if deadline.expired:
            return [], ReadCost(), DEADLINE
        try:
            async with asyncio.timeout(deadline.timeout()):
                fetched = await self._store.fetch(reads)
            return fetched.rows, fetched.cost, None
        except TimeoutError:
            failure = DEADLINE
        except StoreBreakerOpen:
            return [], ReadCost(), BREAKER_OPEN
        except StoreUnavailable:
            failure = STORE_UNAVAILABLE
        return [], ReadCost(reads=_num_hashes(reads), round_trips=1), failure  # it was asked for all the same


def _num_hashes(reads: Iterable[Read]) -> int:
    return sum(1 if view.window is None else HASHES_OF_A_WINDOW for view, _ in reads)


def _cell(compiled: CompiledView, read: Read, stored: Stored, now_us: int) -> Cell:
    """What is stored as values in schema order with the instant that they are about; None where that is nothing."""
    try:
        if isinstance(stored, StoredPayload):
            return DecodedRow(stored.event_us, compiled.codec.decode(stored.payload))
        if isinstance(stored, StoredWindow):
            assert compiled.plan is not None
            return compiled.plan.row_at(stored, now_us)
        if stored is None:
            return None
        raise stored
    except UnreadablePayload as error:
        log.error("feature_payload_unreadable", view=compiled.view.name, entity=read[1], error=str(error))
        return error
