"""The two feature readers of the predict flow: online from Redis, and as of an instant from history.

Both implement `core_engine.readers.FeatureReader`, resolve references before they touch a store, and turn a lost store
or a passed deadline into `missing` with a `failure`; the ladder decides what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import structlog

from core_engine.contracts import Deadline, FeatureRow, FeatureValue, ReadCost
from core_engine.errors import StoreUnavailable
from featurestore.catalog import CompiledView, Feature, ViewCatalog, entity_key_of
from featurestore.codec import UnreadablePayload
from featurestore.definitions import FeatureView
from featurestore.instants import Clock, to_us, utc_now
from featurestore.offline_store import OfflineStore
from featurestore.online_store import OnlineStore, Stored
from featurestore.states import MISSING, all_missing, judge
from featurestore.windows.plan import StoredWindow, WindowRow

DEADLINE: Final = "deadline"
STORE_UNAVAILABLE: Final = "store_unavailable"
UNREADABLE: Final = "unreadable_payload"
HASHES_OF_A_WINDOW: Final = 2  # its tiles, and how far the stream has come

Groups = list[tuple[CompiledView, list[Feature]]]

log = structlog.get_logger(__name__)


class OnlineFeatureReader:
    """Reads the online store: one pipelined round trip per request, whatever the number of views."""

    def __init__(self, store: OnlineStore, views: Iterable[FeatureView], clock: Clock = utc_now) -> None:
        self._store = store
        self._catalog = ViewCatalog(views)
        self._clock = clock

    async def read(self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline) -> FeatureRow:
        """Values for `refs`, judged against the wall clock.

        `failure` is "store_unavailable", "deadline" or "unreadable_payload" (written by another release); every value
        is then missing.

        Raises:
            ConfigurationError: for a view or feature that is not declared.
            InvalidRequest: where `keys` lacks the entity of a view.
        """
        groups = self._catalog.by_view(refs)
        reads = [(compiled.view, entity_key_of(compiled.view, keys)) for compiled, _ in groups]
        if not reads:
            return FeatureRow({})
        if deadline.expired:
            return FeatureRow(all_missing(refs), failure=DEADLINE)
        asked = ReadCost(reads=_num_hashes(groups), round_trips=1)  # a trip that failed was asked for all the same
        try:
            async with asyncio.timeout(deadline.timeout()):
                found = await self._store.fetch(reads)
            return self._judge(groups, found)
        except TimeoutError:
            failure = DEADLINE
        except StoreUnavailable:
            failure = STORE_UNAVAILABLE
        except UnreadablePayload as error:
            log.error("feature_payload_unreadable", error=str(error))
            failure = UNREADABLE
        return FeatureRow(all_missing(refs), asked, failure)

    def _judge(self, groups: Groups, found: Sequence[Stored]) -> FeatureRow:
        now_us = to_us(self._clock(), "clock")
        values: dict[str, FeatureValue] = {}
        hits = num_bytes = 0
        for (compiled, features), stored in zip(groups, found, strict=True):
            if isinstance(stored, StoredWindow):
                hits += HASHES_OF_A_WINDOW
                num_bytes += stored.num_bytes
            elif stored is not None:
                hits += 1
                num_bytes += len(stored.payload)
            row = _row(compiled, stored, now_us)
            if row is None:
                values.update((feature.ref, MISSING) for feature in features)
            else:
                values |= judge(compiled, features, row.values, row.event_us, now_us)
        return FeatureRow(values, ReadCost(_num_hashes(groups), hits, num_bytes, round_trips=1))


def _num_hashes(groups: Groups) -> int:
    return sum(1 if compiled.plan is None else HASHES_OF_A_WINDOW for compiled, _ in groups)


def _row(compiled: CompiledView, stored: Stored, now_us: int) -> WindowRow | None:
    """What is stored as values in schema order with the instant that they are about; None where that is nothing."""
    if stored is None:
        return None
    if isinstance(stored, StoredWindow):
        assert compiled.plan is not None
        return compiled.plan.row_at(stored, now_us)
    return WindowRow(stored.event_us, compiled.codec.decode(stored.payload))


class AsOfFeatureReader:
    """Reads history as it was known at `as_of`: the same values that an online reader would have found then.

    For single requests (replays, checks); many rows at once are `OfflineStore.as_of_join`.
    """

    def __init__(self, offline_store: OfflineStore, as_of: datetime) -> None:
        self._store = offline_store
        self._as_of_us = to_us(as_of, "as_of")

    async def read(self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline) -> FeatureRow:
        """As `OnlineFeatureReader.read`; a source is one read and one round trip, and no payload bytes are counted.

        A look-up that outlives the deadline runs to its end in its thread; its answer is dropped.
        """
        groups = self._store.catalog.by_view(refs)
        entities = [entity_key_of(compiled.view, keys) for compiled, _ in groups]
        if deadline.expired:
            return FeatureRow(all_missing(refs), failure=DEADLINE)
        asked = ReadCost(reads=len(groups), round_trips=len(groups))
        try:
            async with asyncio.timeout(deadline.timeout()):
                return await asyncio.to_thread(self._read, groups, entities)
        except TimeoutError:
            return FeatureRow(all_missing(refs), asked, DEADLINE)
        except StoreUnavailable:
            return FeatureRow(all_missing(refs), asked, STORE_UNAVAILABLE)

    def _read(self, groups: Groups, entities: Sequence[str]) -> FeatureRow:
        values: dict[str, FeatureValue] = {}
        hits = 0
        for (compiled, features), key in zip(groups, entities, strict=True):
            row = self._store.known_row(compiled.view.name, key, self._as_of_us)
            if row is None:
                values.update((feature.ref, MISSING) for feature in features)
                continue
            hits += 1
            values |= judge(compiled, features, row.values, row.event_us, self._as_of_us)
        return FeatureRow(values, ReadCost(len(groups), hits, 0, len(groups)))
