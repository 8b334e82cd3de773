"""The lease of a view version for as long as some work takes: one run or one deletion at a time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from featurestore.lifecycle.watermarks import LEASE, Lease, Watermarks

RENEWALS: Final = 3  # of a lease, in the time that it would last: two may fail


@asynccontextmanager
async def leased(watermarks: Watermarks, name: str, version: int) -> AsyncIterator[Lease]:
    """The lease, renewed until the end and then given back. Raises `ViewBusy` where another process holds it."""
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    lease = await asyncio.to_thread(watermarks.acquire, name, version, holder)
    renewing = asyncio.create_task(_keep(watermarks, lease))
    try:
        yield lease
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await asyncio.to_thread(watermarks.release, lease)


async def _keep(watermarks: Watermarks, lease: Lease) -> None:
    """Ends with `ViewBusy` where the lease is lost; the work finds that out when it next saves."""
    while True:
        await asyncio.sleep(LEASE.total_seconds() / RENEWALS)
        await asyncio.to_thread(watermarks.renew, lease)
