"""Events that came too late for a window: put aside with all that is needed to look at them or to apply them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from featurestore.definitions import FeatureView
from featurestore.instants import from_us, to_us
from featurestore.keys import late_key
from featurestore.windows.batches import WindowEvent
from featurestore.windows.plan import Amount
from featurestore.windows.state import Applied

MAX_LATE: Final = 10_000  # of one view, or a few more: the oldest go first


@dataclass(frozen=True, slots=True)
class LateEvent:
    """`outcome` is late, or expired: of that tile nothing is kept any more, so that it may have been counted before."""

    outcome: Applied
    event: WindowEvent


def putting_aside(view: FeatureView, events: Iterable[LateEvent], lifetime_ms: int) -> list[tuple[Any, ...]]:
    """The commands that put late events of one view aside."""
    key = late_key(view)
    adding: list[tuple[Any, ...]] = [("XADD", key, "MAXLEN", "~", MAX_LATE, "*", *_fields(late)) for late in events]
    return [*adding, ("PEXPIRE", key, lifetime_ms)] if adding else []


def _fields(late: LateEvent) -> tuple[Any, ...]:
    event = late.event
    amounts = msgspec.json.encode(event.amounts)
    coordinates = ("source", event.source, "offset", event.offset, "outcome", late.outcome)
    return ("key", event.key, "event_us", to_us(event.event_time, "event_time"), *coordinates, "amounts", amounts)


def late_events(view: FeatureView, entries: Iterable[Sequence[Any]]) -> list[LateEvent]:
    """The entries of the stream as events, each once: one that was delivered again was put aside again."""
    found: dict[tuple[str, int], LateEvent] = {}
    for _, flat in entries:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        late = LateEvent(Applied(fields[b"outcome"].decode()), _event(view, fields))
        found.setdefault((late.event.source, late.event.offset), late)
    return list(found.values())


def _event(view: FeatureView, fields: Mapping[bytes, bytes]) -> WindowEvent:
    return WindowEvent(
        view=view.name,
        key=fields[b"key"].decode(),
        event_time=from_us(int(fields[b"event_us"])),
        amounts=msgspec.json.decode(fields[b"amounts"], type=tuple[Amount, ...]),
        source=fields[b"source"].decode(),
        offset=int(fields[b"offset"]),
    )
