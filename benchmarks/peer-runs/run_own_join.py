"""Ours, and the yardstick: a plain ASOF join in DuckDB on event time alone, without states. Both in our environment."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from join_loop import Join, serve

from featurestore.definitions import FeatureType, FeatureView, Field, ParquetSource
from featurestore.offline.store import OfflineStore

TYPES = {"count": FeatureType.INT64}


class Ours(Join):
    version = "this tree"

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._store = OfflineStore(self._view(name, features) for name, features in self.views.items())
        self._refs = [f"{view}.{feature}" for view, feature in self.columns]

    def run(self, num_events: int) -> pa.Table:
        spine = self.spine.slice(0, num_events)
        return self._store.as_of_join(spine, self._refs, {view: view for view in self.views}, "at")

    def table(self, joined: pa.Table) -> pa.Table:
        """With the states beside the values, as only this way has them."""
        return joined.drop_columns(self.spine.column_names)

    def _view(self, name: str, features: list[str]) -> FeatureView:
        return FeatureView(
            name=name,
            version=1,
            entity=name,
            schema=tuple(Field(name=each, type=TYPES.get(each, FeatureType.FLOAT64)) for each in features),
            source=ParquetSource(path=self.path(name), key_column=name),
            ttl_s=self.ttl_s,
            owner="benchmarks",
        )


class PlainDuckDB(Join):
    version = duckdb.__version__

    def run(self, num_events: int) -> pa.Table:
        with duckdb.connect(":memory:") as connection:
            connection.register(
                "spine", self.spine.slice(0, num_events).append_column("place", [np.arange(num_events)])
            )
            return connection.sql(self._query()).to_arrow_table()

    def table(self, joined: pa.Table) -> pa.Table:
        return joined

    def _query(self) -> str:
        values = ", ".join(f'{view}.{feature} AS "{view}.{feature}"' for view, feature in self.columns)
        joins = " ".join(
            f"ASOF LEFT JOIN read_parquet('{self.path(view)}') AS {view}"
            f" ON spine.{view} = {view}.{view} AND spine.at >= {view}.event_time"
            for view in self.views
        )
        return f"SELECT {values} FROM spine {joins} ORDER BY place"


if __name__ == "__main__":
    serve({"ours": Ours, "duckdb": PlainDuckDB})
