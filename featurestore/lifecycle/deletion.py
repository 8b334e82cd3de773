"""Deletes a view version: what it has in Redis, how far it was, and then its registration.

Keys are found by SCAN and given to UNLINK, which frees their memory in the background; both in bounded batches, at a
pace. A deletion that died is finished by deleting again: the version stays `deleting`, and nothing is served from it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, Unavailable
from featurestore.catalog import VIEW_NAME
from featurestore.keys import view_prefix
from featurestore.lifecycle.leases import leased
from featurestore.lifecycle.pace import UNBOUNDED, Pace
from featurestore.lifecycle.watermarks import Watermarks
from featurestore.materialize import OnProgress
from featurestore.online.connection import links_of
from featurestore.online.link import Link
from featurestore.online.server_functions import pipelined, refusal
from featurestore.registry import Status, set_status

SCAN_COUNT: Final = 1_000  # keys that one command looks at; it holds the server for less than a millisecond
MAX_PASSES: Final = 3


class StillWritten(Unavailable):
    """Something goes on writing what is being deleted."""

    code = "view_still_written"


async def delete_view(
    client: Redis,
    database: Engine,
    name: str,
    version: int,
    pace: Pace = UNBOUNDED,
    on_progress: OnProgress | None = None,
) -> int:
    """Delete a registered version, or finish its deletion; how many keys were removed. Nothing else is touched.

    `pace` is asked before each look at `SCAN_COUNT` keys of the server, whosever they are.

    Raises:
        UnknownName: it was never registered.
        ViewBusy: it is being materialized.
        StillWritten, StoreUnavailable: the deletion is not finished; delete again.
    """
    watermarks = Watermarks(database)
    async with leased(watermarks, name, version) as lease:
        await asyncio.to_thread(_note, database, name, version, Status.DELETING)
        removed = await remove_keys(client, name, version, pace, on_progress)
        await asyncio.to_thread(watermarks.forget, lease)
        await asyncio.to_thread(_note, database, name, version, Status.DELETED)
        return removed


async def remove_keys(
    client: Redis, name: str, version: int, pace: Pace = UNBOUNDED, on_progress: OnProgress | None = None
) -> int:
    """Remove every key of a view version, registered or not, until a look at all keys finds none; how many they were.

    Raises:
        ConfigurationError: no view can have that name.
        StillWritten: there were new ones each time.
    """
    if not VIEW_NAME.fullmatch(name):
        raise ConfigurationError(f"feature view {name!r} is no name; use letters, digits and _")
    removed = 0
    for _ in range(MAX_PASSES):
        found = await _remove_once(client, view_prefix(name, version), pace, on_progress)
        if not found:
            return removed
        removed += found
    raise StillWritten(
        f"feature view {name} version {version}: {removed} keys were removed, and new ones keep coming; stop what"
        " writes it (headrace stream run, a materialization by another registry), then delete again"
    )


async def _remove_once(client: Redis, prefix: str, pace: Pace, on_progress: OnProgress | None) -> int:
    """One look at every key of every server. Keys that are there all the time are seen; see redis.io, SCAN."""
    links = await links_of(client).primaries()
    total = sum([await _asked(link, "DBSIZE") for link in links])
    removed = seen = 0
    for link in links:
        cursor = b"0"
        while True:
            await pace.take(SCAN_COUNT)
            cursor, keys = await _asked(link, "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", SCAN_COUNT)
            removed += sum(await pipelined(client, [("UNLINK", key) for key in keys]))
            seen += SCAN_COUNT
            if on_progress is not None:
                on_progress(min(seen, total), total)
            if cursor == b"0":
                break
    return removed


async def _asked(link: Link, *command: str | bytes | int) -> Any:
    [reply] = (await link.ask([command])).replies
    if isinstance(reply, ResponseError):
        raise refusal(reply)
    return reply


def _note(database: Engine, name: str, version: int, status: Status) -> None:
    with Session(database) as session, session.begin():
        set_status(session, name, version, status)
