"""Server-sent events that end their source when the client leaves, and a way to wait no longer than the client does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: object) -> bytes:
    """One `data:` event of JSON, which holds no line break."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class ChunkEvents:
    """Events of objects that differ in their one choice: all that they share is encoded once.

    `shared` comes before the choices in every object, `closing` after them.
    """

    def __init__(self, shared: Mapping[str, object], closing: Mapping[str, object]) -> None:
        self._head = b"data: " + msgspec.json.encode(shared)[:-1] + b',"choices":['
        after = msgspec.json.encode(closing)[1:]
        self._tail = b"]" + (b"," + after if closing else after) + b"\n\n"

    def event(self, choice: object) -> bytes:
        return b"%b%b%b" % (self._head, msgspec.json.encode(choice), self._tail)


class EventStream(StreamingResponse):
    """Sends `events` as they come. However it ends, `events` and then `source` are closed before the request is over.

    `source` is closed besides, because a generator that never started does not run its own clean-up.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], source: AsyncGenerator[Any, None]) -> None:
        super().__init__(events, headers=HEADERS)
        self._generators = (events, source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for generator in self._generators:
                await generator.aclose()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client goes away first.

    The request's body must have been read: what comes next from the server is the disconnect.

    Raises:
        ClientDisconnect: the client is gone; whatever `work` itself raises.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
