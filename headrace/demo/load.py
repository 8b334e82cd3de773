"""A client of the door that asks for predictions and writes down what it saw: latency, rung, reason, batch size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from core_engine.errors import HeadraceError
from headrace.demo.summary import Online, counted, quantile
from headrace.flights import PREDICT, Request

CONCURRENCY = 4
WARM_UP = 64
MODEL_SHARE = 0.99


class DemoFailed(HeadraceError):
    """The main job did not do what it promises; the message says which promise, and what was seen."""

    code = "demo_failed"


@dataclass(frozen=True, slots=True)
class Reply:
    flight: Request
    value: float
    rung: str
    reason: str | None
    batch_size: int
    latency_s: float


async def ask(client: httpx.AsyncClient, flight: Request) -> Reply:
    """One prediction.

    Raises:
        DemoFailed: any answer but 200, or none.
    """
    start = time.monotonic()
    try:
        response = await client.post(PREDICT, json={"inputs": flight.inputs})
    except httpx.HTTPError as error:
        raise DemoFailed(f"POST {PREDICT} was not answered: {error!r}") from None
    latency_s = time.monotonic() - start
    if response.status_code != httpx.codes.OK:
        raise DemoFailed(f"POST {PREDICT} answered {response.status_code}: {response.text[:500]}")
    body = response.json()
    return Reply(flight, body["value"], body["rung"], body["reason"], body["usage"]["batch_size"], latency_s)


async def ask_all(
    client: httpx.AsyncClient, flights: Sequence[Request], on_reply: Callable[[int, int], None]
) -> list[Reply]:
    """One prediction per flight, `CONCURRENCY` in flight; `on_reply` is told how many of how many are answered."""
    replies: list[Reply] = []

    async def work(flights_left: Iterator[Request]) -> None:
        for flight in flights_left:
            replies.append(await ask(client, flight))
            on_reply(len(replies), len(flights))

    flights_left = iter(flights)
    await asyncio.gather(*(work(flights_left) for _ in range(CONCURRENCY)))
    return replies


def measured(replies: Sequence[Reply], warm_up: int) -> Online:
    latencies_ms = [reply.latency_s * 1e3 for reply in replies]
    return Online(
        n=len(replies),
        concurrency=CONCURRENCY,
        warm_up=warm_up,
        p50_ms=quantile(latencies_ms, 0.5),
        p99_ms=quantile(latencies_ms, 0.99),
        max_ms=max(latencies_ms),
        batch_sizes=counted(reply.batch_size for reply in replies if reply.batch_size),  # 0: no device call
        rungs=counted(reply.rung for reply in replies),
        reasons=reasons(replies),
    )


def reasons(replies: Iterable[Reply]) -> dict[str, int]:
    return counted(reply.reason for reply in replies if reply.reason is not None)


def check_model_share(replies: Sequence[Reply]) -> None:
    """Raises `DemoFailed` where fewer than 99 % of the replies came from the model rung."""
    share = sum(reply.rung == "model" for reply in replies) / len(replies)
    if share < MODEL_SHARE:
        raise DemoFailed(
            f"only {100 * share:.1f} % of {len(replies)} replies came from the model rung, expected at least "
            f"{100 * MODEL_SHARE:.0f} %; rungs: {counted(reply.rung for reply in replies)}, reasons: {reasons(replies)}"
        )
