"""The wire: what is an event, what is not, and what goes out."""

from __future__ import annotations

import base64
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import InvalidRequest
from streaming.events import DeadLetter, budget_s, dead_letter_of, effect_key, parse_event
from streaming.offsets import Partition
from streaming.transport import Record
from tests.featurestore.rows import PROPERTY

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
GOOD: dict[str, Any] = {"event_id": "UA-1", "event_time": "2026-11-30T06:30:00-05:00", "delay": 5}


def record(value: bytes | None = b"{}", key: bytes | None = b"k") -> Record:
    return Record(Partition("departures", 1), 42, 7, key, value)


def test_an_event_keeps_all_its_fields_and_its_instant_is_utc() -> None:
    event = parse_event(msgspec.json.encode(GOOD), NOW)
    assert event.event_id == "UA-1"
    assert event.event_time == datetime(2026, 11, 30, 11, 30, tzinfo=UTC)
    assert event.event_time.tzinfo is UTC
    assert event.fields["delay"] == 5


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "holds nothing"),
        (b"", "not a JSON object"),
        (b"\xff\xfe", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"event_id": "cut', "not a JSON object"),
        (b'{"a": NaN}', "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (b'{"a":' * 100_000, "not a JSON object"),
        (b" " * (1 << 20) + b"{}", "expected a JSON object of at most"),
    ],
)
def test_what_is_no_json_object_is_said_to_be_none(value: bytes | None, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_event(value, NOW)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_id", None),
        ("event_id", ""),
        ("event_id", 5),
        ("event_time", None),
        ("event_time", "yesterday"),
        ("event_time", "2026-11-30T12:00:00"),
        ("event_time", 1_796_000_000),
        ("event_time", "0001-01-01T00:00:00+14:00"),
        ("event_time", "2026-11-30T12:05:01+00:00"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"event field '{field}'") as refused:
        parse_event(msgspec.json.encode(GOOD | {field: value}), NOW)
    assert refused.value.field == field


@PROPERTY
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_at_all_do_anything_but_parse_or_be_refused(value: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_event(value, NOW)


def test_a_clock_that_runs_a_little_ahead_is_borne() -> None:
    assert parse_event(msgspec.json.encode(GOOD | {"event_time": "2026-11-30T12:05:00Z"}), NOW)


def test_the_name_of_an_effect_is_its_coordinates_and_its_predictor() -> None:
    assert record().coordinates == "departures/1/42"
    assert effect_key(record(), "arrival_delay") == b"departures/1/42/arrival_delay"


def test_a_dead_letter_holds_all_that_a_replay_needs() -> None:
    letter = dead_letter_of(record(b"\xff\x00", None), "malformed", "not JSON", NOW)
    assert msgspec.json.decode(letter)["value"] == base64.b64encode(b"\xff\x00").decode()
    held = msgspec.json.decode(letter, type=DeadLetter)
    assert (held.source.topic, held.source.partition, held.source.offset) == ("departures", 1, 42)
    assert (held.reason, held.key, held.value, held.failed_at) == ("malformed", None, b"\xff\x00", NOW)
    assert held.is_whole


def test_a_letter_about_a_record_as_large_as_brokers_take_is_one_that_they_take() -> None:
    letter = dead_letter_of(record(b"x" * (1 << 20), b"k" * (1 << 20)), "malformed", "d" * 10_000, NOW)
    held = msgspec.json.decode(letter, type=DeadLetter)
    assert len(letter) < 1_000_000
    assert not held.is_whole
    assert held.source.offset == 42


def test_a_fresh_event_has_until_its_freshness_ends_and_an_old_one_the_budget() -> None:
    def left(age_s: float, freshness_s: float = 60.0, budget_ms: float = 1000.0) -> float:
        return budget_s(NOW - timedelta(seconds=age_s), NOW, freshness_s, budget_ms)

    assert left(0) == 60.0
    assert left(10) == 50.0
    assert left(59.5) == 1.0
    assert left(2 * 86_400) == 1.0, "a backlog is scored all the same"
    assert left(0, freshness_s=0) == 1.0
