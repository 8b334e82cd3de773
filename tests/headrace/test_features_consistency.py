"""`headrace features consistency` over a state folder: what is shown, stored, exported and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from sqlalchemy import Engine, delete, text
from sqlalchemy.orm import Session

from core_engine.contracts import FeatureState
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from featurestore.consistency.comparison import Outcome
from featurestore.consistency.log_files import LogFiles
from featurestore.consistency.results import load_days
from featurestore.consistency.served_rows import ServedRow, ServedView
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import to_us
from featurestore.registry import register_view
from featurestore.tables import ConsistencyRecord, WatermarkRecord
from headrace.consistency_gauges import ConsistencyGauges
from headrace.features_consistency import ConsistencyOptions, run_consistency
from headrace.migrations import upgrade
from tests.featurestore.consistency.rows import WIDE, write
from tests.featurestore.rows import make_view, write_source

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIRST = datetime(2026, 3, 7, tzinfo=UTC)  # the day before New York's clocks change
TRUE, FALSE = 1.5, 2.5


def served(at: datetime, value: float, view: str = "wind", event: datetime | None = None) -> ServedRow:
    event_us = to_us(at - HOUR if event is None else event, "event")
    served_view = ServedView(view, 1, "JFK", event_us, ("speed",), (FeatureState.PRESENT,), (value,))
    return ServedRow(to_us(at, "at"), (served_view,))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
def view(settings: Settings, tmp_path: Path) -> FeatureView:
    """Registered; its history has one row per hour of five days, always the same value."""
    hours = [FIRST + i * HOUR for i in range(5 * 24)]
    columns = {
        "entity_key": ["JFK"] * len(hours),
        "event_time": hours,
        "created_time": hours,
        "speed": [TRUE] * len(hours),
    }
    path = write_source(tmp_path / "wind.parquet", columns)
    return make_view(Field(name="speed", type=FeatureType.FLOAT64), name="wind", path=path, ttl_s=7200.0)


@pytest.fixture
def database(settings: Settings, view: FeatureView) -> Iterator[Engine]:
    upgrade(settings.database_url)
    engine = open_database(settings.database_url)
    with Session(engine) as session, session.begin():
        register_view(session, view)
        at = FIRST + 5 * HOUR
        mark = WatermarkRecord(name="wind", version=1, watermark=at, digest=None, fence=1, updated_at=at)
        session.add(mark)
    yield engine
    engine.dispose()


@pytest.fixture
def log(settings: Settings) -> list[ServedRow]:
    """One read every hour, five minutes past it, of four days; on the second day a quarter of them are wrong."""
    rows = []
    for i in range(96):
        at = FIRST + i * HOUR + HOUR / 12
        rows.append(served(at, FALSE if 24 <= i < 48 and i % 4 == 0 else TRUE, event=FIRST + i * HOUR))
    files = LogFiles(settings.served_dir, "door", WIDE)
    write(files, *rows)
    files.close()
    return rows


def run(settings: Settings, **options: object) -> tuple[bool, str]:
    console = Console(record=True, width=200)
    is_fine = run_consistency(settings, ConsistencyOptions(**options), console)  # type: ignore[arg-type]
    return is_fine, console.export_text()


@pytest.mark.usefixtures("log")
def test_each_utc_day_is_shown_stored_and_exported_by_the_gauges(settings: Settings, database: Engine) -> None:
    is_fine, shown = run(settings)
    assert is_fine
    with Session(database) as session:
        days = load_days(session)
        assert [day.day.isoformat() for day in load_days(session, newest_only=True)] == ["2026-03-10"]
    assert [(day.day.isoformat(), day.samples, day.mismatch_ratio) for day in days] == [
        ("2026-03-07", 24, 0.0),
        ("2026-03-08", 24, 0.25),
        ("2026-03-09", 24, 0.0),
        ("2026-03-10", 24, 0.0),
    ]
    assert all(day.isoformat() in shown for day in (each.day for each in days))
    assert "25.00" in shown
    assert "value 6" in shown


@pytest.mark.usefixtures("log")
async def test_the_gauges_show_the_newest_day_and_forget_a_feature_that_is_not_in_it(
    settings: Settings, database: Engine
) -> None:
    page, gauges = CollectorRegistry(), ConsistencyGauges(database)
    page.register(gauges)
    await gauges.refresh()
    assert b'view="' not in generate_latest(page)
    run(settings, end=datetime(2026, 3, 9))
    await gauges.refresh()
    shown = generate_latest(page).decode()
    of_speed = 'feature="speed",{}version="1",view="wind"'
    ratio, samples = of_speed.format('kind="mismatch",'), of_speed.format("")
    assert f"headrace_feature_consistency_ratio{{{ratio}}} 0.25" in shown
    assert f"headrace_feature_consistency_samples{{{samples}}} 24.0" in shown
    with Session(database) as session, session.begin():
        session.execute(delete(ConsistencyRecord))
    await gauges.refresh()
    assert b"speed" not in generate_latest(page)


@pytest.mark.usefixtures("log")
async def test_gauges_whose_database_fails_stay_as_they_are(settings: Settings, database: Engine) -> None:
    page, gauges = CollectorRegistry(), ConsistencyGauges(database)
    page.register(gauges)
    run(settings, end=datetime(2026, 3, 9))
    await gauges.refresh()
    shown = generate_latest(page)
    assert b'view="wind"' in shown
    with database.begin() as connection:
        connection.execute(text("DROP TABLE feature_consistency"))
    await gauges.refresh()
    assert generate_latest(page) == shown


@pytest.mark.usefixtures("log", "database")
def test_days_are_utcs_and_the_last_is_left_out(settings: Settings) -> None:
    _, shown = run(settings, begin=datetime(2026, 3, 8), end=datetime(2026, 3, 9), max_mismatch=0.1, is_json=True)
    report = json.loads(shown)
    assert report["past_limit"] == ["wind:1.speed on 2026-03-08: mismatch ratio 0.25 is past the limit 0.1"]
    assert report["rows"] == 24
    (day,) = report["days"]
    assert day["day"] == "2026-03-08"
    assert day["outcomes"] == {"value": 6, "match": 18}
    assert day["causes"] == {"wrong": 6}
    assert day["mismatch_ratio"] == 0.25


@pytest.mark.usefixtures("log", "database")
def test_a_ratio_past_the_limit_fails_and_is_named(settings: Settings) -> None:
    is_fine, shown = run(settings, max_mismatch=0.2)
    assert not is_fine
    assert "wind:1.speed on 2026-03-08: mismatch ratio 0.25 is past the limit 0.2" in shown
    assert run(settings, max_mismatch=0.25)[0]


@pytest.mark.usefixtures("log")
def test_computing_a_day_again_replaces_that_day_alone(settings: Settings, database: Engine, view: FeatureView) -> None:
    run(settings)
    hour = FIRST + DAY
    columns = {"entity_key": ["JFK"], "event_time": [hour], "created_time": [hour], "speed": [FALSE]}
    write_source(Path(view.source.path), columns)
    run(settings, begin=datetime(2026, 3, 8), end=datetime(2026, 3, 9))
    with Session(database) as session:
        days = load_days(session)
    assert [day.outcomes.get(Outcome.MATCH, 0) for day in days] == [24, 1, 24, 24]


@pytest.mark.usefixtures("log", "database")
def test_a_shift_moves_history_as_where_it_was_materialised(settings: Settings) -> None:
    is_fine, shown = run(settings, shift=-10 * DAY, end=datetime(2026, 3, 8))
    assert is_fine  # no limit
    assert "unexpected 24" in shown


@pytest.mark.usefixtures("database")
def test_what_cannot_be_judged_fails_and_is_named_beside_the_rest(settings: Settings) -> None:
    files = LogFiles(settings.served_dir, "door", WIDE)
    write(files, served(FIRST + HOUR, TRUE), served(FIRST + HOUR, TRUE, view="nobody"))
    files.close()
    (path,) = settings.served_dir.iterdir()
    with path.open("ab") as file:
        file.write(b"torn")
    is_fine, shown = run(settings)
    assert not is_fine
    assert "nobody:1 could not be judged" in shown
    assert "its last row is unfinished" in shown
    assert "wind:1.speed" in shown


@pytest.mark.usefixtures("database")
def test_an_empty_log_says_what_switches_it_on(settings: Settings) -> None:
    is_fine, shown = run(settings)
    assert is_fine
    assert "HEADRACE_FEATURES__SERVED_SAMPLE_RATE" in shown


@pytest.mark.usefixtures("log", "database")
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_plot_is_drawn_in_the_format_of_its_name(settings: Settings, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    run(settings, plot_file=path)
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
