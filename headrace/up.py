"""`headrace up`: the local stack, with the flights example loaded where it is asked for, until the user ends it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime

from rich.console import Console
from sqlalchemy import make_url

from core_engine.errors import StoreUnavailable
from core_engine.pools.supervisor import Supervisor, is_ready_again
from core_engine.settings import Settings
from headrace.flights import PREDICT, Flights, fill_store, load_flights, work_dir
from headrace.stack import LocalStack
from headrace.steps import Steps


async def stay_up(settings: Settings, *, example: bool) -> None:
    """Run until cancelled.

    Raises:
        HeadraceError: a part could not be started, or was given up; everything else is stopped.
    """
    console = Console()
    steps = Steps(console)
    async with AsyncExitStack() as exits:
        with steps.step("Start the stack"):
            stack = await exits.enter_async_context(LocalStack(settings))
        if example:
            flights = await load_flights(stack.settings, stack.url, work_dir(settings), datetime.now(UTC), steps)
            console.print(how_to_ask(stack.url, flights), highlight=False, soft_wrap=True, markup=False)
            if stack.has_own_valkey:
                refilling = asyncio.create_task(refill(stack.supervisor, stack.settings, flights))
                exits.callback(refilling.cancel)
        console.print(where(stack), highlight=False, soft_wrap=True, markup=False)
        await stack.supervisor.until_failed()


async def refill(supervisor: Supervisor, settings: Settings, flights: Flights) -> None:
    """Our own Valkey keeps nothing on disk: whenever it was restarted, load the features again."""
    restarts = 0
    while True:
        restarts = (await supervisor.until("valkey", is_ready_again(restarts))).restarts
        with suppress(StoreUnavailable):  # lost again meanwhile: its next restart is waited for
            await fill_store(settings, flights.prepared, flights.now)


def how_to_ask(url: str, flights: Flights) -> str:
    """Command lines that can be pasted: one prediction, one streamed notice."""
    request = flights.requests[0]
    chat = {"model": "flight_notice", "stream": True, "messages": [{"role": "user", "content": request.facts}]}
    return "\n".join(
        ("", _curl(url + PREDICT, {"inputs": request.inputs}), "", _curl(f"{url}/v1/chat/completions", chat), "")
    )


def _curl(url: str, body: dict[str, object]) -> str:
    return f"curl -sN {url} -H 'content-type: application/json' -d '{json.dumps(body)}'"


def where(stack: LocalStack) -> str:
    settings = stack.settings
    lines = (
        ("door", f"{stack.url}   (/healthz /readyz /metrics)"),
        ("openai", f"{stack.url}/v1"),
        ("redis", _without_password(settings.redis.url)),
        ("database", _without_password(settings.database_url)),
        ("logs", str(settings.state_dir / "logs")),
    )
    return "\n".join((*(f"{name:<9} {value}" for name, value in lines), "Ctrl-C stops everything."))


def _without_password(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)
