"""The feature reader of replays and checks: history as it was known at an instant.

It implements `core_engine.readers.FeatureReader` as `online.reader` does; both turn a lost store or a passed deadline
into `missing` with a `failure`, and the ladder decides what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from core_engine.contracts import EMPTY, Deadline, FeatureRow, FeatureValue, ReadCost, Scalar
from core_engine.errors import StoreUnavailable
from featurestore.catalog import CompiledView, Feature, entity_key_of
from featurestore.instants import to_us
from featurestore.offline.store import OfflineStore
from featurestore.states import MISSING, all_missing, judge

DEADLINE: Final = "deadline"
STORE_UNAVAILABLE: Final = "store_unavailable"

Groups = list[tuple[CompiledView, list[Feature]]]


class AsOfFeatureReader:
    """Reads history as it was known at `as_of`: the same values that an online reader would have found then.

    For single requests (replays, checks); many rows at once are `OfflineStore.as_of_join`.
    """

    def __init__(self, offline_store: OfflineStore, as_of: datetime) -> None:
        self._store = offline_store
        self._as_of_us = to_us(as_of, "as_of")

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        """As `OnlineFeatureReader.read`; a source is one read and one round trip, and no payload bytes are counted.

        A look-up that outlives the deadline runs to its end in its thread; its answer is dropped.
        """
        groups = self._store.catalog.by_view(refs)
        entities = [entity_key_of(compiled, keys) for compiled, _ in groups]
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
