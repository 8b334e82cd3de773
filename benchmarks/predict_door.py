"""`POST /v1/predict/delay_risk` under open-loop Poisson load, with and without bulk generation beside it.

The real stack (Valkey, engine process, HTTP door) with the flights example loaded; one client process. Requests start
when their time has come, whether or not earlier ones were answered, and latency counts from that instant. The floor is
`GET /healthz` of the same door at the same rate through the same client: what HTTP alone costs here.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from rich.console import Console

from benchmarks.report import Row, options, publish
from core_engine.settings import Settings, load_settings
from headrace.demo.notice import bulk_running
from headrace.demo.run import demo_settings
from headrace.demo.summary import quantile
from headrace.flights import PREDICT, Flights, load_flights
from headrace.stack import LocalStack
from headrace.steps import Steps

BUDGET_MS = 50.0


@dataclass(frozen=True, slots=True)
class Answer:
    latency_s: float  # from the instant at which it was due
    rung: str
    batch_size: int


async def open_loop(rate: float, seconds: float, ask: Callable[[int], Awaitable[tuple[str, int]]]) -> list[Answer]:
    """Poisson arrivals at `rate` per second; every request is awaited, however late."""
    rng, answers, tasks = random.Random(0), list[Answer](), list[asyncio.Task[None]]()

    async def one(number: int, due_s: float) -> None:
        rung, batch_size = await ask(number)
        answers.append(Answer(time.perf_counter() - due_s, rung, batch_size))

    start = due_s = time.perf_counter()
    while (due_s := due_s + rng.expovariate(rate)) < start + seconds:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(one(len(tasks), due_s)))
    await asyncio.gather(*tasks)
    return answers


async def predict_load(client: httpx.AsyncClient, flights: Flights, rate: float, seconds: float) -> list[Answer]:
    async def ask(number: int) -> tuple[str, int]:
        request = flights.requests[number % len(flights.requests)]
        reply = (await client.post(PREDICT, json={"inputs": request.inputs})).raise_for_status().json()
        return reply["rung"], reply["usage"]["batch_size"]

    return await open_loop(rate, seconds, ask)


async def floor_load(client: httpx.AsyncClient, rate: float, seconds: float) -> list[Answer]:
    async def ask(_: int) -> tuple[str, int]:
        (await client.get("/healthz")).raise_for_status()
        return "floor", 0

    return await open_loop(rate, seconds, ask)


def row(rate: float, beside: str, answers: list[Answer], floor: list[Answer]) -> Row:
    ms = [answer.latency_s * 1e3 for answer in answers]
    floor_ms = [answer.latency_s * 1e3 for answer in floor]
    rungs = Counter(answer.rung for answer in answers)
    sizes = [answer.batch_size for answer in answers if answer.batch_size]
    return {
        "req/s": rate,
        "beside": beside,
        "n": len(answers),
        "p50 ms": quantile(ms, 0.5),
        "p99 ms": quantile(ms, 0.99),
        "p99.9 ms": quantile(ms, 0.999),
        "max ms": max(ms),
        "within budget": sum(each <= BUDGET_MS for each in ms) / len(ms),
        "model rung": rungs["model"] / len(answers),
        "mean batch": sum(sizes) / max(1, len(sizes)),
        "floor p50 ms": quantile(floor_ms, 0.5),
        "floor p99 ms": quantile(floor_ms, 0.99),
        "p50 / floor": quantile(ms, 0.5) / quantile(floor_ms, 0.5),
    }


async def measure(given: Settings, rates: list[float], seconds: float, folder: Path) -> list[Row]:
    rows: list[Row] = []
    stack = LocalStack(demo_settings(given), fresh=True)
    steps = Steps(Console(stderr=True))
    async with stack, httpx.AsyncClient(base_url=stack.url, timeout=10.0) as client:
        flights = await load_flights(stack.settings, stack.url, folder, datetime.now(UTC), steps)
        await predict_load(client, flights, rates[0], 1.0)  # warm-up
        for rate in rates:
            floor = await floor_load(client, rate, seconds / 2)
            rows.append(row(rate, "nothing", await predict_load(client, flights, rate, seconds), floor))
            async with AsyncExitStack() as exits:
                bulk = await exits.enter_async_context(bulk_running(stack.settings.engine))
                before = bulk.num_tokens
                answers = await predict_load(client, flights, rate, seconds)
                beside = f"1 bulk stream, {(bulk.num_tokens - before) / seconds:.1f} tok/s"
            rows.append(row(rate, beside, answers, floor))
    return rows


def main() -> None:
    args = options(__doc__ or "")
    rates, seconds = ([50.0], 4.0) if args.quick else ([25.0, 50.0, 100.0, 200.0], 15.0)
    with tempfile.TemporaryDirectory(prefix="hr-") as state:
        given = load_settings().model_copy(update={"state_dir": Path(state)})
        rows = asyncio.run(measure(given, rates, seconds, Path(state) / "flights"))
    headline: dict[str, float] = {}
    for each in rows:
        name = f"{each['req/s']:.0f}rps_{'alone' if each['beside'] == 'nothing' else 'beside_bulk'}"
        headline |= {f"p99_ms_{name}": each["p99 ms"], f"p50_over_floor_{name}": each["p50 / floor"]}
    publish(
        "Predict over HTTP, open loop, budget 50 ms, engine bfloat16, one row per request", rows, headline, args.json
    )


if __name__ == "__main__":
    main()
