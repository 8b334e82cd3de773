"""Where records go that cannot be used, with full coordinates and the reason, so that the worker can go on.

Keyed by coordinates: a record that is delivered twice leaves the same letter twice, under one key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from streaming.events import dead_letter_of
from streaming.transport import Record, Transport

MALFORMED: Final = "malformed"  # not an event at all
INVALID: Final = "invalid"  # an event that the predictor or a window cannot use
LATE: Final = "late"  # scored, but past the grace of a window
FAILED: Final = "failed"  # our own fault: an error that nobody expects

log = structlog.get_logger(__name__)


def dead_letter_topic(topic: str) -> str:
    return f"{topic}.dead-letters"


class DeadLetters:
    """Publishes dead letters of one consumer."""

    def __init__(self, transport: Transport, topic: str, now: Callable[[], datetime]) -> None:
        self._transport = transport
        self._topic = topic
        self._now = now

    async def bury(self, record: Record, reason: str, detail: str) -> None:
        """Raises `BrokerUnavailable`: the letter is not there, so the record must not be finished."""
        letter = dead_letter_of(record, reason, detail, self._now())
        await self._transport.publish(self._topic, record.coordinates.encode(), letter)
        log.warning("dead_letter", source=record.coordinates, reason=reason, detail=detail)
