"""HTTP connections that cannot hold on to the door: a head that never ends, one that never comes, a reply never read;
or simply too many of them (`open_connections`).

uvicorn's protocol with four bounds of ours; complete requests are judged by `layer`, and bodies by `online.body`. A
client that does not read is noticed where the transport says that its buffer is full, so that a stream whose client
reads pays nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from core_engine.contracts import Reason
from core_engine.settings import HttpSettings
from online.access.open_connections import IDLE_S, NO_PLACE, Going, OpenConnections
from online.request_context import KEY, RECEIVED, RequestContext


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of every connection of a server. `on_cut` is told why one was ended; `idle_s` is when one may be for another."""

    http: HttpSettings
    on_cut: Callable[[str], None]
    idle_s: float = IDLE_S


def bounded_http(bounds: Bounds) -> type[HttpToolsProtocol]:
    """The protocol class of a server."""

    class BoundedConnection(Connection):
        pass

    BoundedConnection.bounds = bounds
    BoundedConnection.open = OpenConnections(bounds.http.max_connections, idle_s=bounds.idle_s)
    return BoundedConnection


class Connection(HttpToolsProtocol):
    bounds: ClassVar[Bounds]
    open: ClassVar[OpenConnections[Connection]]

    _in_head = False  # a request has begun, and its headers have not ended
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        if (ended := self.open.enter(self)) is not None:
            ended.connection.ended_for_another(ended.why)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.leave(self)
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
        has_place = self.open.begin(self)
        self.scope[NO_PLACE] = not has_place  # type: ignore[literal-required]
        self.scope[RECEIVED] = time.monotonic()  # type: ignore[literal-required]
        super().on_headers_complete()
        if not has_place:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else: another request of this connection has waited for its turn
            self.open.end(self)

    def ended_for_another(self, why: Going) -> None:
        """There were too many connections, and this one has asked for nothing yet, or not for some time."""
        if why is Going.CROWDED:
            self._refuse(503, why, "this door has as many connections as it may; try again", b"retry-after: 1\r\n")
        else:
            self.transport.close()
            self.bounds.on_cut(why)

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

    def send_400_response(self, msg: str) -> None:
        """In uvicorn's place, which would write plain text, even into an answer under way."""
        self._refuse(400, "malformed_request", msg)

    def _refuse(self, status: int, reason: str, detail: str, headers: bytes = b"") -> None:
        """A problem (RFC 9457) to a request that no route can be found for yet; none into an answer under way."""
        body = msgspec.json.encode(
            {"type": f"urn:headrace:problem:{reason}", "title": reason, "status": status, "detail": detail}
        )
        head = b"content-type: application/problem+json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        if self._may_answer():
            self.transport.write(STATUS_LINE[status] + head + headers + b"\r\n" + body)
        self.transport.close()
        self.bounds.on_cut(reason)

    def _may_answer(self) -> bool:
        """Whether what is written now is the answer to what is refused: a head that no other answer is before, or a
        body whose route has said nothing yet."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return not self._in_head and cycle.more_body and not cycle.response_started and not self.pipeline

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
