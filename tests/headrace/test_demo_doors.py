"""The demo's own judgement of the stream, the nightly jobs and the bill: each broken promise is named."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from batch.door import JobReport
from core_engine.costs.quantities import Count
from core_engine.costs.report import Line, Term
from headrace.demo import departures, nightly
from headrace.demo.load import DemoFailed
from headrace.demo.run import cost_of
from headrace.demo.summary import WindowSeen
from streaming.events import Coordinates, DeadLetter
from streaming.report import StreamReport

BEFORE = WindowSeen(mean_delay=-3.6, flights=39, state="stale", prediction=0.12)
AFTER = WindowSeen(mean_delay=-1.8, flights=35, state="present", prediction=0.075)
LETTER = DeadLetter(
    source=Coordinates(topic="departures", partition=1, offset=7),
    reason="malformed",
    detail="",
    key=None,
    value=b"{",
    is_whole=True,
    failed_at=datetime(2026, 1, 1, tzinfo=UTC),
)
STREAMED = StreamReport(
    n=10,
    p50_ms=1.0,
    p99_ms=2.0,
    max_ms=2.0,
    scoring_p50_ms=1.0,
    scoring_p99_ms=1.0,
    concurrency=4,
    batch_sizes={1: 10},
    rungs={"model": 10},
    reasons={},
    windows={"applied": 7, "expired": 3},
    dead_letters={"malformed": 1},
    fenced=0,
)
JOB = JobReport(
    job="j",
    predictor="route_brief",
    version=1,
    n=5,
    bad=0,
    entities=5,
    computed=3,
    resumed=2,
    p50_ms=1.0,
    p99_ms=1.0,
    batch_sizes={"4": 5},
    rungs={},
    concurrency=4,
    generation="g",
    results="r",
    errors="e",
)


def test_a_stream_that_kept_its_promises_passes() -> None:
    departures.check(STREAMED, 10, [LETTER], BEFORE, AFTER)
    assert departures.coordinates(LETTER) == "departures/1/7: malformed"


@pytest.mark.parametrize(
    ("changes", "letters", "after", "says"),
    [
        ({"n": 9}, [LETTER], AFTER, "9 of 10 departures were scored"),
        ({}, [], AFTER, "expected one dead letter"),
        ({}, [LETTER, LETTER], AFTER, "expected one dead letter"),
        (
            {"windows": {"applied": 7, "duplicate": 3}},
            [LETTER],
            AFTER,
            "neither applied to its window once nor too old",
        ),
        ({"windows": {"applied": 7}}, [LETTER], AFTER, "neither applied"),
        ({}, [LETTER], BEFORE, "did not reach the next prediction"),
    ],
)
def test_a_stream_that_broke_one_fails_the_demo(
    changes: dict[str, Any], letters: list[DeadLetter], after: WindowSeen, says: str
) -> None:
    with pytest.raises(DemoFailed, match=says):
        departures.check(msgspec.structs.replace(STREAMED, **changes), 10, letters, BEFORE, after)


def test_the_checkpoints_of_the_interrupted_job_are_read_from_its_log() -> None:
    assert nightly.computed(b'{"event": "batch_units", "computed": 3}\n') == 3
    assert nightly.computed(b'{"event": "other", "computed": 3}\n') == 0
    assert nightly.computed(b"not JSON") == nightly.computed(b"[1]") == nightly.computed(b"") == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n": 4}, "4 of 5 briefs"),
        ({"bad": 1}, "1 rows were bad"),
        ({"resumed": 1}, "found 1 units done, the interrupted one had kept 2"),
        ({"generation": None}, "not published"),
    ],
)
def test_a_job_that_broke_a_promise_fails_the_demo(changes: dict[str, Any], says: str) -> None:
    nightly.check(JOB, 5, 2)
    with pytest.raises(DemoFailed, match=says):
        nightly.check(msgspec.structs.replace(JOB, **changes), 5, 2)


def test_a_bill_that_does_not_close_fails_the_demo() -> None:
    line = Line(("online", "delay_risk"), {Term.DEVICE: Decimal("0.2")}, Count(attempts=3))
    bill = SimpleNamespace(
        by=("path", "predictor"),
        closes=True,
        left=Decimal(1),
        right=Decimal(1),
        unattributed_share=Decimal("0.001"),
        lines=(line,),
    )
    cost = cost_of(bill)  # type: ignore[arg-type]
    assert (cost.left, cost.unattributed_share) == (1.0, 0.001)
    assert cost.lines == [
        {"path": "online", "predictor": "delay_risk", "attempts": 3, "terms": {"device": 0.2}, "total": 0.2}
    ]
    bill.closes = False
    with pytest.raises(DemoFailed, match="does not close"):
        cost_of(bill)  # type: ignore[arg-type]
