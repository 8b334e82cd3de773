"""Served through a real store, recomputed from history: what was done wrong is found in its class, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from redis.asyncio import Redis

from core_engine.contracts import Deadline
from core_engine.metrics import Metrics
from featurestore.consistency.capture import Capture
from featurestore.consistency.comparison import Cause, Outcome
from featurestore.consistency.findings import Findings
from featurestore.consistency.log_files import LogFiles, read_log
from featurestore.consistency.recompute import CHUNK_ROWS, recompute
from featurestore.consistency.sampled_reader import SampledReader
from featurestore.consistency.served_log import ServedLog
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.keys import row_key
from featurestore.materialize import materialize
from featurestore.on_demand.declaration import Log1p, OnDemandFeature, OnDemandView, Ratio, RequestInput
from featurestore.on_demand.reader import OnDemandReader
from featurestore.online.newest_wins import FIELDS
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.featurestore.consistency.rows import WIDE
from tests.featurestore.consistency.test_log_files import EVER
from tests.featurestore.rows import HOUR, NOW, make_view, row, unique, write_source

DAY = timedelta(days=1)
KEYS = tuple(f"N{i}" for i in range(5))
NOBODY = "nobody"
SPEEDS = (0.1, float("nan"), -0.0, None, 1e308)
FIELDS_OF_PLANES = (
    Field(name="speed", type=FeatureType.FLOAT64),
    Field(name="seats", type=FeatureType.INT64),
    Field(name="label", type=FeatureType.STRING),
    Field(name="blob", type=FeatureType.BYTES),
    Field(name="built", type=FeatureType.TIMESTAMP),
    Field(name="price", type=FeatureType.DECIMAL, decimal_places=2),
    Field(name="legs", type=FeatureType.FLOAT64, is_list=True),
    Field(name="crew", type=FeatureType.INT64, default=5),  # its history has no such column
)
COLUMNS: Mapping[str, Any] = {
    "speed": pa.array(SPEEDS, pa.float64()),
    "seats": pa.array([1, -(2**63), 2**63 - 1, 4, None], pa.int64()),
    "label": ["", "é\u4e2d", None, "a", "b"],
    "blob": pa.array([b"", b"\xff\x00", None, b"a", b"b"], pa.binary()),
    "built": pa.array([datetime(1, 1, 1, tzinfo=UTC), NOW, None, NOW, NOW], pa.timestamp("us", tz="UTC")),
    "price": pa.array([Decimal("0.10"), Decimal("-1.00"), None, Decimal("9" * 36), Decimal(2)], pa.decimal128(38, 2)),
    "legs": pa.array([[0.1, float("nan")], [], None, [-0.0], [1.0]], pa.list_(pa.float64())),
}

Found = dict[tuple[str, str], dict[Outcome, int]]


def history(folder: Path, name: str, event: datetime, columns: Mapping[str, Any]) -> str:
    times = [event + timedelta(seconds=i) for i in range(len(KEYS))]
    return write_source(
        folder / f"{name}.parquet", {"entity_key": KEYS, "event_time": times, "created_time": times, **columns}
    )


@dataclass
class Scene:
    """Two views of planes, materialised up to `NOW`; `serve` reads both for every plane, and one that nobody knows."""

    folder: Path
    client: Redis
    planes: FeatureView
    weather: FeatureView
    parts: Iterator[int]

    @property
    def views(self) -> list[FeatureView]:
        return [self.planes, self.weather]

    def store(self, retention_s: float = 7 * 86_400) -> OnlineStore:
        return OnlineStore(self.client, self.views, retention_s)

    async def serve(self, at: datetime = NOW, views: Sequence[FeatureView] | None = None) -> None:
        views = views or self.views
        log = ServedLog(LogFiles(self.folder / "served", f"door{next(self.parts)}", WIDE), Metrics(), max_queued=10_000)
        online = OnlineFeatureReader(OnlineStore(self.client, views, 86_400), views, clock=lambda: at)
        reader = SampledReader(online, Capture(views), Metrics(), log, rate=1.0)
        refs = [f"{view.name}.{field.name}" for view in views for field in view.schema]
        for key in (*KEYS, NOBODY):
            await reader.read(refs, {"plane": key}, Deadline.never())
        log.close()

    def recompute(self, views: Sequence[FeatureView] | None = None, chunk_rows: int = CHUNK_ROWS) -> Findings:
        materialized = {(view.name, view.version): NOW for view in self.views}
        rows = read_log(self.folder / "served", *EVER, [])
        return recompute(rows, views or self.views, materialized=materialized, chunk_rows=chunk_rows)

    def differing(self, findings: Findings) -> Found:
        """By view (its word) and feature, the outcomes that are no match."""
        words = {self.planes.name: "planes", self.weather.name: "weather"}
        found: Found = {}
        for day in findings.days:
            for outcome, count in day.outcomes.items():
                if outcome is not Outcome.MATCH:
                    found.setdefault((words[day.view], day.feature), {})[outcome] = count
        return found


@pytest.fixture
async def scene(client: Redis, tmp_path: Path) -> Scene:
    planes = make_view(
        *FIELDS_OF_PLANES, name=unique("planes"), path=history(tmp_path, "planes", NOW - HOUR / 2, COLUMNS)
    )
    winds = history(tmp_path, "weather", NOW - HOUR / 2, {"wind": [0.0, 1.0, 2.0, 3.0, 4.0]})
    weather = make_view(Field(name="wind", type=FeatureType.FLOAT64), name=unique("weather"), path=winds)
    scene = Scene(tmp_path, client, planes, weather, itertools.count())
    for view in scene.views:
        await materialize(view, scene.store(), NOW)
    return scene


def values_of(position: int) -> dict[str, Any]:
    """The row of `KEYS[position]` as its history has it."""
    return {name: (list(c) if not isinstance(c, pa.Array) else c.to_pylist())[position] for name, c in COLUMNS.items()}


def event_of(position: int) -> datetime:
    return NOW - HOUR / 2 + timedelta(seconds=position)


async def test_what_was_materialised_and_served_is_what_history_says_for_every_type(scene: Scene) -> None:
    await scene.serve()
    findings = scene.recompute()
    assert (findings.rows, findings.failures) == (6, {})
    assert {day.feature for day in findings.days} == {*(f.name for f in FIELDS_OF_PLANES), "wind"}
    assert all(day.outcomes == {Outcome.MATCH: 6} for day in findings.days)
    assert all(day.causes == {} and day.oldest_s is None for day in findings.days)


async def test_a_tampered_value_is_found_under_its_feature_alone(scene: Scene) -> None:
    at = event_of(2)
    tampered = values_of(2) | {"speed": 0.0, "seats": None}
    await scene.store().write(scene.planes, [row(KEYS[2], tampered, at, at + timedelta(seconds=1))])
    await scene.serve()
    findings = scene.recompute()
    assert scene.differing(findings) == {
        ("planes", "speed"): {Outcome.VALUE: 1},
        ("planes", "seats"): {Outcome.NULL: 1},
    }
    speed = next(day for day in findings.days if day.feature == "speed")
    assert (speed.causes, speed.oldest_s) == ({Cause.WRONG: 1}, (NOW - at).total_seconds())


async def test_history_that_nobody_materialised_is_late_not_wrong(scene: Scene) -> None:
    later = {name: pa.concat_arrays([as_array(column), as_array(column)[:1]]) for name, column in COLUMNS.items()}
    later["seats"] = pa.array([*COLUMNS["seats"].to_pylist(), 77], pa.int64())
    times = [*(event_of(i) for i in range(5)), NOW + HOUR / 12]
    write_source(
        scene.folder / "planes.parquet",
        {"entity_key": [*KEYS, KEYS[0]], "event_time": times, "created_time": times, **later},
    )
    await scene.serve(at=NOW + HOUR / 6)
    findings = scene.recompute()
    assert scene.differing(findings) == {("planes", "seats"): {Outcome.VALUE: 1}}
    seats = next(day for day in findings.days if day.feature == "seats")
    assert (seats.causes, seats.oldest_s) == ({Cause.LATE: 1}, (HOUR / 6 + HOUR / 2).total_seconds())


async def test_a_row_that_is_gone_is_missing_and_one_past_its_retention_is_not_blamed(scene: Scene) -> None:
    await scene.client.delete(row_key(scene.weather, KEYS[1]))
    await scene.serve()
    assert scene.differing(scene.recompute()) == {("weather", "wind"): {Outcome.MISSING: 1}}
    (wind,) = (day for day in scene.recompute().days if day.feature == "wind")
    assert wind.causes == {Cause.WRONG: 1}  # it had been brought
    await scene.client.delete(row_key(scene.weather, KEYS[1]))
    await scene.serve(at=NOW + HOUR)  # past the TTL of an hour: stale for the others, on both sides
    outcomes = scene.differing(scene.recompute())["weather", "wind"]
    assert outcomes == {Outcome.MISSING: 1, Outcome.EXPIRED: 1}


async def test_rows_past_their_ttl_online_and_fresh_in_history_are_stale(scene: Scene) -> None:
    events = [NOW + HOUR * 2 / 3] * 5
    write_source(
        scene.folder / "weather.parquet",
        {"entity_key": KEYS, "event_time": events, "created_time": events, "wind": [0.0, 1.0, 2.0, 3.0, 4.0]},
    )
    await scene.serve(at=NOW + HOUR)
    findings = scene.recompute()
    assert scene.differing(findings) == {("weather", "wind"): {Outcome.STALE: 5}}
    (wind,) = (day for day in findings.days if day.feature == "wind")
    assert (wind.causes, wind.stale_ratio, wind.mismatch_ratio) == ({Cause.LATE: 5}, 5 / 6, 0)


async def test_a_corrupt_payload_is_a_failed_read_of_its_view_alone(scene: Scene) -> None:
    await scene.client.hset(row_key(scene.planes, KEYS[4]), FIELDS[2], b"\x01junk")
    await scene.serve()
    expected = {("planes", field.name): {Outcome.FAILED: 1} for field in FIELDS_OF_PLANES}
    assert scene.differing(scene.recompute()) == expected


async def test_a_changed_default_is_found_where_it_is_served(scene: Scene) -> None:
    await scene.serve()
    schema = tuple(msgspec.structs.replace(f, default=6) if f.name == "crew" else f for f in scene.planes.schema)
    changed = msgspec.structs.replace(scene.planes, schema=schema)
    found = scene.differing(scene.recompute([changed, scene.weather]))
    assert found == {("planes", "crew"): {Outcome.VALUE: 5}}


async def test_a_value_left_out_online_has_another_state_though_the_default_is_the_same(scene: Scene) -> None:
    at = event_of(1)
    await scene.store().write(scene.planes, [row(KEYS[1], values_of(1) | {"crew": 5}, at, at + timedelta(seconds=1))])
    await scene.serve()
    assert scene.differing(scene.recompute()) == {("planes", "crew"): {Outcome.STATE: 1}}


async def test_an_entity_that_history_does_not_know_is_unexpected(scene: Scene) -> None:
    await scene.store().write(scene.weather, [row(NOBODY, {"wind": 1.0}, NOW)])
    await scene.serve()
    assert scene.differing(scene.recompute()) == {("weather", "wind"): {Outcome.UNEXPECTED: 1}}


async def test_a_fault_is_counted_on_its_own_utc_day(scene: Scene) -> None:
    midnight = datetime.combine((NOW + DAY).date(), datetime.min.time(), UTC)
    last, first = midnight - timedelta(microseconds=1), midnight
    await scene.serve(at=last)
    await scene.client.delete(row_key(scene.weather, KEYS[0]))
    await scene.serve(at=first)
    findings = scene.recompute()
    wind = {day.day: day.outcomes for day in findings.days if day.feature == "wind"}
    unusable = Outcome.MISSING if midnight - event_of(0) <= HOUR else Outcome.EXPIRED
    assert wind == {
        (midnight - DAY).date(): {Outcome.MATCH: 6},
        midnight.date(): {Outcome.MATCH: 5, unusable: 1},
    }
    assert {day.day for day in findings.days} == {date.fromisoformat(f"{at:%Y-%m-%d}") for at in (last, first)}


async def test_a_view_that_cannot_be_judged_is_named_and_the_others_are_judged(scene: Scene) -> None:
    await scene.serve()
    gone = msgspec.structs.replace(scene.weather, source=msgspec.structs.replace(scene.weather.source, path="nowhere"))
    for views, word in (([scene.planes], "not registered"), ([scene.planes, gone], "nowhere")):
        findings = scene.recompute(views)
        (failure,) = findings.failures.items()
        assert failure[0] == f"{scene.weather.name}:1"
        assert word in failure[1]
        assert {day.view for day in findings.days} == {scene.planes.name}


async def test_findings_do_not_depend_on_how_many_rows_are_compared_at_once(scene: Scene) -> None:
    await scene.client.delete(row_key(scene.weather, KEYS[1]))
    await scene.serve()
    assert scene.recompute(chunk_rows=4) == scene.recompute()


def trip_of(weather: FeatureView) -> OnDemandView:
    """Two features of the wind and of the request, one of which is made of the other."""
    wind = f"{weather.name}.wind"
    return OnDemandView(
        name="trip",
        version=4,
        owner="tests",
        features=(
            OnDemandFeature(name="per_hour", transform=Ratio(of=(wind, "request.hours"))),
            OnDemandFeature(name="log", transform=Log1p(of=("trip.per_hour",))),
        ),
        inputs=(RequestInput(name="hours", type=FeatureType.FLOAT64),),
    )


async def serve_trips(scene: Scene, trip: OnDemandView) -> None:
    """Computed features alone are asked for; of the stored one they need, the log holds no value."""
    log = ServedLog(LogFiles(scene.folder / "served", "door", WIDE), Metrics())
    online = OnlineFeatureReader(scene.store(), scene.views, clock=lambda: NOW)
    reader = SampledReader(OnDemandReader(online, [trip]), Capture(scene.views, [trip]), Metrics(), log, rate=1.0)
    for position, key in enumerate((*KEYS, NOBODY)):
        hours = {"hours": None if position == 1 else float(position), "unused": object()}
        await reader.read(["trip.log", "trip.per_hour"], {"plane": key}, Deadline.never(), inputs=hours)  # type: ignore[arg-type]
    log.close()


async def test_computed_features_are_recomputed_from_history_and_the_requests_inputs(scene: Scene) -> None:
    trip = trip_of(scene.weather)
    await serve_trips(scene, trip)
    rows = list(read_log(scene.folder / "served", *EVER, []))
    assert {row.computed[0].inputs["hours"] for row in rows} == {0.0, None, 2.0, 3.0, 4.0, 5.0}
    findings = recompute(rows, scene.views, [trip])
    assert findings.failures == {}
    same = {Outcome.MATCH: 6}
    assert {day.feature: day.outcomes for day in findings.days} == {"log": same, "per_hour": same}


async def test_a_computed_feature_of_a_tampered_one_is_found(scene: Scene) -> None:
    trip, at = trip_of(scene.weather), event_of(2)
    await scene.store().write(scene.weather, [row(KEYS[2], {"wind": 9.0}, at, at + timedelta(seconds=1))])
    await serve_trips(scene, trip)
    rows = list(read_log(scene.folder / "served", *EVER, []))
    findings = recompute(rows, scene.views, [trip])
    wrong = {Outcome.MATCH: 5, Outcome.VALUE: 1}
    assert {day.feature: day.outcomes for day in findings.days} == {"log": wrong, "per_hour": wrong}
    assert "trip version 4 was served and is not registered" in recompute(rows, scene.views).failures["trip:4"]


def as_array(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column)
