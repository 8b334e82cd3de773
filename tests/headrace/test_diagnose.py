"""`headrace diagnose`: the spools of a state folder become findings on the screen, or one sentence."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core_engine.contracts import StageTimes
from core_engine.costs.diagnosis import NoRecords
from core_engine.costs.facts import SCHEMA, Fact, SpoolHeader
from core_engine.errors import ConfigurationError
from core_engine.settings import Settings
from headrace.diagnose import diagnosed
from tests.core_engine.costs.ledger import START, caller, device, spool_bytes, write_spool
from tests.headrace.test_cli import headrace, sentence_of

SLOW = StageTimes(features_ms=30.0, queue_ms=2.0, model_ms=3.0, total_ms=36.0)


def answered(name: str, minutes_ago: float) -> list[Fact]:
    when = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return [caller(name, stages=SLOW, arrived_at=when, answered_at=when), device(name, finished_at=when)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    facts = [fact for number in range(3) for fact in answered(f"new {number}", 1.0)]
    write_spool(tmp_path / "state" / "spool", [*facts, *answered("old", 90.0)])
    return Settings(state_dir=tmp_path / "state")


def test_only_what_was_answered_within_the_minutes_counts(settings: Settings) -> None:
    assert diagnosed(settings, 15.0, None, 0.1).requests == 3
    assert diagnosed(settings, 120.0, None, 0.1).requests == 4


def test_a_file_counts_whole_whenever_it_was_written(settings: Settings, tmp_path: Path) -> None:
    path = write_spool(tmp_path, [caller("a"), device("a")], "old.jsonl")
    made = diagnosed(settings, 15.0, path, 0.1)
    assert (made.requests, made.to_at) == (1, caller("a").answered_at)


def test_both_sides_of_a_request_meet_from_two_files(tmp_path: Path) -> None:
    one, other = answered("a", 1.0)
    write_spool(tmp_path / "spool", [one], "door-1.jsonl")
    write_spool(tmp_path / "spool", [other], "engine-1.jsonl")
    made = diagnosed(Settings(state_dir=tmp_path), 15.0, None, 0.1)
    assert "unknown" not in made.groups[0].shares


def test_what_of_a_file_cannot_be_used_is_a_note(settings: Settings) -> None:
    header = SpoolHeader(schema=SCHEMA + 1, role="door", pid=1, started_at=START, part=0)
    (settings.spool_dir / "other.jsonl").write_bytes(json.dumps({**_as_dict(header)}).encode() + b"\n")
    (settings.spool_dir / "bad.jsonl").write_bytes(spool_bytes(answered("b", 1.0)) + b"nonsense\n" + b'{"torn')
    made = diagnosed(settings, 15.0, None, 0.1)
    assert made.requests == 4
    assert "1 lines of bad.jsonl could not be read" in made.notes
    assert "other.jsonl was written by another release; left out" in made.notes


def _as_dict(header: SpoolHeader) -> dict[str, object]:
    told = {name: getattr(header, name) for name in header.__struct_fields__}
    return {"type": "spool", **told, "started_at": header.started_at.isoformat()}


def test_a_file_that_nobody_has_written_to_since_is_not_read(settings: Settings) -> None:
    (path,) = settings.spool_dir.glob("*.jsonl")
    old = (datetime.now(UTC) - timedelta(hours=2)).timestamp()
    os.utime(path, (old, old))
    with pytest.raises(NoRecords, match=r"spool of the last 15 minutes: no caller has told of a request"):
        diagnosed(settings, 15.0, None, 0.1)


def test_a_file_that_is_not_there_is_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone.jsonl cannot be read"):
        diagnosed(settings, 15.0, tmp_path / "gone.jsonl", 0.1)


def test_the_command_says_where_time_goes_and_what_would_help(settings: Settings) -> None:
    done = headrace("diagnose", state=settings.state_dir, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    for words in ("3 requests", "features 83%", "delay, online:", "rows kept in the door", "note: not in any record"):
        assert words in done.stdout


def test_json_has_the_same_in_fields(settings: Settings) -> None:
    done = headrace("diagnose", "--json", "--minutes", "120", "--slowest", "0.5", state=settings.state_dir)
    assert done.returncode == 0, done.stderr
    (group,) = json.loads(done.stdout)["groups"]
    assert (group["requests"], group["slow"], group["findings"][0]["stage"]) == (4, 2, "features")
    assert sum(group["shares"].values()) == pytest.approx(1.0)


def test_without_records_the_command_is_one_sentence(tmp_path: Path) -> None:
    assert "no caller has told of a request" in sentence_of(headrace("diagnose", state=tmp_path))
