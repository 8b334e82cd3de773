from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from headrace.loadgen.report import CLOSED_LOOP, PERCENTILES, parse_goodput
from tests.headrace.loadgen.runs import START_S, answered, failed, reported

LATENCIES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=30)
# of vLLM's result file, with `--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 90,99,99.9 --goodput ...`
VLLM_KEYS = (
    "duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput "
    "output_throughput total_token_throughput max_concurrent_requests max_concurrency request_rate num_prompts "
    "model_id backend date "
) + " ".join(
    f"{name}_{metric}_ms"
    for metric in ("ttft", "tpot", "itl", "e2el")
    for name in ("mean", "median", "std", "p90", "p99", "p99.9")
)


@given(st.integers(1, 1100))
def test_a_percentile_needs_its_samples_and_one_that_lacks_them_is_null_and_named(count: int) -> None:
    made = reported([answered(n * 0.01, e2el_ms=1.0 + n) for n in range(count)])
    for each in PERCENTILES:
        key = f"{each.name}_e2el_ms"
        assert (made[key] is None) == (count < each.needs) == (key in made["too_few_samples"])
        if made[key] is not None:
            assert 1.0 <= made["median_e2el_ms"] <= made[key] <= made["max_e2el_ms"] == pytest.approx(count)
    assert PERCENTILES[-1].needs == 1000


@given(LATENCIES, LATENCIES)
def test_the_warm_up_is_not_measured(warm: list[float], measured: list[float]) -> None:
    records = [answered(4.0, each) for each in warm] + [answered(5.0, each) for each in measured]
    made = reported(records, warm_up_s=5.0)
    assert (made["num_prompts"], made["warm_up_requests"]) == (len(measured), len(warm))
    assert made["max_e2el_ms"] == pytest.approx(max(measured))
    assert made["duration"] == pytest.approx(max(measured) / 1e3)


@given(st.lists(st.floats(1, 99)), st.integers(0, 20))
def test_what_failed_misses_every_objective_and_is_in_no_latency(latencies: list[float], num_failed: int) -> None:
    records = [answered(0.0, each) for each in latencies] + [failed(0.0, "timeout", 1.0) for _ in range(num_failed)]
    made = reported(records, goodput={"e2el": 50.0})
    assert (made["completed"], made["failed"]) == (len(latencies), num_failed)
    if records:
        assert made["slo_attainment"] == pytest.approx(sum(each <= 50.0 for each in latencies) / len(records))
    if latencies:
        assert made["max_e2el_ms"] == pytest.approx(max(latencies))


def test_errors_are_counted_by_kind_with_the_time_that_they_took() -> None:
    refused = [failed(0.0, "http_503", 1.0 + n) for n in range(100)]
    made = reported([*refused, failed(0.0, "connect"), answered(0.0)])
    assert {kind: error["count"] for kind, error in made["errors"].items()} == {"http_503": 100, "connect": 1}
    assert made["errors"]["http_503"]["p99_error_ms"] == pytest.approx(99.01)
    assert made["errors"]["connect"]["p99_error_ms"] is None
    assert made["errors"]["connect"]["first"] == "in words"


def test_degraded_answers_are_shared_out_by_rung_and_reason() -> None:
    rungs = [("model", False, None)] * 6 + [("student", True, "deadline")] * 3 + [("prior", True, "overloaded")]
    made = reported([answered(0.0, rung=rung, degraded=bad, reason=why) for rung, bad, why in rungs])
    assert made["rungs"] == {"model": 0.6, "student": 0.3, "prior": 0.1}
    assert made["degraded_share"] == 0.4
    assert made["degraded"] == {"student": {"deadline": 0.3}, "prior": {"overloaded": 0.1}}


def test_batch_size_and_concurrency_stand_beside_the_latencies() -> None:
    made = reported([answered(0.0, batch_size=size, in_flight=size) for size in (1, 1, 4)] + [answered(0.0)])
    assert (made["mean_batch_size"], made["batch_sizes"]) == (2.0, {"1": 2, "4": 1})
    assert (made["mean_concurrency"], made["max_concurrent_requests"]) == (1.75, 4)


def test_the_prefix_hit_rate_is_of_all_prompt_tokens_of_answers_that_tell_it() -> None:
    told = [answered(0.0, prompt_tokens=80, cached_tokens=60), answered(0.0, prompt_tokens=20, cached_tokens=0)]
    assert reported([*told, answered(0.0, prompt_tokens=900)])["prefix_hit_rate"] == 0.6
    assert reported([answered(0.0, prompt_tokens=900)])["prefix_hit_rate"] is None
    assert reported([answered(0.0, cached_tokens=0)])["prefix_hit_rate"] is None


def test_a_server_that_tells_neither_rung_nor_batch_size_has_neither() -> None:
    made = reported([answered(0.0)])
    assert (made["rungs"], made["degraded_share"], made["mean_batch_size"]) == ({}, None, None)


def test_the_generators_lateness_is_from_due_to_sent() -> None:
    made = reported([answered(0.0, late_ms=each) for each in (0.0, 1.0, 5.0)])
    assert made["send_lateness"]["p50_ms"] == pytest.approx(1.0)
    assert made["send_lateness"]["max_ms"] == pytest.approx(5.0)
    closed = reported([answered(0.0)], arrivals=CLOSED_LOOP, request_rate=None, max_concurrency=4)
    assert closed["send_lateness"] is None


def test_a_stream_has_the_fields_latencies_by_vllms_keys() -> None:
    streamed: Any = {"first_s": START_S + 0.1, "gaps_s": (0.02, 0.04), "completion_tokens": 4, "prompt_tokens": 9}
    made = reported([answered(0.0, 160.0, **streamed) for _ in range(1000)], goodput={"ttft": 200.0, "tpot": 19.0})
    assert [key for key in VLLM_KEYS.split() if key not in made] == []
    assert made["mean_ttft_ms"] == pytest.approx(100.0)
    assert made["mean_tpot_ms"] == pytest.approx(20.0)  # 60 ms over the three tokens after the first
    assert made["mean_itl_ms"] == pytest.approx(30.0)
    assert made["slo_attainment"] == 0.0
    assert (made["total_input_tokens"], made["total_output_tokens"]) == (9000, 4000)
    assert made["output_throughput"] == pytest.approx(4000 / made["duration"])


def test_one_token_has_no_tpot_and_cannot_miss_it() -> None:
    made = reported([answered(0.0, 50.0, first_s=START_S + 0.05, completion_tokens=1)], goodput={"tpot": 1.0})
    assert "mean_tpot_ms" not in made
    assert made["slo_attainment"] == 1.0


def test_tokens_that_nobody_told_are_said_to_be_counted() -> None:
    assert reported([answered(0.0, completion_tokens=3, tokens_told=False)])["tokens_counted_by"] == "chunks"


def test_a_run_without_a_single_request_has_no_latencies_and_is_json() -> None:
    made = reported([])
    assert (made["completed"], made["duration"], made["request_throughput"]) == (0, 0.0, 0.0)
    assert "mean_e2el_ms" not in made
    json.dumps(made, allow_nan=False)


def test_objectives_are_read_as_name_and_milliseconds() -> None:
    assert parse_goodput(["e2el:50", "ttft:12.5"]) == {"e2el": 50.0, "ttft": 12.5}


@pytest.mark.parametrize("text", ["e2el", "e2el:", "e2el:-1", "p99:5", "tpot:fast", "ttft:nan"])
def test_an_objective_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--goodput {text!r}, expected one of ttft, tpot, e2el"):
        parse_goodput([text])
