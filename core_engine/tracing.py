"""A request's trace in our own words: contexts as W3C Trace Context writes them, and spans that have ended.

A process that traces is handed a `Tracer`; one that does not has None in its place. Spans are made from times that were
measured anyhow, once they are over. `Tracer.record` neither blocks nor raises: it appends to a bounded queue, which a
thread of the composition root's empties (`headrace.tracing`). Nothing here knows who reads the spans.
Source: W3C, "Trace Context", https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import enum
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from core_engine.contracts import EMPTY, Monotonic

Attribute: TypeAlias = str | bool | int | float | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, Attribute]
MAX_QUEUED_SPANS = 8192
MAX_SHIFT_S = 20e-6
READINGS = 3  # of both clocks at most: on a machine that is so busy, the last one does
TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Which span of which trace, in lower-case hex: 32 digits and 16. `is_sampled`: whoever began it records it."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-0{int(self.is_sampled)}"

    @classmethod
    def read(cls, traceparent: str) -> SpanContext | None:
        """What a `traceparent` says; None of one that is to be ignored.

        Of a version that is not known yet, what version 00 has is read (section 2.2.5); version ff is none, nor are ids
        of zeros.
        """
        match = TRACEPARENT.fullmatch(traceparent.strip(" \t"))
        if match is None:
            return None
        version, trace_id, span_id, flags, more = match.groups()
        is_invalid = version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16)
        return None if is_invalid else cls(trace_id, span_id, bool(int(flags, 16) & 1))


class SpanKind(enum.StrEnum):
    SERVER = "server"  # answers another process, which waits: its parent is over there
    CLIENT = "client"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    at_ns: int  # since 1970


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended; instants are nanoseconds since 1970. It never holds a prompt, an input, a value, an entity
    or a key."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=lambda: EMPTY)
    kind: SpanKind = SpanKind.INTERNAL
    events: tuple[SpanEvent, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Anchor:
    """Monotonic seconds as nanoseconds since 1970, by one reading of both clocks: however the wall clock is set
    meanwhile, the spans of one request keep their order."""

    at_s: float
    at_ns: int

    @classmethod
    def now(cls, clock: Monotonic = time.monotonic) -> Anchor:
        """Read again where something else ran between the two readings, which would shift the spans by so much."""
        for _ in range(READINGS):
            at_s, at_ns = clock(), time.time_ns()
            if clock() - at_s < MAX_SHIFT_S:
                break
        return cls(at_s, at_ns)

    def unix_ns(self, instant_s: float) -> int:
        return self.at_ns + round((instant_s - self.at_s) * 1e9)


class Tracer:
    """Decides what is recorded and holds it until it is exported. One thread records, one takes."""

    def __init__(
        self,
        sample_ratio: float = 1.0,
        *,
        max_queued: int = MAX_QUEUED_SPANS,
        new_id: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        self.num_dropped = 0  # that found the queue full; written by the thread that records,
        self.num_failed = 0  # that no collector took; written by the one that takes
        self._bound = round(sample_ratio * 2**64)
        self._max_queued = max_queued
        self._new_id = new_id
        self._queue: deque[Span] = deque()

    @property
    def num_lost(self) -> int:
        return self.num_dropped + self.num_failed

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def begin(self, parent: SpanContext | None) -> SpanContext | None:
        """The context of a request's first span here; None of one that is not recorded.

        Whoever began the trace has decided. Of the traces that begin here, the share `sample_ratio` is recorded, by id.
        Source: OpenTelemetry, "Tracing SDK", ParentBased and TraceIdRatioBased samplers.
        """
        if parent is not None:
            return self.child_of(parent) if parent.is_sampled else None
        trace_id = self._new_id(16)
        return SpanContext(trace_id, self._new_id(8)) if int(trace_id[16:], 16) < self._bound else None

    def child_of(self, parent: SpanContext) -> SpanContext:
        return SpanContext(parent.trace_id, self._new_id(8))

    def record(self, span: Span) -> None:
        """Keep `span` for export; with a full queue it is dropped and counted."""
        if len(self._queue) >= self._max_queued:
            self.num_dropped += 1
        else:
            self._queue.append(span)

    def take(self, most: int) -> list[Span]:
        """Up to `most` spans, the oldest first; they leave the queue."""
        return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
