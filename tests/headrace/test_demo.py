"""The demo's parts against a door that the test plays. The whole of it: `test_whole_stack`."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from core_engine.pools.child import ChildSpec
from core_engine.pools.supervisor import Supervisor
from core_engine.settings import HttpSettings, Settings
from headrace.demo import summary as report
from headrace.demo.failover import kill_engine
from headrace.demo.load import CONCURRENCY, DemoFailed, Reply, ask_all, check_model_share, measured
from headrace.demo.run import check_nothing_left, demo_settings
from headrace.flights import Request
from headrace.steps import Steps

FLIGHT = Request("UA 1545", {"origin": "EWR", "dest": "IAH", "scheduled_departure": "2026-11-02T05:15:00-05:00"})
Handler = Callable[[httpx.Request], httpx.Response]


def reply(rung: str = "model", reason: str | None = None, batch_size: int = 1) -> httpx.Response:
    return httpx.Response(200, json={"value": 0.2, "rung": rung, "reason": reason, "usage": {"batch_size": batch_size}})


def door(handler: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://door")


async def test_every_flight_is_asked_for_once_at_the_stated_concurrency() -> None:
    bodies: list[Any] = []
    in_flight, most = 0, 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        bodies.append(json.loads(request.content))
        return reply(batch_size=3)

    flights = [Request(str(i), {"i": i}) for i in range(50)]
    seen: list[int] = []
    async with door(answer) as client:
        replies = await ask_all(client, flights, lambda done, total: seen.append(done))
    assert sorted(body["inputs"]["i"] for body in bodies) == list(range(50))
    assert (most, seen[-1]) == (CONCURRENCY, 50)
    online = measured(replies, warm_up=7)
    assert (online.n, online.warm_up, online.rungs, online.batch_sizes) == (50, 7, {"model": 50}, {"3": 50})


@pytest.mark.parametrize("status", [500, 503, 404])
async def test_an_answer_that_is_not_200_fails_the_demo(status: int) -> None:
    async with door(lambda request: httpx.Response(status, text="out of order")) as client:
        with pytest.raises(DemoFailed, match=rf"answered {status}: out of order"):
            await ask_all(client, [FLIGHT], lambda done, total: None)


def test_too_few_from_the_model_rung_fail_the_demo() -> None:
    model, student = Reply(FLIGHT, 0.2, "model", None, 1, 0.01), Reply(FLIGHT, 0.2, "student", "deadline", 0, 0.05)
    check_model_share([model] * 99 + [student])
    with pytest.raises(DemoFailed, match=r"only 98\.0 % of 100 .*'student': 2.*'deadline': 2"):
        check_model_share([model] * 98 + [student] * 2)


async def lose_engine(tmp_path: Path, answers: Iterator[httpx.Response]) -> report.Failover:
    """`kill_engine` on a supervised process of ours, with these answers from the door."""

    async def ready() -> None:
        pass

    spec = ChildSpec("engine", ("sleep", "600"), dict(os.environ), ready)
    async with Supervisor(tmp_path) as supervisor, door(lambda request: next(answers)) as client:
        await supervisor.start(spec)
        return await kill_engine(supervisor, client, FLIGHT)


async def test_a_killed_engine_is_bridged_by_the_student(tmp_path: Path) -> None:
    rungs = ("model", "student", "student", "student", "model")  # the first was answered before the loss was known
    answers = (reply(rung, None if rung == "model" else "engine_unavailable") for rung in rungs)
    failover = await lose_engine(tmp_path, answers)
    assert (failover.n, failover.rungs, failover.reasons) == (3, {"student": 3}, {"engine_unavailable": 3})
    assert (failover.restarts, failover.why) == (1, "ended with signal SIGKILL")
    assert 0 < failover.first_degraded_ms <= failover.model_again_s * 1e3


@pytest.mark.parametrize("bad", [("prior", "engine_unavailable"), ("student", None)])
async def test_anything_but_the_student_with_its_reason_fails_the_demo(tmp_path: Path, bad: tuple[str, str]) -> None:
    answers = iter([reply("student", "engine_unavailable"), reply(*bad), reply("model")])
    with pytest.raises(DemoFailed, match="1 of 2 replies were like"):
        await lose_engine(tmp_path, answers)


def test_a_process_that_is_left_fails_the_demo() -> None:
    with pytest.raises(DemoFailed, match=rf"processes \[{os.getpid()}\] are still there"):
        check_nothing_left((os.getpid(),))


def test_the_demo_has_a_state_folder_and_a_port_of_its_own(tmp_path: Path) -> None:
    given = Settings(state_dir=tmp_path)
    own = demo_settings(given)
    assert own.state_dir == tmp_path / "demo"
    assert own.http.port != given.http.port
    assert demo_settings(Settings(http=HttpSettings(port=9123))).http.port == 9123


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [report.quantile(values, q) for q in (0.01, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert report.quantile([7.0], 0.5) == 7.0
    assert report.quantile([], 0.5) == 0.0


@pytest.fixture
def summary() -> report.Summary:
    model, student = Reply(FLIGHT, 0.2, "model", None, 4, 0.012), Reply(FLIGHT, 0.2, "student", "deadline", 0, 0.05)
    return report.Summary(
        online=measured([model] * 499 + [student], 64),
        notice=report.Notice(tokens=71, ttft_ms=95.4, itl_p50_ms=29.8, bulk_tokens=66, dtype="bfloat16"),
        failover=report.Failover(
            n=250,
            rungs={"student": 250},
            reasons={"engine_unavailable": 250},
            first_degraded_ms=4.2,
            model_again_s=9.87,
            restarts=1,
            why="ended with signal SIGKILL",
        ),
        streaming=report.Streaming(
            n=2000,
            concurrency=32,
            p50_ms=146.0,
            p99_ms=294.0,
            scoring_p50_ms=46.1,
            scoring_p99_ms=90.8,
            batch_sizes={"1": 3, "4": 5, "14": 1},
            rungs={"model": 2000},
            windows={"applied": 1021, "expired": 979},
            dead_letters=["departures/1/1034: malformed"],
            airport="LGA",
            before=report.WindowSeen(mean_delay=None, flights=None, state="missing", prediction=0.12),
            after=report.WindowSeen(mean_delay=-1.8, flights=35, state="present", prediction=0.075),
        ),
        batch=report.Batch(
            n=44,
            concurrency=32,
            p50_ms=6697.0,
            p99_ms=10856.0,
            batch_sizes={"24": 4, "28": 40},
            resumed=2,
            generation="g1",
            route="JFK-LAX",
            brief="844 flights, 19 % of them late.",
            risks=500,
            risk_entity="9E-LGA-SDF-20261130T142400Z",
            risk_value=0.075,
        ),
        cost=report.Cost(
            closes=True, left=0.006644, right=0.006644, unattributed_share=0.000143, lines=[{"total": 1.0}]
        ),
        quality=report.Quality(
            auc=0.712,
            auc_low=0.701,
            auc_high=0.723,
            auc_student=0.715,
            auc_prior=0.611,
            num_flights=80_000,
            first_day="2013-10-01",
            last_day="2013-12-31",
        ),
        feature_rows=240,
        steps={"Start the stack": 5.0},
        seconds=88.8,
    )


def test_the_json_has_the_keys_that_readers_rely_on(summary: report.Summary) -> None:
    data = json.loads(report.to_json(summary))
    assert {"n", "p50_ms", "p99_ms", "batch_sizes", "rungs", "concurrency"} <= data["online"].keys()
    assert {"auc", "auc_low", "auc_high", "auc_prior"} <= data["quality"].keys()
    for door in ("batch", "streaming"):
        assert {"n", "p50_ms", "p99_ms", "batch_sizes"} <= data[door].keys()
    assert {"closes", "left", "right", "unattributed_share", "lines"} <= data["cost"].keys()
    assert data["seconds"] == 88.8
    assert data["online"]["rungs"] == {"model": 499, "student": 1}
    assert data["online"]["batch_sizes"] == {"4": 499}


SECOND_HALF = (
    "2000 arrival_delay at concurrency 32, 1 to 14 (median 4) per device call, p50 46 ms p99 91 ms",
    "before: nothing (missing), prediction 0.120; after: -1.8 min over 35 flights (present), prediction 0.075",
    "1021 applied, 979 expired",
    "departures/1/1034: malformed",
    "44 route_brief at concurrency 32, 24 to 28 (median 28) per step",
    "interrupted once, 2 kept",
    "0.014 % unattributed: closes",
)


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits_on_one_screen_and_qualifies_every_figure(summary: report.Summary, width: int) -> None:
    out = io.StringIO()
    report.show(summary, Console(file=out, width=width))
    text = out.getvalue()
    assert len(text.splitlines()) <= 45
    for part in (
        "500 delay_risk at concurrency 4",
        "model 99.8 % (499)",
        "deadline (1)",
        "bfloat16",
        "0.611",
        "9.9 s",
        *SECOND_HALF,
    ):
        assert part in " ".join(text.replace("│", " ").split()), part


def test_a_step_is_one_line_with_its_seconds_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    steps = Steps(Console(file=out, width=80))
    with steps.step("Prepare flights") as bar:
        bar.advance(1, 2, "read flights")
    assert out.getvalue() == "✓ Prepare flights 0.0 s\n"
    assert list(steps.seconds) == ["Prepare flights"]
