"""Trace contexts on the wire, who is recorded, and a queue that never makes anybody wait."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased

from core_engine.tracing import Anchor, Span, SpanContext, Tracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
hex_of = {digits: st.text("0123456789abcdef", min_size=digits, max_size=digits) for digits in (2, 16, 32)}


def span(name: str = "work") -> Span:
    return Span(name, SpanContext(TRACE, SPAN), None, 1, 2)


@given(hex_of[32], hex_of[16], st.booleans())
def test_a_context_comes_back_as_it_was_written(trace_id: str, span_id: str, is_sampled: bool) -> None:
    assume(int(trace_id, 16) and int(span_id, 16))
    context = SpanContext(trace_id, span_id, is_sampled)
    assert SpanContext.read(context.traceparent) == context


@given(hex_of[2])
def test_only_the_first_bit_of_the_flags_says_whether_it_is_sampled(flags: str) -> None:
    read = SpanContext.read(f"00-{TRACE}-{SPAN}-{flags}")
    assert read is not None
    assert read.is_sampled is (int(flags, 16) % 2 == 1)
    assert read.traceparent[-2:] in ("00", "01"), "bits that we do not know are not passed on"


@given(st.text() | st.from_regex(r"[0-9a-fg-]{2,60}"))
def test_no_text_is_an_error_and_what_is_read_was_there(text: str) -> None:
    read = SpanContext.read(text)
    assert read is None or (read.trace_id in text and read.span_id in text)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01more",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_traceparent_is_ignored(traceparent: str) -> None:
    assert SpanContext.read(traceparent) is None


@pytest.mark.parametrize("traceparent", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-more-to-come"])
def test_of_a_later_version_what_is_known_is_read(traceparent: str) -> None:
    assert SpanContext.read(traceparent) == SpanContext(TRACE, SPAN, is_sampled=True)


def test_blanks_around_it_do_not_matter() -> None:
    assert SpanContext.read(f" \t00-{TRACE}-{SPAN}-00 ") == SpanContext(TRACE, SPAN, is_sampled=False)


@given(hex_of[32], st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.999, 1.0]))
def test_a_trace_that_begins_here_is_recorded_where_opentelemetry_s_own_sampler_records_it(
    trace_id: str, ratio: float
) -> None:
    tracer = Tracer(ratio, new_id=lambda num_bytes: trace_id if num_bytes == 16 else SPAN)
    theirs = ParentBased(TraceIdRatioBased(ratio)).should_sample(None, int(trace_id, 16), "request")
    begun = tracer.begin(None)
    assert (begun is not None) is (theirs.decision is Decision.RECORD_AND_SAMPLE)
    assert begun is None or begun == SpanContext(trace_id, SPAN)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_of_a_trace_that_began_elsewhere_the_ratio_decides_nothing(ratio: float) -> None:
    tracer = Tracer(ratio)
    child = tracer.begin(SpanContext(TRACE, SPAN, is_sampled=True))
    assert child is not None
    assert child.trace_id == TRACE
    assert child.span_id != SPAN
    assert tracer.begin(SpanContext(TRACE, SPAN, is_sampled=False)) is None


@given(st.lists(st.integers(-1, 5), max_size=60))
def test_every_span_is_taken_once_in_order_or_counted_as_dropped(does: list[int]) -> None:
    """-1: a span is recorded; else so many are taken."""
    tracer, recorded, taken = Tracer(max_queued=3), 0, list[str]()
    for what in does:
        if what < 0:
            tracer.record(span(str(recorded)))
            recorded += 1
        else:
            batch = tracer.take(what)
            assert len(batch) <= what
            taken += [each.name for each in batch]
        assert tracer.num_queued <= 3
    assert recorded == len(taken) + tracer.num_queued + tracer.num_dropped
    assert taken == sorted(set(taken), key=int)
    tracer.num_failed += 2
    assert tracer.num_lost == tracer.num_dropped + 2


def test_instants_of_one_anchor_keep_their_distances() -> None:
    anchor = Anchor(at_s=100.0, at_ns=1_700_000_000_000_000_000)
    assert anchor.unix_ns(100.0) == anchor.at_ns
    assert anchor.unix_ns(98.5) == anchor.at_ns - 1_500_000_000
    assert anchor.unix_ns(100.25) == anchor.at_ns + 250_000_000
