"""The meter of one stream on a clock in the test's hand: each latency once, at its right length."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import FinishReason, Reason, Usage
from core_engine.llm.text import TextDelta
from core_engine.metrics import LATENCY_S, Metrics
from online.generation import Meter

LABELS = {"model_name": "m", "pool": "interactive"}


class Watch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def metered(chunks: list[tuple[float, int]], usage: Usage | None = None) -> Metrics:
    """A stream that arrives at 100 s and whose chunks come after (seconds, tokens); it ends with the last."""
    metrics, watch = Metrics(), Watch()
    meter = Meter(metrics, "m", "interactive", 100.0, watch)
    for number, (wait_s, num_tokens) in enumerate(chunks, start=1):
        watch.now += wait_s
        is_last = number == len(chunks)
        meter.saw(TextDelta("x", num_tokens, FinishReason.LENGTH if is_last else None, usage if is_last else None))
    meter.close(num_prompt=9)
    return metrics


def value(metrics: Metrics, name: str, **more: str) -> float:
    return metrics.registry.get_sample_value(f"headrace_{name}", LABELS | more) or 0.0


def test_each_latency_has_its_own_meaning() -> None:
    usage = Usage(cached_tokens=4, queue_s=0.5, prefill_s=1.5, decode_s=3.0)
    metrics = metered([(2.0, 1), (1.0, 1), (2.0, 2)], usage)
    assert value(metrics, "time_to_first_token_seconds_sum") == 2.0
    assert value(metrics, "inter_token_latency_seconds_sum") == 3.0
    assert value(metrics, "inter_token_latency_seconds_count") == 3
    assert value(metrics, "request_time_per_output_token_seconds_sum") == 1.0
    assert value(metrics, "e2e_request_latency_seconds_sum") == 5.0
    assert value(metrics, "request_queue_time_seconds_sum") == 0.5
    assert value(metrics, "request_prefill_time_seconds_sum") == 1.5
    assert value(metrics, "request_decode_time_seconds_sum") == 3.0
    assert [value(metrics, "tokens_total", kind=k) for k in ("prompt", "cached", "completion")] == [9, 4, 4]


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5)), min_size=1, max_size=20))
def test_ttft_is_observed_once_per_request_and_a_gap_once_per_further_token(chunks: list[tuple[float, int]]) -> None:
    metrics = metered(chunks)
    num_tokens = sum(n for _, n in chunks)
    first_chunk = next((n for _, n in chunks if n), 0)
    assert value(metrics, "time_to_first_token_seconds_count") == min(1, num_tokens)
    assert value(metrics, "inter_token_latency_seconds_count") == num_tokens - first_chunk
    assert value(metrics, "request_time_per_output_token_seconds_count") == (num_tokens > 1)
    assert value(metrics, "e2e_request_latency_seconds_count") == 1
    assert value(metrics, "generations_total", finished_reason="length", reason="") == 1


def test_what_the_engine_has_not_told_is_not_made_up() -> None:
    metrics = metered([(1.0, 1)])
    assert value(metrics, "request_queue_time_seconds_count") == 0
    assert value(metrics, "request_decode_time_seconds_count") == 0


@pytest.mark.parametrize("reason", [Reason.ENGINE_REFUSED, Reason.DEADLINE])
def test_a_generation_without_a_token_is_counted_with_its_reason_and_no_token_latency(reason: Reason) -> None:
    metrics = Metrics()
    meter = Meter(metrics, "m", "interactive", 100.0, Watch())
    meter.outcome, meter.reason = FinishReason.ERROR, reason
    meter.close(num_prompt=3)
    assert value(metrics, "generations_total", finished_reason="error", reason=str(reason)) == 1
    assert value(metrics, "time_to_first_token_seconds_count") == 0
    assert value(metrics, "e2e_request_latency_seconds_count") == 1


def test_an_abandoned_stream_keeps_what_the_first_token_told() -> None:
    metrics, watch = Metrics(), Watch()
    meter = Meter(metrics, "m", "interactive", 100.0, watch)
    meter.saw(TextDelta("x", 1, None, Usage(queue_s=0.25, cached_tokens=2)))
    meter.close(num_prompt=3)
    assert value(metrics, "generations_total", finished_reason="abort", reason="") == 1
    assert value(metrics, "request_queue_time_seconds_sum") == 0.25
    assert value(metrics, "tokens_total", kind="cached") == 2
    assert value(metrics, "request_decode_time_seconds_count") == 0


def test_buckets_are_fine_below_ten_milliseconds_and_grow() -> None:
    assert sum(bound < 0.01 for bound in LATENCY_S) >= 9
    assert all(low < high for low, high in itertools.pairwise(LATENCY_S))
