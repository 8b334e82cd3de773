"""Commands to Redis in one round trip, and server-side functions that are given again to a server that lost them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from core_engine.errors import StoreFull, StoreReadOnly, StoreUnavailable
from featurestore.online.connection import links_of


async def pipelined(client: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The replies to `commands`, sent together.

    Raises:
        StoreUnavailable: Redis away, or refusing; some of the commands may have been carried out.
    """
    replies = (await links_of(client).writes.ask(commands)).replies
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise refusal(reply)
    return replies


async def called(client: Redis, library: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The replies to FCALLs of functions in `library`, in the order of `calls`; raises as `pipelined`."""
    replies = await attempted(client, library, calls)
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise refusal(reply)
    return replies


async def attempted(client: Redis, library: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """As `called`, but a refusal stands among the replies. Raises `StoreUnavailable` where Redis is away."""
    writes = links_of(client).writes
    replies = (await writes.ask(calls)).replies
    lacking = [i for i, reply in enumerate(replies) if _lacks_function(reply)]
    if lacking:
        await pipelined(client, [("FUNCTION", "LOAD", "REPLACE", library)])
        again = (await writes.ask([calls[i] for i in lacking])).replies
        for i, reply in zip(lacking, again, strict=True):
            replies[i] = reply
    return replies


def refusal(reply: ResponseError, what: str = "") -> StoreUnavailable:
    """What the server said as an error of ours; `what` was to be written."""
    message = f"online store: {what}{': ' if what else ''}{reply}"
    if str(reply).startswith("OOM"):
        return StoreFull(f"{message}; give the server more memory, or delete views that nobody reads")
    if str(reply).startswith("READONLY"):
        return StoreReadOnly(f"{message}; name the primary in HEADRACE_REDIS__URL")
    return StoreUnavailable(message)


def _lacks_function(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and "function not found" in str(reply).lower()
