"""The demo's steps, in order. Composition root: the stack, its clients and the clock are made here."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import structlog
from rich.console import Console

from core_engine.costs.report import CostReport
from core_engine.settings import Settings
from examples.flights.departures import departure_events
from headrace import cost
from headrace.demo import summary as report
from headrace.demo.departures import stream_departures
from headrace.demo.failover import kill_engine
from headrace.demo.load import WARM_UP, DemoFailed, Reply, ask_all, check_model_share, measured
from headrace.demo.nightly import nightly_jobs
from headrace.demo.notice import bulk_running, stream_notice
from headrace.flights import Flights, load_flights, work_dir
from headrace.runtime import free_port
from headrace.stack import LocalStack
from headrace.steps import Steps

NUM_EVENTS = 2000
STREAMED = timedelta(days=7)  # windows are loaded as known so long ago; what came after is the stream's


async def run_demo(given: Settings, json_file: Path | None) -> None:
    """Run the main job, print the summary, and write it to `json_file` where one is named.

    Raises:
        DemoFailed: a promise was not kept.
        HeadraceError: a part could not be started; everything else is stopped.
    """
    console, start = Console(), time.monotonic()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # the steps tell the rest
    steps = Steps(console)
    stack = LocalStack(demo_settings(given), fresh=True)
    async with AsyncExitStack() as exits:
        with steps.step("Start the stack"):
            await exits.enter_async_context(stack)
        now = datetime.now(UTC)
        flights = await load_flights(stack.settings, stack.url, work_dir(given), now, steps, now - STREAMED)
        streaming = await stream(stack, flights, steps)
        replies = await predict(stack, flights, steps)
        notice = await notice_beside_bulk(stack, replies, steps)
        failover = await lose_the_engine(stack, flights, steps)
        with steps.step("Nightly jobs, interrupted once") as bar:
            batch = await nightly_jobs(stack.settings, stack.url, flights, bar)
        with steps.step("Stop the stack"):
            await exits.aclose()
    check_nothing_left(stack.supervisor.pids)
    with steps.step("Load the spools, price the day"):
        bill = await asyncio.to_thread(cost.report, stack.settings, by="path,predictor")
    summary = report.Summary(
        online=measured(replies, WARM_UP),
        notice=notice,
        failover=failover,
        streaming=streaming,
        batch=batch,
        cost=cost_of(bill),
        quality=quality_of(flights),
        feature_rows=flights.feature_rows,
        steps=steps.seconds,
        seconds=time.monotonic() - start,
    )
    cost.show(bill, console)
    report.show(summary, console)
    console.print(f"All {len(stack.supervisor.pids)} processes that were started have ended.")
    if json_file is not None:
        json_file.write_bytes(report.to_json(summary))


def demo_settings(given: Settings) -> Settings:
    """The user's settings with a state folder of its own, wiped by each run, and a port that nobody uses.

    A port named by the user stays: then a port in use is an error.
    """
    http = given.http
    if "port" not in http.model_fields_set:
        http = http.model_copy(update={"port": free_port(http.host)})
    return given.model_copy(update={"state_dir": given.state_dir / "demo", "http": http})


async def stream(stack: LocalStack, flights: Flights, steps: Steps) -> report.Streaming:
    """Departures as they happened up to now, through broker and worker into the window that predictions read."""
    with steps.step("Stream departures") as bar:
        events = await asyncio.to_thread(departure_events, flights.prepared, flights.now, NUM_EVENTS)
        if events[0].event_time < flights.now - STREAMED:
            raise DemoFailed(f"the first event is of {events[0].event_time}, before the stream begins")
        return await stream_departures(stack.settings, stack.url, flights, events, bar)


async def predict(stack: LocalStack, flights: Flights, steps: Steps) -> list[Reply]:
    """Every flight next due, scored by the model rung."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=5.0) as client:
        with steps.step(f"Predict {len(flights.requests)} flights, after {WARM_UP} to warm up") as bar:
            await ask_all(client, flights.requests[-WARM_UP:], bar.advance)
            replies = await ask_all(client, flights.requests, bar.advance)
    check_model_share(replies)
    return replies


async def notice_beside_bulk(stack: LocalStack, replies: Sequence[Reply], steps: Steps) -> report.Notice:
    """A notice about the likeliest delay, streamed token by token beside a bulk generation."""
    worst = max(replies, key=lambda reply: reply.value)
    request = worst.flight.notice_request(worst.value)
    console, engine = steps.console, stack.settings.engine

    def show(text: str) -> None:
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    async with AsyncExitStack() as exits:
        with steps.step("Start a bulk generation"):
            bulk = await exits.enter_async_context(bulk_running(engine))
        with steps.own_output("Stream a notice beside it"):
            console.print("  ", end="")
            notice = await stream_notice(stack.url, request, bulk, engine.weights, show)
            console.print()
    return notice


async def lose_the_engine(stack: LocalStack, flights: Flights, steps: Steps) -> report.Failover:
    """The student answers while the engine is gone."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=5.0) as client:
        with steps.step("Kill the engine, ask until the model rung answers again"):
            return await kill_engine(stack.supervisor, client, flights.requests[0])


def quality_of(flights: Flights) -> report.Quality:
    quality = flights.prepared.quality
    return report.Quality(
        auc=quality.model.auc,
        auc_low=quality.model.auc_low,
        auc_high=quality.model.auc_high,
        auc_student=quality.student.auc,
        auc_prior=quality.prior.auc,
        num_flights=quality.num_flights,
        first_day=quality.first_day,
        last_day=quality.last_day,
    )


def cost_of(bill: CostReport) -> report.Cost:
    """The bill as plain numbers.

    Raises:
        DemoFailed: it does not add up.
    """
    if not bill.closes:
        raise DemoFailed(f"the bill does not close: left {bill.left}, right {bill.right}, {bill.unattributed_share=}")
    return report.Cost(
        closes=bill.closes,
        left=float(bill.left),
        right=float(bill.right),
        unattributed_share=float(bill.unattributed_share),
        lines=[
            {
                **dict(zip(bill.by, line.key, strict=True)),
                "attempts": line.count.attempts,
                "terms": {str(term): float(amount) for term, amount in line.terms.items()},
                "total": float(line.total),
            }
            for line in bill.lines
        ],
    )


def check_nothing_left(pids: tuple[int, ...]) -> None:
    """Raises `DemoFailed` if a process that the stack started is still there."""
    left = [pid for pid in pids if _exists(pid)]
    if left:
        raise DemoFailed(f"processes {left} are still there after the stack was stopped")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
