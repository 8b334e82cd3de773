"""The wire of the streaming door: events in, predictions and dead letters out. JSON, converted here and only here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from core_engine.contracts import FeatureState, Prediction, Reason, Rung
from core_engine.errors import InvalidRequest
from streaming.transport import Record

MAX_EVENT_BYTES: Final = 1 << 20
MAX_LETTER_BYTES: Final = 256 << 10
MAX_DETAIL: Final = 1000
MAX_AHEAD: Final = timedelta(minutes=5)  # one event from the future would make all others late
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Event:
    """A JSON object with `event_id` and `event_time` (ISO 8601, with an offset); `fields` is all of it."""

    event_id: str
    event_time: datetime
    fields: Mapping[str, Any]


class Coordinates(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event stands in its log."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Record) -> Coordinates:
        return cls(topic=record.partition.topic, partition=record.partition.number, offset=record.offset)


class PredictionMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for one event. Its key in the output topic is `effect_key`; of several with one key, the last
    holds."""

    predictor: str
    version: int
    event_id: str
    event_time: datetime
    source: Coordinates
    value: float | str | None
    scores: Mapping[str, float]
    rung: Rung
    reason: Reason | None
    feature_states: Mapping[str, FeatureState]
    attempt_id: str
    scored_at: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record that could not be used: where it stands, why, and what it holds, so that it can be replayed.

    `key` and `value` are the record's bytes (base64 in JSON), cut at `MAX_LETTER_BYTES` each: a letter about a record
    as large as the broker takes would be larger than that. `is_whole` says whether they are all.
    """

    source: Coordinates
    reason: str  # a word: malformed, invalid, late, failed
    detail: str
    key: bytes | None
    value: bytes | None
    is_whole: bool
    failed_at: datetime


def effect_key(record: Record, predictor: str) -> bytes:
    """The name of one effect: (topic, partition, offset, predictor name)."""
    return f"{record.coordinates}/{predictor}".encode()


def parse_event(value: bytes | None, now: datetime) -> Event:
    """The event in a record's value.

    Raises:
        InvalidRequest: not JSON, not an object, no id, no aware time, or a time well past `now`.
    """
    fields = _decoded(value)
    event_id, at = fields.get("event_id"), fields.get("event_time")
    if not isinstance(event_id, str) or not event_id:
        raise _invalid("event_id", event_id, "a non-empty string")
    try:
        event_time = datetime.fromisoformat(at) if isinstance(at, str) else None
    except ValueError:
        event_time = None
    if event_time is None or event_time.utcoffset() is None:
        raise _invalid("event_time", at, "an ISO 8601 timestamp with an offset, such as 2013-11-05T17:30:00-05:00")
    try:
        event_time = event_time.astimezone(UTC)
    except OverflowError:
        raise _invalid("event_time", at, "an instant within the years 1 to 9999 in UTC") from None
    if event_time - now > MAX_AHEAD:
        raise _invalid("event_time", at, f"an instant that is not past {now.isoformat()}")
    return Event(event_id, event_time, fields)


def _decoded(value: bytes | None) -> dict[str, Any]:
    if value is None or len(value) > MAX_EVENT_BYTES:
        found = "nothing" if value is None else f"{len(value)} bytes"
        raise InvalidRequest(f"the record holds {found}; expected a JSON object of at most {MAX_EVENT_BYTES} bytes")
    try:
        return _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the record is not a JSON object: {error}") from None


def _invalid(field: str, value: object, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"event field {field!r} = {value!r:.100}: expected {expected}", field=field, value=value, expected=expected
    )


def message_of(prediction: Prediction, record: Record, event: Event, attempt_id: str, now: datetime) -> bytes:
    message = PredictionMessage(
        predictor=prediction.predictor,
        version=prediction.version,
        event_id=event.event_id,
        event_time=event.event_time,
        source=Coordinates.of(record),
        value=prediction.value,
        scores=prediction.scores,
        rung=prediction.rung,
        reason=prediction.reason,
        feature_states=prediction.feature_states,
        attempt_id=attempt_id,
        scored_at=now,
    )
    return msgspec.json.encode(message)


def dead_letter_of(record: Record, reason: str, detail: str, now: datetime) -> bytes:
    key, value = _cut(record.key), _cut(record.value)
    letter = DeadLetter(
        source=Coordinates.of(record),
        reason=reason,
        detail=detail[:MAX_DETAIL],
        key=key,
        value=value,
        is_whole=(key, value) == (record.key, record.value),
        failed_at=now,
    )
    return msgspec.json.encode(letter)


def _cut(part: bytes | None) -> bytes | None:
    return None if part is None else part[:MAX_LETTER_BYTES]


def budget_s(event_time: datetime, now: datetime, freshness_s: float, budget_ms: float) -> float:
    """Seconds until the answer to an event is no longer worth having: event time + freshness, seen from `now`.

    An event that is older than that already (a backlog, a replay, the example's shifted history) is scored all the
    same, within the predictor's budget: late is better than never here, and the fact says when it was answered.
    """
    left_s = freshness_s - (now - event_time).total_seconds()
    return max(left_s, budget_ms / 1e3) if math.isfinite(left_s) else budget_ms / 1e3
