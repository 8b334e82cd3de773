"""Served rows recomputed from history by the definitions that they were served by, and compared value by value.

Rows come from the log a chunk at a time, so memory is bounded by a chunk. Windowed views too: their history has a row
per tick. It knows no online store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from core_engine.errors import ConfigurationError, InvalidRequest, StoreUnavailable
from featurestore.consistency.comparison import Known, Outcome, cause, compare
from featurestore.consistency.findings import Findings, Tally
from featurestore.consistency.history import ComputedServed, StoredServed, computed_values, stored_values
from featurestore.consistency.served_rows import ServedComputed, ServedRow
from featurestore.definitions import FeatureView
from featurestore.instants import to_us
from featurestore.offline.source import NO_SHIFT
from featurestore.on_demand.declaration import OnDemandView

CHUNK_ROWS: Final = 10_000  # of 250 features: some hundred MB while they are compared

ViewVersion: TypeAlias = tuple[str, int]
AnyServed: TypeAlias = StoredServed | ComputedServed


def recompute(
    rows: Iterable[ServedRow],
    views: Iterable[FeatureView],
    on_demand_views: Iterable[OnDemandView] = (),
    shift: timedelta = NO_SHIFT,
    materialized: Mapping[ViewVersion, datetime] | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> Findings:
    """What `rows` should have been by the history of `views` (any number of versions), moved by `shift`.

    `materialized` is up to when a view has been brought online; it explains what was served after that. Rows of a view
    that is not among `views`, or whose history cannot be read, are told in `failures`; the others are compared.
    """
    work = _Recomputation(views, on_demand_views, shift, materialized or {})
    num_rows = 0
    pending = iter(rows)
    while chunk := list(islice(pending, chunk_rows)):
        num_rows += len(chunk)
        work.take(chunk)
    return Findings(work.tally.days(), num_rows, work.failures)


class _Recomputation:
    def __init__(
        self,
        views: Iterable[FeatureView],
        on_demand_views: Iterable[OnDemandView],
        shift: timedelta,
        materialized: Mapping[ViewVersion, datetime],
    ) -> None:
        self._views = {(view.name, view.version): view for view in views}
        self._on_demand = {(view.name, view.version): view for view in on_demand_views}
        self._shift = shift
        self._materialized_us = {view: to_us(at, "materialized") for view, at in materialized.items()}
        self.tally = Tally()
        self.failures: dict[str, str] = {}

    def take(self, rows: Sequence[ServedRow]) -> None:
        stored: dict[tuple[str, int, tuple[str, ...]], list[StoredServed]] = defaultdict(list)
        computed: dict[tuple[str, int, object], list[ComputedServed]] = defaultdict(list)
        for row in rows:
            for view in row.views:
                stored[view.name, view.version, view.features].append(StoredServed(row.at_us, view))
            for made in row.computed:
                computed[made.name, made.version, _shape(made)].append(ComputedServed(row.at_us, made))
        for group in stored.values():
            self._compare(group, partial(self._known, group))
        for made_group in computed.values():
            self._compare(made_group, partial(self._known_computed, made_group))

    def _compare(self, group: Sequence[AnyServed], known: Callable[[], Iterator[Iterator[Known]]]) -> None:
        try:
            for position, values in enumerate(known()):
                for served, offline in zip(group, values, strict=True):
                    self._count(served, position, offline)
        except (ConfigurationError, InvalidRequest, StoreUnavailable) as error:
            self.failures[f"{group[0].row.name}:{group[0].row.version}"] = str(error)

    def _known(self, group: Sequence[StoredServed]) -> Iterator[Iterator[Known]]:
        view = group[0].row
        return stored_values(_registered(self._views, view.name, view.version), group, self._shift)

    def _known_computed(self, group: Sequence[ComputedServed]) -> Iterator[Iterator[Known]]:
        used = group[0].row.uses.items()
        on_demand = [self._on_demand[view] for view in used if view in self._on_demand]
        stored = [_registered(self._views, *view) for view in used if view not in self._on_demand]
        return computed_values(stored, on_demand, group, self._shift)

    def _count(self, served: AnyServed, position: int, offline: Known) -> None:
        row = served.row
        event_us = None if isinstance(row, ServedComputed) else row.event_us
        online = Known(row.values[position], row.states[position], event_us)
        outcome = compare(online, offline, has_failed=row.failure is not None)
        count = self.tally.count(row.name, row.version, row.features[position], served.at_us)
        count.outcomes[outcome] += 1
        if outcome in (Outcome.MATCH, Outcome.EXPIRED):
            return
        upto_us = self._materialized_us.get((row.name, row.version))
        if upto_us is not None and upto_us > served.at_us:
            upto_us = None  # what was materialised after the read explains nothing of it
        count.causes[cause(online, offline, upto_us)] += 1
        if event_us is not None:
            count.oldest_us = max(count.oldest_us or 0, served.at_us - event_us)


def _shape(made: ServedComputed) -> object:
    """Rows of one shape are recomputed together: the same features of the same versions by the same entities."""
    return (made.features, tuple(made.keys), tuple(made.inputs), tuple(made.uses.items()))


def _registered(views: Mapping[ViewVersion, FeatureView], name: str, version: int) -> FeatureView:
    view = views.get((name, version))
    if view is None:
        raise ConfigurationError(f"feature view {name} version {version} was served and is not registered here")
    return view
