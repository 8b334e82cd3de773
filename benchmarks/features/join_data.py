"""What point-in-time joins are measured on: three histories of payments, and events that ask for all three.

Made by a seed. Of every history there are two files: in `late` a tenth of the rows became known up to three days after
their event, as corrections and slow feeds do; in `on_time` each row was known at once, so that both clocks are one.
One event in a hundred comes twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ENTITIES: Final = {"merchant": 500, "device": 5_000, "card": 50_000}  # views by name, and how many keys each has
FEATURES: Final = ("amount", "mean", "share", "count")
TTL_S: Final = 30 * 86_400.0
HISTORIES: Final = ("late", "on_time")
SPINE: Final = "events.parquet"

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_DAY_US: Final = 86_400_000_000
_START_US: Final = 15_706 * _DAY_US  # 2013-01-01
_LATE_US: Final = 3 * _DAY_US


def history_path(folder: Path, view: str, history: str) -> Path:
    return folder / f"{view}_{history}.parquet"


def write_data(folder: Path, num_events: int, num_rows: int) -> None:
    """Writes `num_events` events and `num_rows` rows for each history into `folder`."""
    rng = np.random.default_rng(0)
    for view, num_keys in ENTITIES.items():
        event_us, keys = _instants(rng, num_rows), _keys(rng, view, num_keys, num_rows)
        late_us = event_us + np.where(rng.random(num_rows) < 0.1, rng.integers(1, _LATE_US, num_rows), 0)
        values = {name: pa.array(rng.normal(size=num_rows)) for name in FEATURES[:3]}
        values[FEATURES[3]] = pa.array(rng.integers(0, 1000, num_rows))
        for history, created_us in zip(HISTORIES, (late_us, event_us), strict=True):
            clocks = {"event_time": pa.array(event_us, _INSTANT), "created_time": pa.array(created_us, _INSTANT)}
            pq.write_table(pa.table({view: keys} | clocks | values), history_path(folder, view, history))
    spine = {"at": pa.array(rng.permutation(_instants(rng, num_events)), _INSTANT)}
    spine |= {view: _keys(rng, view, num_keys, num_events) for view, num_keys in ENTITIES.items()}
    again = np.arange(num_events)
    again[99::100] -= 1
    pq.write_table(pa.table(spine).take(again), folder / SPINE)


def _instants(rng: np.random.Generator, count: int) -> np.ndarray:
    """Within one year, ascending."""
    return np.sort(rng.integers(_START_US, _START_US + 365 * _DAY_US, count))


def _keys(rng: np.random.Generator, view: str, num_keys: int, count: int) -> pa.Array:
    names = pa.array([f"{view}{number}" for number in range(num_keys)])
    return names.take(pa.array(rng.integers(0, num_keys, count)))
