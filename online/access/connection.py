"""HTTP connections that cannot hold on to the door: a head that never ends, one that never comes, a reply never read.

uvicorn's protocol with three bounds of ours; complete requests are judged by `layer`, and bodies by `online.body`. A
client that does not read is noticed where the transport says that its buffer is full, so that a stream whose client
reads pays nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from core_engine.contracts import Reason
from core_engine.settings import HttpSettings
from online.request_context import KEY, RequestContext


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of every connection of a server. `on_cut` is told why one was ended."""

    http: HttpSettings
    on_cut: Callable[[str], None]


def bounded_http(bounds: Bounds) -> type[HttpToolsProtocol]:
    """The protocol class of a server."""

    class BoundedConnection(Connection):
        pass

    BoundedConnection.bounds = bounds
    return BoundedConnection


class Connection(HttpToolsProtocol):
    bounds: ClassVar[Bounds]

    _in_head = False  # a request has begun, and its headers have not ended
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._reader_came()
        super().connection_lost(exc)

    # -- heads

    def data_received(self, data: bytes) -> None:
        was_in_head = self._in_head
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        # the chunk in which a head begins may hold the end of what came before, so it is not counted
        self._head_bytes = self._head_bytes + len(data) if was_in_head else 0
        if self._head_bytes > self.bounds.http.max_header_bytes:
            self._refuse(431, "large_head", f"the headers have more than {self.bounds.http.max_header_bytes} bytes")
        elif self._head_timer is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_came()
        super().on_headers_complete()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.bounds.http.head_timeout_s, self._head_is_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(408, "slow_head", f"the headers did not come within {self.bounds.http.head_timeout_s:g} s")
        else:  # nothing was asked: a client that connected ahead of its need
            self.transport.close()

    def _refuse(self, status: int, reason: str, detail: str) -> None:
        """A problem (RFC 9457) to a request that no route can be found for yet; none into an answer under way."""
        body = msgspec.json.encode(
            {"type": f"urn:headrace:problem:{reason}", "title": reason, "status": status, "detail": detail}
        )
        head = b"content-type: application/problem+json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
        self.bounds.on_cut(reason)

    # -- readers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader_timer = self.loop.call_later(self.bounds.http.slow_reader_s, self._reader_is_late)

    def resume_writing(self) -> None:
        self._reader_came()
        super().resume_writing()

    def _reader_came(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _reader_is_late(self) -> None:
        """The route sees a client that went away; what waits in the buffer is thrown away with the connection."""
        self._reader_timer = None
        scope: Mapping[str, object] = self.cycle.scope
        if isinstance(context := scope.get(KEY), RequestContext):
            context.cut = Reason.SLOW_READER
        self.bounds.on_cut(Reason.SLOW_READER)
        self.transport.abort()
