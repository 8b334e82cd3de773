"""Traces of a process on their way to a collector: OTLP over HTTP, by OpenTelemetry's own exporter.

The exporter runs in a thread of its own, which is the only one that waits for a collector: while that is slow or away,
the tracer's bounded queue fills and spans are dropped and counted. The packages are imported only where traces are on.
Headers, certificates and compression are the exporter's variables `OTEL_EXPORTER_OTLP_...`; what describes the
deployment is `OTEL_RESOURCE_ATTRIBUTES`.
Source: OpenTelemetry, "OTLP Specification", section "OTLP/HTTP"
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from core_engine.errors import ConfigurationError
from core_engine.metrics import Metrics
from core_engine.settings import TracingSettings
from core_engine.tracing import Span, Tracer

if TYPE_CHECKING:  # needs packages that are there only where traces are wanted
    from headrace.otlp import OtlpSender

log = structlog.get_logger(__name__)

PERIOD_S = 0.5
MAX_BATCH = 64  # a span takes 40 us to encode, which holds the GIL: the event loop waits for no more than 2.5 ms


class Tracing:
    """What a composition root holds: `tracer` is None where nothing is traced, and `close` then has nothing to do."""

    def __init__(self, tracer: Tracer | None = None, export: SpanExport | None = None) -> None:
        self.tracer = tracer
        self._export = export

    def close(self) -> None:
        """Send what is left, within `flush_s`. What could not be sent is counted as lost."""
        if self._export is not None:
            self._export.close()


def open_tracing(settings: TracingSettings, role: str, metrics: Metrics) -> Tracing:
    """The tracing of this process, which the traces name `headrace-<role>`.

    Raises:
        ConfigurationError: traces are wanted, and the packages for them are not installed.
    """
    if settings.endpoint is None:
        return Tracing()
    try:
        from headrace.otlp import OtlpSender
    except ImportError as error:
        raise ConfigurationError(
            f"HEADRACE_TRACING__ENDPOINT = {settings.endpoint}: tracing needs OpenTelemetry, which is not installed "
            f"({error}); run: pip install 'headrace[tracing]'"
        ) from None
    # the exporter tells of every try of every batch; `SpanExport` tells once when a collector goes and comes back
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    tracer = Tracer(settings.sample_ratio)
    sender = OtlpSender(settings.endpoint, f"headrace-{role}", timeout_s=settings.timeout_s)
    return Tracing(tracer, SpanExport(tracer, sender, metrics, flush_s=settings.flush_s))


class SpanExport:
    """A thread that sends what `tracer` has recorded, every `period_s`, until `close`."""

    def __init__(
        self,
        tracer: Tracer,
        sender: OtlpSender,
        metrics: Metrics,
        *,
        flush_s: float,
        period_s: float = PERIOD_S,
    ) -> None:
        self._tracer = tracer
        self._sender = sender
        self._spans = metrics.trace_spans
        self._period_s, self._flush_s = period_s, flush_s
        self._told_dropped = 0
        self._is_failing = False
        self._closing = threading.Event()
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what is left and end; once. Past `flush_s` the thread is left to itself: its request has a timeout."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(self._flush_s)
        self._given_up = True
        self._sender.close()
        if left := self._tracer.num_queued:
            self._spans.labels("dropped").inc(left)
            log.warning("trace_spans_not_sent", spans=left)

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            self._send_queued()
        self._send_queued()

    def _send_queued(self) -> None:
        while not self._given_up and (batch := self._tracer.take(MAX_BATCH)):
            self._send(batch)
        dropped = self._tracer.num_dropped
        self._spans.labels("dropped").inc(dropped - self._told_dropped)
        self._told_dropped = dropped

    def _send(self, batch: Sequence[Span]) -> None:
        if self._sender.send(batch):
            self._spans.labels("exported").inc(len(batch))
            if self._is_failing:
                log.info("traces_exported_again", lost=self._tracer.num_lost)
            self._is_failing = False
            return
        self._tracer.num_failed += len(batch)
        self._spans.labels("failed").inc(len(batch))
        if not self._is_failing:
            log.warning("traces_not_exported", spans=len(batch))
        self._is_failing = True
