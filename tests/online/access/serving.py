"""A guarded door behind a real socket, with the protocol that bounds connections, and what it cut."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn

from online.access.connection import Bounds, bounded_http
from online.access.open_connections import IDLE_S
from tests.online.access.conftest import Guarded

SMALL_BYTES = 4096  # of socket buffers, so that a client that does not read is noticed soon


@dataclass
class Bounded:
    door: Guarded
    port: int
    cuts: list[str] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that takes in little by itself: whoever does not read from it soon holds the door up."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=client, limit=SMALL_BYTES)


@asynccontextmanager
async def serving(door: Guarded, idle_s: float = IDLE_S) -> AsyncIterator[Bounded]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
        bounded = Bounded(door, listener.getsockname()[1])
        config = uvicorn.Config(
            door.app,
            http=bounded_http(Bounds(door.services.http, bounded.cuts.append, idle_s)),
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield bounded
        finally:
            server.should_exit = True
            await task
