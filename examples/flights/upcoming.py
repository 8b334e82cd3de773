"""The real flights next due, as the requests that would be sent for them at this moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from core_engine.contracts import Scalar
from examples.flights.prepare import Prepared
from examples.flights.training import LEAD

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = ("carrier", "flight", "origin", "dest", "distance", "offset_s", "scheduled_departure", "late")


@dataclass(frozen=True, slots=True)
class UpcomingFlight:
    """`inputs` of one delay_risk request, in real time. `late` is what came of it: None where cancelled or diverted."""

    name: str  # as passengers know it: "UA 1545"
    inputs: dict[str, Scalar]
    late: bool | None

    @property
    def scheduled_departure(self) -> datetime:
        instant = self.inputs["scheduled_departure"]
        assert isinstance(instant, datetime)
        return instant


def upcoming_flights(prepared: Prepared, now: datetime, n: int = 500) -> tuple[UpcomingFlight, ...]:
    """The `n` flights next due whose prediction instant, two hours before departure, is `now` or later.

    In order of departure. Fewer only where the year ends; under the shifted clock six weeks lie ahead of now.
    """
    flights = pyarrow.parquet.read_table(prepared.flights_path, columns=list(_COLUMNS))
    first_due = prepared.clock.to_data(now) + LEAD
    due = flights.filter(pc.greater_equal(flights["scheduled_departure"], pa.scalar(first_due.astimezone(UTC))))
    due = due.slice(0, n)  # flights are in order of departure
    microseconds = due["scheduled_departure"].cast(pa.int64()).to_pylist()  # no time zone database is asked
    rows = due.drop_columns(["scheduled_departure"]).to_pylist()
    return tuple(_upcoming(prepared, row, us) for row, us in zip(rows, microseconds, strict=True))


def _upcoming(prepared: Prepared, row: dict[str, Scalar], departure_us: int) -> UpcomingFlight:
    offset_s, distance, late = row["offset_s"], row["distance"], row["late"]
    assert isinstance(offset_s, int)
    assert isinstance(distance, int)
    assert late is None or isinstance(late, bool)
    local = (_EPOCH + timedelta(microseconds=departure_us)).astimezone(timezone(timedelta(seconds=offset_s)))
    inputs: dict[str, Scalar] = {
        "carrier": row["carrier"],
        "origin": row["origin"],
        "dest": row["dest"],
        "scheduled_departure": prepared.clock.to_real(local),
        "distance": float(distance),
    }
    return UpcomingFlight(f"{row['carrier']} {row['flight']}", inputs, late)
