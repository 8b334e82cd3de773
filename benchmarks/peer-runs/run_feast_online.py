"""Feast's online store on the Redis of the comparison: writes what it will be asked for, and is timed at its own door.

Settings: `port`, `stored` (entities), `workloads`, each of `name`, `views`, `features`, `entities` (of one request) and
`calls`. The last line printed says the version and, by workload, the milliseconds of each call, the answer as plain
values.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Float64

KEY = "entity"
WARM_UP = 5


def main() -> None:
    settings = json.loads(sys.argv[1])
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        store = opened(Path(folder), settings["port"])
        timed = {
            each["name"]: measured(store, Path(folder), each, settings["stored"], rng) for each in settings["workloads"]
        }
    print(json.dumps({"version": importlib.metadata.version("feast"), "ms": timed}))


def opened(folder: Path, port: int) -> FeatureStore:
    return FeatureStore(
        config=RepoConfig(
            project="online",
            registry=str(folder / "registry.db"),
            provider="local",
            online_store={"type": "redis", "connection_string": f"127.0.0.1:{port}"},
            entity_key_serialization_version=3,
        )
    )


def measured(
    store: FeatureStore, folder: Path, workload: dict[str, Any], stored: int, rng: random.Random
) -> list[float]:
    keys = [f"k{i}" for i in range(stored)]
    views = [declared(folder, f"{workload['name']}_{i}", workload["features"]) for i in range(workload["views"])]
    store.apply([Entity(name=KEY, join_keys=[KEY], value_type=ValueType.STRING), *views])
    for view in views:
        columns = {field.name: [rng.random() for _ in keys] for field in view.features}
        now = datetime.now(UTC)
        store.write_to_online_store(view.name, pd.DataFrame({KEY: keys, "event_timestamp": now} | columns))
    refs = [f"{view.name}:{field.name}" for view in views for field in view.features]
    gc.collect()
    gc.freeze()  # as the other side does
    taken = []
    for _ in range(WARM_UP + workload["calls"]):
        rows = [{KEY: key} for key in rng.sample(keys, workload["entities"])]
        start = time.perf_counter()
        answer = store.get_online_features(features=refs, entity_rows=rows, full_feature_names=True).to_dict()
        taken.append((time.perf_counter() - start) * 1e3)
        lacking = [name for name, values in answer.items() if None in values]
        if len(answer) != len(refs) + 1 or lacking:
            raise RuntimeError(f"{len(answer)} columns, values lacking in {lacking[:3]}")
    return taken[WARM_UP:]


def declared(folder: Path, name: str, num_features: int) -> FeatureView:
    """Its source is never read: values are written directly."""
    source = FileSource(path=os.fspath(folder / "none.parquet"), timestamp_field="event_timestamp")
    entity = Entity(name=KEY, join_keys=[KEY], value_type=ValueType.STRING)
    schema = [Field(name=f"f{i}", dtype=Float64) for i in range(num_features)]
    return FeatureView(name=name, entities=[entity], ttl=timedelta(days=1), schema=schema, source=source, online=True)


if __name__ == "__main__":
    main()
