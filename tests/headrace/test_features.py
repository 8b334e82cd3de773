"""`headrace features` from the command line: a registry, a real Valkey and Parquet behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from sqlalchemy import delete, update
from sqlalchemy.orm import Session
from typer.testing import CliRunner, Result

from core_engine.errors import ConfigurationError, HeadraceError
from core_engine.predictors.declaration import Column, ColumnKind, FeatureUse
from core_engine.predictors.registry import LIVE, Registry
from core_engine.predictors.tables import PredictorAlias, open_database
from featurestore.lifecycle.watermarks import Watermarks
from featurestore.registry import load_on_demand_views, load_views
from featurestore.tables import WatermarkRecord
from headrace.cli import app
from tests.core_engine.predictors.doubles import delay_predictor
from tests.featurestore.conftest import own_server, socket_dir
from tests.featurestore.rows import HOUR, NOW, write_source
from tests.featurestore.valkey import Valkey

__all__ = ["own_server", "socket_dir"]

REPOSITORY = """
from featurestore.definitions import *
from featurestore.on_demand.declaration import *
from featurestore.repository import FeatureRepository

def view(name, path, version=1, ttl_s={ttl_s}):
    fields = (Field(name="mean", type=FeatureType.FLOAT64), Field(name="flights", type=FeatureType.INT64, default=0))
    return FeatureView(name=name, version=version, entity="route", schema=fields, ttl_s=ttl_s, owner="tests",
                       source=ParquetSource(path=path))

window = Window(topic="t", key=("origin", "dest"), tile_s=60, num_tiles=2, grace_s=60,
    aggregates=(Aggregate(feature="events", kind=AggregateKind.COUNT),),
    tiles=ParquetSource(path="tiles.parquet"), events=ParquetSource(path="events.parquet"))
busy = FeatureView(name="busy", version=1, entity="route", schema=(Field(name="events", type=FeatureType.INT64),),
    ttl_s=3600, owner="tests", source=ParquetSource(path="busy.parquet"), window=window)
computed = OnDemandView(name="computed", version=1, owner="tests",
    features=(OnDemandFeature(name="log_mean", transform=Log1p(of=("delays.mean",))),))
repository = FeatureRepository(entities=(Entity(name="route", join_keys=("origin", "dest"), owner="tests"),),
    views=(view("delays", "delays.parquet", {version}), view("weather", "weather.parquet"), busy),
    on_demand_views=(computed,))
"""


@dataclass
class Site:
    """A project's folder, where its repository and its sources lie, and where the command is run."""

    folder: Path
    server: Valkey
    url: str

    def run(self, *arguments: str, asked: str | None = None) -> Result:
        return CliRunner().invoke(app, ["features", *arguments], input=asked)

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        """The sentence of a command that is refused by an error of ours."""
        done = self.run(*arguments)
        assert isinstance(done.exception, HeadraceError), (done.output, done.exception)
        return str(done.exception)

    def declare(self, name: str, version: int = 1, ttl_s: int = 7200) -> str:
        (self.folder / f"{name}.py").write_text(REPOSITORY.format(version=version, ttl_s=ttl_s))
        return f"{name}:repository"

    def source(self, name: str, rows: dict[str, float], at: datetime = NOW - HOUR) -> None:
        instants = [at] * len(rows)
        columns = {"entity_key": list(rows), "event_time": instants, "created_time": instants}
        write_source(self.folder / f"{name}.parquet", {**columns, "mean": list(rows.values())})

    @property
    def keys(self) -> set[str]:
        with redis.Redis.from_url(self.server.url) as client:
            return {key.decode() for key in client.scan_iter()}


@pytest.fixture
def site(tmp_path: Path, own_server: Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HEADRACE_REDIS__URL", own_server.url)
    monkeypatch.setenv("COLUMNS", "300")
    before = set(sys.modules)
    yield Site(tmp_path, own_server, f"sqlite:///{tmp_path / 'state' / 'headrace.db'}")
    for name in [name for name in sys.modules if name.startswith("declared_")]:
        if name not in before:
            del sys.modules[name]


@pytest.fixture
def applied(site: Site) -> Site:
    site.ok("apply", site.declare("declared_first"), "--yes")
    site.source("delays", {"JFK|LAX": 1.5, "JFK|SFO": 2.5})
    site.source("weather", {"JFK|LAX": 9.0})
    return site


# -- declarations


def test_what_would_be_registered_is_shown_before_it_is(site: Site) -> None:
    path = site.declare("declared_new")
    shown = site.ok("apply", path, "--dry-run")
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["new"] * 5
    assert "nobody is there to ask" in site.refused("apply", path)
    assert site.json("list") == []
    site.ok("apply", path, "--yes")
    assert [view["view"]["name"] for view in site.json("list")] == ["busy", "delays", "weather"]
    assert {change["verdict"] for change in site.json("apply", path)} == {"same"}, "and again it asks nothing"


def test_a_changed_version_is_refused_by_field_and_told_the_next_number(applied: Site) -> None:
    path = applied.declare("declared_changed", ttl_s=60)
    sentence = applied.refused("apply", path, "--yes")
    assert "view delays:1 is frozen (ttl_s: 7200.0 -> 60): declare version 2" in sentence
    assert "view weather:1 is frozen" in sentence
    done = applied.run("diff", path)
    assert done.exit_code == 1
    assert "ttl_s: 7200.0 -> 60" in done.stdout
    assert {view["view"]["ttl_s"] for view in applied.json("list")} == {7200, 3600}


def test_a_repository_that_is_not_there_is_one_sentence(site: Site) -> None:
    assert "cannot be loaded" in site.refused("apply", "declared_nowhere:repository", "--yes")


def test_a_view_is_described_with_its_schema(applied: Site) -> None:
    shown = applied.ok("describe", "delays")
    for word in ("delays:1", "route", "delays.parquet", "flights", "int64", "float64", "0"):
        assert word in shown
    assert applied.json("describe", "delays:1")["view"]["name"] == "delays"
    assert "windows" not in shown
    assert "2 tiles of 1 min" in applied.ok("describe", "busy")
    assert "nothing is unknown; registered: busy:1, delays:1, weather:1" in applied.refused("describe", "nothing")
    assert "expected VIEW or VIEW:VERSION" in applied.refused("describe", "delays:new")


# -- values


def test_a_view_is_brought_online_and_read_as_a_door_would(applied: Site) -> None:
    [done] = applied.json("materialize", "delays")
    assert done["error"] is None
    assert (done["report"]["kind"], done["report"]["written"]) == ("full", 2)
    [again] = applied.json("materialize", "delays", "--shards", "2", "--rows-per-second", "1000")
    assert (again["report"]["kind"], again["report"]["entities"]) == ("incremental", 0)
    values = applied.json("get", "delays", "JFK|LAX")["values"]
    assert values["delays.mean"]["value"] == 1.5
    assert values["delays.mean"]["state"] == "present"
    assert values["delays.flights"] | {"age_s": 0} == {"value": 0, "state": "default", "age_s": 0}
    assert "missing" in applied.ok("get", "delays", "unknown")
    assert "UTC" in applied.ok("list")


def test_the_past_is_read_and_rebuilt_as_it_was_known(applied: Site) -> None:
    before = (NOW - 2 * HOUR).isoformat()
    assert "missing" in applied.ok("get", "delays", "JFK|LAX", "--as-of", before)
    assert "1.5" in applied.ok("get", "delays", "JFK|LAX", "--as-of", (NOW - HOUR).isoformat())
    shift = applied.json("get", "delays", "JFK|LAX", "--as-of", NOW.isoformat(), "--shift-days", "1")
    assert shift["values"]["delays.mean"]["state"] == "missing", "a day later, it is not known yet"
    applied.ok("materialize", "delays")
    [done] = applied.json("materialize", "delays", "--as-of", before)
    assert (done["report"]["kind"], done["report"]["entities"]) == ("rebuild", 0)
    assert datetime.fromisoformat(done["report"]["watermark"]) > NOW
    late = (NOW + timedelta(days=1)).isoformat()
    assert "is still to come" in applied.refused("materialize", "delays", "--as-of", late)
    assert "--as-of = 'noon'" in applied.refused("materialize", "delays", "--as-of", "noon")


def test_a_view_that_fails_leaves_the_others_to_be_brought_online(applied: Site) -> None:
    (applied.folder / "delays.parquet").unlink()
    done = applied.run("materialize", "delays", "weather")
    assert done.exit_code == 1
    assert "delays:1: feature view delays: source 'delays.parquet' does not exist" in done.stdout
    assert "weather:1: full" in done.stdout
    assert "hr:weather:1:{JFK|LAX}" in applied.keys
    assert applied.run("materialize").exit_code == applied.run("materialize", "delays", "--all").exit_code == 2


def test_a_window_is_backfilled_from_its_events_and_then_seeded(applied: Site) -> None:
    instant = [NOW - HOUR + timedelta(seconds=30 * i) for i in range(4)]
    events = {"event_time": instant, "created_time": instant, "origin": ["JFK"] * 4, "dest": ["LAX"] * 4}
    coordinates = {"source": ["t/0"] * 4, "offset": pa.array(range(4), pa.int64())}
    times = {name: pa.array(events.pop(name), pa.timestamp("us", tz="UTC")) for name in ("event_time", "created_time")}
    pq.write_table(pa.table({**times, **events, **coordinates}), applied.folder / "events.parquet")
    done = applied.json("backfill", "busy")
    assert (done["events"], done["entities"]) == (4, 1)
    assert "from 4 events in " in applied.ok("backfill", "busy")
    [seeded] = applied.json("materialize", "busy")
    assert (seeded["error"], seeded["report"]["entities"]) == (None, 1)
    assert "there is nothing to make it from" in applied.refused("backfill", "delays")


def test_a_run_that_was_killed_is_gone_on_with_when_its_lease_has_run_out(applied: Site) -> None:
    applied.source("delays", {f"JFK|{i}": float(i) for i in range(200)})
    with redis.Redis.from_url(applied.server.url) as client, client.pubsub() as told:
        client.config_set("notify-keyspace-events", "Kh")
        told.psubscribe("__keyspace@0__:hr:delays:1:marks")
        command = [sys.executable, "-m", "headrace", "features", "materialize", "delays", "--rows-per-second", "40"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as killed:
            marked = (message["data"] for message in told.listen() if message["type"] == "pmessage")
            assert [next(marked), next(marked)] == [b"hset"] * 2, "the second comes after the registry has the first"
            killed.kill()
    done = applied.run("materialize", "delays")
    assert "being written by process " in done.stdout
    database = open_database(applied.url)
    with Session(database) as session, session.begin():
        session.execute(update(WatermarkRecord).values(leased_until=NOW - HOUR))  # as if time had passed
    database.dispose()
    [report] = [outcome["report"] for outcome in applied.json("materialize", "delays")]
    assert report["is_resumed"]
    assert 0 < report["entities"] < 200
    assert len([key for key in applied.keys if key.startswith("hr:delays:1:{")]) == 200


# -- deletion


def make_live(site: Site, ref: str) -> None:
    columns = (
        Column(name="origin", kind=ColumnKind.CATEGORY, source="origin", values=("JFK",)),
        Column(name="it", kind=ColumnKind.NUMERIC, source=ref),
    )
    predictor = delay_predictor(site.folder, features=(FeatureUse(ref=ref),), columns=columns)
    database = open_database(site.url)
    registry = Registry(database)
    registry.register(predictor)
    registry.set_alias(predictor.name, LIVE, predictor.version)
    database.dispose()


@pytest.mark.parametrize("ref", ["delays.mean", "computed.log_mean"])
def test_a_view_that_a_live_predictor_reads_is_not_deleted(applied: Site, ref: str) -> None:
    applied.ok("materialize", "delays")
    make_live(applied, ref)
    sentence = applied.refused("delete", "delays", "--version", "1", "--yes")
    assert "delays version 1 is read by delay:1" in sentence
    assert "hr:delays:1:{JFK|LAX}" in applied.keys
    applied.ok("delete", "weather", "--version", "1", "--yes")
    applied.ok("apply", applied.declare("declared_second", version=2), "--yes")
    assert "3 keys removed" in applied.ok("delete", "delays", "--version", "1", "--yes"), "the newest one is read"


def test_an_on_demand_view_is_deleted_by_its_registration_alone(applied: Site) -> None:
    make_live(applied, "computed.log_mean")
    assert "computed version 1 is read by delay:1" in applied.refused("delete", "computed", "--version", "1", "--yes")
    database = open_database(applied.url)
    with Session(database) as session, session.begin():
        session.execute(delete(PredictorAlias))
    assert "0 keys removed" in applied.ok("delete", "computed", "--version", "1", "--yes")
    with Session(database) as session:
        assert load_on_demand_views(session) == []
    database.dispose()
    assert "computed version 2 is unknown" in applied.refused("delete", "computed", "--version", "2", "--yes")


def test_a_deleted_view_is_gone_from_store_and_registry_and_may_come_back(applied: Site) -> None:
    applied.ok("materialize", "delays", "weather")
    assert "nobody is there to ask" in applied.refused("delete", "delays", "--version", "1")
    assert applied.json("delete", "delays", "--version", "1", "--yes")["keys"] == 3
    assert not [key for key in applied.keys if key.startswith("hr:delays:")]
    assert "hr:weather:1:{JFK|LAX}" in applied.keys
    assert [view["view"]["name"] for view in applied.json("list")] == ["busy", "weather"]
    assert "delays version 2 is unknown" in applied.refused("delete", "delays", "--version", "2", "--yes")
    applied.ok("apply", "declared_first:repository", "--yes")
    [done] = applied.json("materialize", "delays")
    assert done["report"]["written"] == 2


def test_keys_that_no_registry_knows_are_deleted_by_that_name_only(applied: Site) -> None:
    applied.ok("materialize", "delays")
    assert "is registered; leave out" in applied.refused(
        "delete", "delays", "--version", "1", "--yes", "--unregistered"
    )
    with redis.Redis.from_url(applied.server.url) as client:
        client.set("hr:old:3:{a}", "x")
    assert "old:3" in applied.run("doctor").stdout
    assert "1 keys removed" in applied.ok("delete", "old", "--version", "3", "--yes", "--unregistered")


# -- health


def findings(site: Site, exit_code: int, *arguments: str) -> dict[tuple[str, str], dict[str, str]]:
    done = site.run("doctor", "--json", *arguments)
    assert done.exit_code == exit_code, done.output
    return {(check["subject"], check["name"]): check for check in json.loads(done.stdout)}


def test_the_doctor_finds_a_store_and_views_that_are_well(site: Site) -> None:
    site.ok("apply", site.declare("declared_well"), "--yes")
    for name in ("delays", "weather"):
        site.source(name, {f"JFK|{i}": 1.0 for i in range(300)}, NOW)
    site.ok("delete", "busy", "--version", "1", "--yes")
    site.ok("materialize", "--all")
    found = findings(site, 0)
    assert {check["health"] for check in found.values()} == {"ok", "warning"}
    warned = [place for place, check in found.items() if check["health"] == "warning"]
    assert warned == [("redis", "persistence"), ("delays:1", "lacking columns"), ("weather:1", "lacking columns")]
    assert found["delays:1", "online"]["found"] == "200 of 200 sampled entities of the source"
    assert found["delays:1", "memory"]["found"].startswith("300 entities, ")
    assert "0 problems, 3 warnings" in site.ok("doctor")


def test_the_doctor_names_what_is_wrong_with_a_view(applied: Site) -> None:
    applied.ok("materialize", "delays")
    with redis.Redis.from_url(applied.server.url) as client:
        client.unlink("hr:delays:1:{JFK|SFO}")
        client.hset("hr:delays:1:{JFK|LAX}", "p", b"\x00what")
        client.config_set("maxmemory", 100 << 20)
        client.config_set("maxmemory-policy", "allkeys-lru")
    columns = {"entity_key": ["JFK|LAX"], "event_time": [NOW], "created_time": [NOW]}
    write_source(applied.folder / "weather.parquet", {**columns, "mean": ["cold"]})
    found = findings(applied, 1)
    health = {place: check["health"] for place, check in found.items()}
    assert health["delays:1", "online"] == "warning"
    assert "'JFK|SFO' is not there" in found["delays:1", "online"]["advice"]
    assert health["delays:1", "readable"] == "problem"
    assert health["weather:1", "source"] == "problem"
    assert "mean" in found["weather:1", "source"]["found"]
    assert health["weather:1", "watermark"] == "warning"
    assert health["redis", "eviction"] == "problem"


def test_the_doctor_says_that_the_store_is_away_and_still_looks_at_sources(applied: Site) -> None:
    applied.server.kill()
    found = findings(applied, 1)
    assert found["redis", "reachable"]["health"] == "problem"
    assert found["delays:1", "source"]["health"] == "ok"


def test_the_doctor_tells_stale_watermarks_extra_columns_and_unfinished_deletions(applied: Site) -> None:
    applied.ok("materialize", "delays", "--as-of", (NOW - 3 * HOUR).isoformat())
    columns = {"entity_key": ["a"], "event_time": [NOW], "created_time": [NOW], "mean": [1.0], "flights": [1]}
    write_source(applied.folder / "weather.parquet", {**columns, "wind": [1.0]})
    applied.server.kill()
    assert applied.run("delete", "busy", "--version", "1", "--yes").exit_code != 0
    applied.server.start()
    found = findings(applied, 1)
    assert found["delays:1", "watermark"]["health"] == "problem"
    assert found["weather:1", "extra columns"]["found"] == "wind"
    assert found["busy:1", "deletion"]["advice"] == "headrace features delete busy --version 1"


def test_a_busy_view_is_said_to_be_busy(applied: Site) -> None:
    database = open_database(applied.url)
    Watermarks(database).acquire("delays", 1, "a run elsewhere")
    done = applied.run("materialize", "delays")
    assert done.exit_code == 1
    assert "being written by a run elsewhere" in done.stdout
    assert "being written by a run elsewhere" in applied.ok("list")
    with Session(database) as session:
        assert len(load_views(session)) == 3
    database.dispose()


def test_an_unknown_option_of_time_is_refused_before_anything_is_opened(site: Site) -> None:
    with pytest.raises(ConfigurationError, match="still to come"):
        raise site.run("get", "delays", "x", "--as-of", "2999-01-01").exception or AssertionError
