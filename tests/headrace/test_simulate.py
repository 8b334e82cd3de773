from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from core_engine.errors import ConfigurationError
from headrace.simulate import SimulateOptions, run_simulate, simulate, to_json
from tests.core_engine.simulation.traces import azure, lengths
from tests.headrace.test_cli import headrace, sentence_of


@pytest.fixture
def traces(tmp_path: Path) -> SimulateOptions:
    """Twenty requests in a burst and some later ones, over a backlog."""
    burst = [(float(n // 10), 40 + 7 * n, 5 + n) for n in range(20)]
    trace = azure(tmp_path / "code.csv", [*burst, (20.0, 900, 30), (40.0, 5000, 3)])
    bulk = lengths(tmp_path / "arxiv.csv", [(200 + n, 20 + n % 7) for n in range(400)])
    return SimulateOptions(trace, bulk)


def test_two_runs_with_one_seed_give_the_same_report(traces: SimulateOptions) -> None:
    assert to_json(simulate(traces)) == to_json(simulate(traces))


def test_the_seed_orders_the_backlog(traces: SimulateOptions) -> None:
    one, other = (simulate(replace(traces, seed=seed)).report for seed in (0, 1))
    assert one.bulk != other.bulk
    assert one.interactive.requests == other.interactive.requests == 22


def test_what_does_not_fit_the_context_is_cut_and_counted(traces: SimulateOptions) -> None:
    done = simulate(traces)
    assert done.num_clipped == 1
    assert done.report.interactive.finished == 22
    assert simulate(replace(traces, max_context_tokens=8192)).num_clipped == 0


def test_options_reach_the_scheduler(traces: SimulateOptions) -> None:
    asked = replace(
        traces, kv_blocks=300, seats=2, bulk_seats=3, max_step_tokens=100, preset="h200-like", max_context_tokens=2048
    )
    device = simulate(asked).device
    assert (device.name, device.num_blocks) == ("h200-like", 300)
    assert (device.limits.interactive.max_seats, device.limits.bulk.max_seats) == (2, 3)
    assert device.limits.max_step_tokens == 100


def test_speed_and_duration_change_what_arrives(traces: SimulateOptions) -> None:
    assert simulate(replace(traces, bulk=None, duration_s=15.0)).report.interactive.requests == 20
    slow, fast = (simulate(replace(traces, bulk=None, speed=speed)).report for speed in (0.5, 50.0))
    assert slow.duration_s > 80
    assert fast.interactive.ttft_s.p50 > slow.interactive.ttft_s.p50


def test_duration_bounds_a_backlog_alone(traces: SimulateOptions) -> None:
    made = simulate(replace(traces, trace=None, duration_s=5.0)).report
    assert 5.0 <= made.duration_s < 6.0
    assert made.bulk.unfinished > 0


def test_exact_and_fast_forward_agree(traces: SimulateOptions) -> None:
    made, exact = (simulate(replace(traces, bulk=None, exact=exact)).report for exact in (False, True))
    assert made.num_forwarded > 0
    assert exact.num_forwarded == 0
    assert made.interactive.tpot_s.p99 == pytest.approx(exact.interactive.tpot_s.p99, rel=0.02)
    assert made.interactive.ttft_s.p99 == pytest.approx(exact.interactive.ttft_s.p99, rel=0.02)


def test_the_report_plot_and_json_say_what_was_measured(traces: SimulateOptions, tmp_path: Path) -> None:
    out = StringIO()
    run_simulate(traces, tmp_path / "run.png", tmp_path / "run.json", Console(file=out, width=100))
    text = out.getvalue()
    for name in (
        "TTFT p50 / p99",
        "TPOT p50 / p99",
        "ITL p50 / p99",
        "goodput",
        "pre-emptions",
        "wasted",
        "peak KV use",
    ):
        assert name in text
    assert "1 requests were cut to the context of 4096 tokens" in text
    assert re.search(r"completion tokens/s.*\(mean batch ", text)
    stored = json.loads((tmp_path / "run.json").read_text())
    assert stored["interactive"]["requests"] == 22
    assert stored["bulk"]["tokens_per_s"] > 0
    assert (tmp_path / "run.png").stat().st_size > 0


def test_a_figure_of_nothing_is_null(traces: SimulateOptions) -> None:
    stored = json.loads(to_json(simulate(replace(traces, bulk=None))))
    assert stored["bulk"]["attainment"] is None
    assert stored["bulk"]["ttft_s"] == {"p50": None, "p99": None}


def test_a_calibration_file_is_the_device(traces: SimulateOptions, tmp_path: Path) -> None:
    path = tmp_path / "slow.json"
    path.write_text('{"a": 1.0, "b": 0, "c": 0, "d": 0, "e": 0}')
    made = simulate(replace(traces, bulk=None, calibration=path, duration_s=0.5)).report
    assert made.interactive.tpot_s.p50 == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"trace": None, "bulk": None}, "nothing to simulate: give --trace, --bulk, or both"),
        ({"preset": "h200-like", "calibration": Path("x")}, "--preset and --calibration exclude each other"),
        ({"preset": "h400"}, "preset 'h400' is unknown"),
        ({"speed": -1.0}, "speed = -1.0, expected a number above 0"),
        ({"trace": Path("nowhere.csv")}, "trace nowhere.csv cannot be read"),
    ],
)
def test_what_cannot_be_simulated_is_named(traces: SimulateOptions, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        simulate(replace(traces, **changes))  # type: ignore[arg-type]


def test_a_backlog_given_as_the_trace_is_refused(traces: SimulateOptions) -> None:
    with pytest.raises(ConfigurationError, match="has no arrival times"):
        simulate(replace(traces, trace=traces.bulk, bulk=None))


def test_the_command_prints_a_table_and_errors_in_one_sentence(traces: SimulateOptions, tmp_path: Path) -> None:
    assert traces.trace is not None
    done = headrace(
        "simulate", "--trace", str(traces.trace), "--preset", "h200-like", "--json", str(tmp_path / "r.json")
    )
    assert done.returncode == 0, done.stderr
    assert "h200-like: " in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["interactive"]["finished"] == 22
    assert "nothing to simulate" in sentence_of(headrace("simulate"))
