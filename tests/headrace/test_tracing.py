"""Traces on their way out: off unless wanted, sent in batches, and lost and counted where no collector takes them."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from core_engine.errors import ConfigurationError
from core_engine.metrics import Metrics
from core_engine.settings import TracingSettings, load_settings
from core_engine.tracing import Attribute, Span, SpanContext, SpanEvent, SpanKind, Tracer
from headrace.otlp import OtlpSender
from headrace.tracing import MAX_BATCH, SpanExport, open_tracing
from tests.headrace.otlp_collector import collecting

PARENT = SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


@pytest.fixture(autouse=True)
def opentelemetry_s_own_log() -> Iterator[None]:
    """Left as it was: a process that traces silences it."""
    logger = logging.getLogger("opentelemetry")
    level = logger.level
    yield
    logger.setLevel(level)


def span(number: int = 0, name: str = "work", kind: SpanKind = SpanKind.INTERNAL) -> Span:
    context = SpanContext(PARENT.trace_id, f"{number + 1:016x}")
    return Span(name, context, PARENT, 1_000, 2_000, {"number": number}, kind)


@contextmanager
def exporting(
    url: str, *, flush_s: float = 600.0, timeout_s: float = 600.0
) -> Iterator[tuple[Tracer, SpanExport, Metrics]]:
    """Nothing is sent before `close`, because nobody waits for the first period to end."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    tracer, metrics = Tracer(max_queued=2 * MAX_BATCH), Metrics()
    sender = OtlpSender(url, "headrace-test", timeout_s=timeout_s)
    export = SpanExport(tracer, sender, metrics, period_s=3600.0, flush_s=flush_s)
    yield tracer, export, metrics
    export.close()


def count(metrics: Metrics, outcome: str) -> float:
    return metrics.registry.get_sample_value("headrace_trace_spans_total", {"outcome": outcome}) or 0.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_span_arrives_with_all_that_it_says() -> None:
    told: dict[str, Attribute] = {"text": "a", "whole": 3, "part": 0.5, "flag": True, "words": ("b", "c")}
    sent = Span(
        "whole",
        SpanContext(PARENT.trace_id, "00000000000000ff"),
        PARENT,
        5,
        9,
        told,
        SpanKind.SERVER,
        events=(SpanEvent("first token", 7),),
        is_error=True,
    )
    with collecting() as collector, exporting(f"{collector.url}/v1/traces") as (tracer, export, metrics):
        tracer.record(sent)
        export.close()
        (received,) = collector.spans
        assert collector.paths == ["/v1/traces"]
    assert (received.trace_id, received.span_id, received.parent_id) == (
        PARENT.trace_id,
        "00000000000000ff",
        PARENT.span_id,
    )
    assert (received.service, received.name, received.kind) == ("headrace-test", "whole", "server")
    assert (received.start_ns, received.end_ns, received.events) == (5, 9, ("first token",))
    assert received.attributes == told | {"words": ["b", "c"]}
    assert received.is_error
    assert received.has_remote_parent
    assert count(metrics, "exported") == 1


def test_what_is_left_at_the_end_is_sent_in_batches_and_once() -> None:
    with collecting() as collector, exporting(collector.url) as (tracer, export, metrics):
        for number in range(MAX_BATCH + 3):
            tracer.record(span(number))
        export.close()
        assert [received.attributes["number"] for received in collector.spans] == list(range(MAX_BATCH + 3))
        assert len(collector.paths) == 2
    assert count(metrics, "exported") == MAX_BATCH + 3
    assert tracer.num_lost == 0


def test_spans_are_sent_while_the_process_runs() -> None:
    with collecting() as collector:
        tracer, sender = Tracer(), OtlpSender(collector.url, "headrace-test", timeout_s=600.0)
        export = SpanExport(tracer, sender, Metrics(), period_s=0.01, flush_s=600.0)
        tracer.record(span())
        assert collector.asked.wait(60.0)
        export.close()
        assert len(collector.spans) == 1


def test_without_a_collector_spans_are_lost_and_counted_and_the_log_says_so_once() -> None:
    with (
        capture_logs() as logs,
        exporting(f"http://127.0.0.1:{free_port()}", timeout_s=0.01) as (tracer, export, metrics),
    ):
        for number in range(2 * MAX_BATCH + 5):
            tracer.record(span(number))
        export.close()
    assert (count(metrics, "dropped"), count(metrics, "failed")) == (5, 2 * MAX_BATCH)
    assert tracer.num_lost == 2 * MAX_BATCH + 5
    assert [line["event"] for line in logs] == ["traces_not_exported"]


def test_a_collector_that_refuses_loses_its_batch_and_nothing_else() -> None:
    with collecting() as collector, exporting(collector.url) as (tracer, export, metrics):
        collector.status = 400
        tracer.record(span())
        export._send_queued()  # in this thread: what its own would do at the end of a period
        collector.status = 200
        tracer.record(span(1))
        with capture_logs() as logs:
            export.close()
        assert [received.attributes["number"] for received in collector.spans] == [1]
    assert (count(metrics, "failed"), count(metrics, "exported")) == (1, 1)
    assert [(line["event"], line["lost"]) for line in logs] == [("traces_exported_again", 1)]


def test_the_end_does_not_wait_for_a_collector_that_does_not_answer() -> None:
    tracer, metrics = Tracer(), Metrics()
    for number in range(MAX_BATCH + 7):
        tracer.record(span(number))
    with collecting(is_open=False) as collector:
        sender = OtlpSender(collector.url, "headrace-test", timeout_s=600.0)
        export = SpanExport(tracer, sender, metrics, period_s=0.01, flush_s=0.01)
        assert collector.asked.wait(60.0)
        export.close()  # returns, though the collector has answered nothing
        assert not collector.spans
        collector.is_open.set()
        export._thread.join()
        assert len(collector.spans) == MAX_BATCH, "what was on its way arrived after all"
    assert count(metrics, "dropped") == 7


def test_off_is_the_default_and_needs_nothing() -> None:
    tracing = open_tracing(TracingSettings(), "door", Metrics())
    assert tracing.tracer is None
    tracing.close()


def test_without_the_packages_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.otlp", None)
    with pytest.raises(ConfigurationError, match=r"HEADRACE_TRACING__ENDPOINT = .*pip install 'headrace\[tracing\]'"):
        open_tracing(TracingSettings(endpoint="http://127.0.0.1:4318"), "door", Metrics())


def test_a_process_that_does_not_trace_imports_no_exporter() -> None:
    """The Redis client imports the SDK's metrics by itself, wherever they are installed."""
    code = (
        "import sys, online.app, core_engine.llm.server, headrace.door, headrace.tracing\n"
        "from core_engine.metrics import Metrics\n"
        "from core_engine.settings import TracingSettings\n"
        "headrace.tracing.open_tracing(TracingSettings(), 'door', Metrics())\n"
        "sys.exit(any(name.startswith(('opentelemetry.exporter', 'headrace.otlp')) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("", None),
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_has_otlp_s_own(
    monkeypatch: pytest.MonkeyPatch, given: str, used: str | None
) -> None:
    monkeypatch.setenv("HEADRACE_TRACING__ENDPOINT", given)
    assert load_settings().tracing.endpoint == used


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4318", "grpc://collector:4317", "http://", "http://user:password@collector", "http://collector:99999"],
)
def test_a_wrong_endpoint_is_named(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HEADRACE_TRACING__ENDPOINT", endpoint)
    with pytest.raises(ConfigurationError, match="HEADRACE_TRACING__ENDPOINT = "):
        load_settings()


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "nan", "some"])
def test_a_wrong_ratio_is_named(monkeypatch: pytest.MonkeyPatch, ratio: str) -> None:
    monkeypatch.setenv("HEADRACE_TRACING__SAMPLE_RATIO", ratio)
    with pytest.raises(ConfigurationError, match="HEADRACE_TRACING__SAMPLE_RATIO = "):
        load_settings()
