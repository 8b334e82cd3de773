"""Feast's two offline stores, and pandas' `merge_asof`, in Feast's environment.

Feast is told to leave out what was not known yet (`filter_by_created_timestamp`), which is not its default. Its file
store drops an event that has history in some view but none within the TTL.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from join_loop import Join, serve


class MergeAsOf(Join):
    """One `merge_asof` per view, on event time; both sides must be sorted by it, and the answer sorted back."""

    version = pd.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._events = self.spine.to_pandas()

    def run(self, num_events: int) -> pd.DataFrame:
        joined = self._events.iloc[:num_events].sort_values("at", kind="stable")
        for view, features in self.views.items():
            history = pd.read_parquet(self.path(view), columns=[view, "event_time", *features])
            history = history.rename(columns={name: f"{view}.{name}" for name in features})
            joined = (
                pd.merge_asof(
                    joined.set_index(joined.index),
                    history.sort_values("event_time", kind="stable"),
                    left_on="at",
                    right_on="event_time",
                    by=view,
                )
                .drop(columns="event_time")
                .set_axis(joined.index)
            )
        return joined.sort_index()

    def table(self, joined: pd.DataFrame) -> pa.Table:
        return pa.Table.from_pandas(joined[[f"{view}.{name}" for view, name in self.columns]], preserve_index=False)


class Feast(Join):
    """A registry of its own in a folder that goes with the process; nothing is online."""

    version = importlib.metadata.version("feast")
    offline_store: str

    def __init__(self, settings: dict[str, Any]) -> None:
        from feast import FeatureStore, RepoConfig

        super().__init__(settings)
        self._folder = tempfile.TemporaryDirectory()
        self._store = FeatureStore(
            config=RepoConfig(
                project="joins",
                registry=str(Path(self._folder.name) / "registry.db"),
                provider="local",
                online_store=None,
                offline_store={"type": self.offline_store},
                entity_key_serialization_version=3,
            )
        )
        self._store.apply([each for view in self.views for each in self._declared(view)])
        events = self.spine.to_pandas().rename(columns={"at": "event_timestamp"})
        self._events = events.assign(place=range(len(events)))

    def run(self, num_events: int) -> pa.Table:
        job = self._store.get_historical_features(
            entity_df=self._events.iloc[:num_events],
            features=[f"{view}:{name}" for view, name in self.columns],
            full_feature_names=True,
            filter_by_created_timestamp=True,
        )
        return job.to_arrow()

    def table(self, joined: pa.Table) -> pa.Table:
        """`place` says which event a row is of."""
        found = joined.to_pandas().drop_duplicates("place").set_index("place")
        self.num_lost = len(self._events) - len(found)
        values = found.reindex(self._events["place"])
        names = {f"{view}__{name}": f"{view}.{name}" for view, name in self.columns}
        return pa.Table.from_pandas(values[list(names)].rename(columns=names), preserve_index=False)

    def _declared(self, view: str) -> tuple[Any, Any]:
        from feast import Entity, FeatureView, Field, FileSource, ValueType
        from feast.types import Float64, Int64

        entity = Entity(name=view, join_keys=[view], value_type=ValueType.STRING)
        source = FileSource(path=self.path(view), timestamp_field="event_time", created_timestamp_column="created_time")
        fields = [Field(name=name, dtype=Int64 if name == "count" else Float64) for name in self.views[view]]
        return entity, FeatureView(
            name=view, entities=[entity], ttl=timedelta(seconds=self.ttl_s), schema=fields, source=source, online=False
        )


class FeastDuckDB(Feast):
    offline_store = "duckdb"


class FeastFile(Feast):
    offline_store = "file"


if __name__ == "__main__":
    serve({"pandas": MergeAsOf, "feast_duckdb": FeastDuckDB, "feast_file": FeastFile})
