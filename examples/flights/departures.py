"""The real departures before now, under the shifted clock, as the events that an airport would send."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from examples.flights.prepare import Prepared

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_COLUMNS = (
    *("carrier", "flight", "origin", "dest", "distance", "offset_s"),
    *("scheduled_departure", "departure", "departure_delay"),
)


@dataclass(frozen=True, slots=True)
class DepartureEvent:
    """One flight that left, in real time; `late` is what came of it, which the event does not say."""

    event_id: str
    event_time: datetime  # of departure
    carrier: str
    flight: int
    origin: str
    dest: str
    scheduled_departure: datetime  # with the airport's own UTC offset
    departure_delay: float  # minutes
    distance: float  # miles
    late: bool | None

    @property
    def key(self) -> bytes:
        """Events of one flight stay in order; two flights need not."""
        return f"{self.carrier}-{self.flight}-{self.origin}".encode()

    def to_json(self) -> bytes:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["late"]
        return msgspec.json.encode(fields)


def departure_events(prepared: Prepared, now: datetime, n: int = 2000) -> tuple[DepartureEvent, ...]:
    """The `n` departures last before `now`, in order of departure; fewer only at the beginning of the year."""
    flights = pyarrow.parquet.read_table(prepared.flights_path, columns=[*_COLUMNS, "late"])
    us = flights["departure"].cast(pa.int64())
    now_us = (prepared.clock.to_data(now) - _EPOCH) // _MICROSECOND
    gone = flights.append_column("us", us).filter(pc.less_equal(us, now_us))
    order = pc.sort_indices(gone, [("us", "ascending"), ("carrier", "ascending"), ("flight", "ascending")])
    last = gone.take(order[-n:])
    scheduled = last["scheduled_departure"].cast(pa.int64()).to_pylist()  # no time zone database is asked
    rows = last.drop_columns(["scheduled_departure", "departure"]).to_pylist()
    return tuple(_event(prepared, row, us) for row, us in zip(rows, scheduled, strict=True))


def _event(prepared: Prepared, row: dict[str, Any], scheduled_us: int) -> DepartureEvent:
    shifted, offset = prepared.clock.to_real, timezone(timedelta(seconds=row["offset_s"]))
    scheduled = shifted(_EPOCH + scheduled_us * _MICROSECOND)
    return DepartureEvent(
        event_id=f"{row['carrier']}-{row['flight']}-{row['origin']}-{scheduled:%Y%m%dT%H%M}",
        event_time=shifted(_EPOCH + row["us"] * _MICROSECOND),
        carrier=row["carrier"],
        flight=row["flight"],
        origin=row["origin"],
        dest=row["dest"],
        scheduled_departure=scheduled.astimezone(offset),
        departure_delay=float(row["departure_delay"]),
        distance=float(row["distance"]),
        late=row["late"],
    )
