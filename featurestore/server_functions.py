"""Commands to Redis in one round trip, and server-side functions that are given again to a server that lost them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from core_engine.errors import StoreUnavailable


async def pipelined(
    client: Redis, commands: Sequence[tuple[Any, ...]], *, can_lack_function: bool = False
) -> list[Any]:
    """The replies to `commands`, sent together. Where a function may be lacking, its error is a reply.

    Raises:
        StoreUnavailable: Redis away, or refusing; some of the commands may have been carried out.
    """
    if not commands:
        return []
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    try:
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"online store: {type(error).__name__}: {error}") from error
    for reply in replies:
        if isinstance(reply, Exception) and not (can_lack_function and _lacks_function(reply)):
            raise StoreUnavailable(f"online store: {type(reply).__name__}: {reply}") from reply
    return replies


async def called(client: Redis, library: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The replies to FCALLs of functions in `library`, in the order of `calls`; raises as `pipelined`."""
    replies = await pipelined(client, calls, can_lack_function=True)
    lacking = [i for i, reply in enumerate(replies) if isinstance(reply, ResponseError)]
    if lacking:
        await pipelined(client, [("FUNCTION", "LOAD", "REPLACE", library)])
        for i, reply in zip(lacking, await pipelined(client, [calls[i] for i in lacking]), strict=True):
            replies[i] = reply
    return replies


def _lacks_function(reply: Exception) -> bool:
    return isinstance(reply, ResponseError) and "function not found" in str(reply).lower()
