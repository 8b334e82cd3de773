"""The input of the two nightly jobs: facts per route for `route_brief`, flights next due for `delay_risk`.

Everything as it is known at one instant of the shifted clock; the same instant gives the same files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from core_engine.contracts import FeatureState, Scalar
from examples.flights.data import connect
from examples.flights.prepare import Prepared
from examples.flights.upcoming import upcoming_flights
from featurestore.offline.store import STATE_SUFFIX, OfflineStore

ROUTE_FACTS = ("mean_delay", "late_share", "flights")


def brief_rows(prepared: Prepared, now: datetime, n: int = 44) -> list[dict[str, Scalar]]:
    """Inputs of `route_brief` for the `n` busiest routes of the last 28 days, the busiest first."""
    routes = _routes(prepared)
    at = pa.array([now.astimezone(UTC)] * routes.num_rows, pa.timestamp("us", tz="UTC"))
    refs = [f"route_daily.{name}" for name in ROUTE_FACTS]
    store = OfflineStore(prepared.views, prepared.clock.shift)
    known = store.as_of_join(routes.append_column("now", at), refs, {"route": "route"}, "now").to_pylist()
    present = [row for row in known if all(row[ref + STATE_SUFFIX] == FeatureState.PRESENT for ref in refs)]
    present.sort(key=lambda row: (-row["route_daily.flights"], row["route"]))
    return [
        {"origin": row["origin"], "dest": row["dest"], "distance": float(row["distance"])}
        | {name: row[f"route_daily.{name}"] for name in ROUTE_FACTS}
        for row in present[:n]
    ]


def risk_rows(prepared: Prepared, now: datetime, n: int = 500) -> list[dict[str, Scalar]]:
    """Inputs of `delay_risk` for the `n` flights next due, one row per key: flights that share it share the answer."""
    rows = {tuple(map(str, flight.inputs.values())): flight.inputs for flight in upcoming_flights(prepared, now, n)}
    return list(rows.values())


def write_rows(path: Path, rows: Iterable[Mapping[str, Scalar]]) -> Path:
    """JSON lines, as the batch door reads them. Returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def _routes(prepared: Prepared) -> pa.Table:
    """Every route that is planned in the data, with its distance."""
    with connect() as db:
        flights: duckdb.DuckDBPyRelation = db.read_parquet(str(prepared.flights_path))
        facts = flights.aggregate("route, origin, dest, any_value(distance) AS distance")
        routes: pa.Table = facts.order("route").to_arrow_table()
        return routes
