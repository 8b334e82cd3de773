from __future__ import annotations

from io import StringIO

from rich.console import Console

from headrace.loadgen.report import CLOSED_LOOP, Report
from headrace.loadgen.screen import show
from tests.headrace.loadgen.runs import answered, failed, reported


def shown(made: Report) -> str:
    console = Console(file=StringIO(), width=200)
    show(made, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_everything_that_says_how_far_to_trust_the_figures_is_on_the_screen() -> None:
    good = [answered(0.0, rung="model", batch_size=2, late_ms=0.25) for _ in range(20)]
    degraded = answered(0.0, rung="prior", degraded=True, reason="deadline")
    text = shown(reported([*good, degraded, failed(0.0, "http_503")], goodput={"e2el": 50.0}))
    for words in (
        "open loop, poisson 50 requests/s, 1.0 in flight, 2.00 per device call; 22 requests",
        "21 answered, 1 failed",
        "within e2el <= 50 ms: 95.455% of all",
        "prior because of deadline 4.76%",
        "the generator's own lateness: p50 0.25, p99 0.25, max 0.25 ms",
        "1 x http_503 (median 2.0 ms); the first: in words",
        "too few samples for p99_e2el_ms, p99.9_e2el_ms",
        "1 distinct bodies, sent in turn",
    ):
        assert words in text


def test_a_closed_loop_says_so_and_has_no_lateness() -> None:
    text = shown(reported([answered(0.0)], arrivals=CLOSED_LOOP, request_rate=None, max_concurrency=8))
    assert "closed loop, 8 in flight" in text
    assert "lateness" not in text


def test_a_run_without_an_answer_can_be_shown() -> None:
    assert "0 answered, 1 failed" in shown(reported([failed(0.0, "connect")], goodput={"e2el": 50.0}))
