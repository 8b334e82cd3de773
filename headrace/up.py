"""`headrace up`: the local stack, with the flights example loaded where it is asked for, until the user ends it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from rich.console import Console
from sqlalchemy import make_url

from core_engine.settings import Settings
from headrace.stack import LocalStack, environment_path
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
            from headrace import flights  # it trains: torch and lightgbm, which the stack alone has no need of

            folder = flights.work_dir(settings)
            loaded = await flights.load_flights(stack.settings, stack.url, folder, datetime.now(UTC), steps)
            console.print(flights.how_to_ask(stack.url, loaded), highlight=False, soft_wrap=True, markup=False)
            if stack.has_own_valkey:
                refilling = asyncio.create_task(flights.refill(stack.supervisor, stack.settings, loaded))
                exits.callback(refilling.cancel)
        console.print(where(stack), highlight=False, soft_wrap=True, markup=False)
        await stack.supervisor.until_failed()


def where(stack: LocalStack) -> str:
    settings = stack.settings
    lines = (
        ("door", f"{stack.url}   (/healthz /readyz /metrics)"),
        ("openai", f"{stack.url}/v1"),
        ("redis", _without_password(settings.redis.url)),
        ("kafka", settings.kafka.bootstrap_servers),
        ("database", _without_password(settings.database_url)),
        ("logs", str(settings.state_dir / "logs")),
        ("shell", f". {environment_path(settings)}   (then: headrace plan, batch, stream, cost)"),
    )
    return "\n".join((*(f"{name:<9} {value}" for name, value in lines), "Ctrl-C stops everything."))


def _without_password(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)
