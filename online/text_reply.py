"""A call's generations on the wire, whole or as a stream, in the words of its route (a chat's, or a completion's).

A stream starts with its first token: an engine that is lost or refuses before it is a plain error. Lost later, the
stream carries an error event and ends there, without a finish reason that nobody decided and without `[DONE]`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response

from core_engine.contracts import FinishReason, TokenLogprob
from core_engine.errors import EngineUnavailable, HeadraceError
from core_engine.llm.choices import ChoiceDelta
from core_engine.llm.text import TextDelta
from online.event_stream import DONE, ChunkEvents, EventStream, event, while_connected
from online.generation import Generations
from online.problems import openai_error_body
from online.reply_usage import times_of, usage_of

Choice = dict[str, Any]
Deltas = AsyncGenerator[ChoiceDelta, None]


@dataclass(slots=True)
class Told:
    """Everything that one choice said."""

    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None

    def add(self, delta: TextDelta) -> None:
        self.text += delta.text
        self.finish_reason = delta.finish_reason
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs


class Wording(Protocol):
    """How one route writes its objects and their choices. Nulls are sent: the client's types expect the fields."""

    id_prefix: str
    reply_object: str
    chunk_object: str

    def opens(self, index: int) -> Choice | None:
        """What a choice's stream begins with, if anything."""

    def adds(self, index: int, delta: TextDelta) -> Choice: ...

    def ends(self, index: int, reason: FinishReason) -> Choice: ...

    def whole(self, index: int, told: Told, reason: FinishReason) -> Choice: ...


@dataclass(frozen=True, slots=True)
class TextReply:
    """One reply: `created` is seconds since 1970, the same in all of its objects."""

    work: Generations
    wording: Wording
    created: int = field(default_factory=lambda: int(time.time()))

    async def respond(self, request: Request) -> Response:
        deltas = self.work.deltas()
        if not self.work.call.stream:
            return await while_connected(request, self._whole(deltas))
        first = await while_connected(request, _first(deltas))
        return EventStream(self._chunks(first, deltas), deltas)

    async def _whole(self, deltas: Deltas) -> Response:
        told = [Told() for _ in self.work.meters]
        async with aclosing(deltas):
            async for each in deltas:
                told[each.index].add(each.delta)
        choices = [self.wording.whole(i, each, _decided(each.finish_reason)) for i, each in enumerate(told)]
        body = self._object(self.wording.reply_object, choices) | {"usage": usage_of(self.work)} | self._times()
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def _chunks(self, first: ChoiceDelta, deltas: Deltas) -> AsyncGenerator[bytes, None]:
        """Roles, content, finish reasons, usage if it was asked for, done. Each is an event of its own."""
        reasons: list[FinishReason | None] = [None] * len(self.work.meters)
        closing = {"usage": None} if self.work.call.include_usage else {}
        events = ChunkEvents(self._shared(self.wording.chunk_object), closing)
        for index in range(len(reasons)):
            if (opening := self.wording.opens(index)) is not None:
                yield events.event(opening)
        try:
            if pieces := self._pieces(first, reasons, events):
                yield pieces
            async for each in deltas:
                if pieces := self._pieces(each, reasons, events):
                    yield pieces
            for reason in reasons:
                _decided(reason)
        except HeadraceError as error:
            yield event(openai_error_body(error))
            return
        wants_more = self.work.call.include_usage or self.work.call.wants_times
        yield self._closing_chunk() + DONE if wants_more else DONE

    def _pieces(self, each: ChoiceDelta, reasons: list[FinishReason | None], events: ChunkEvents) -> bytes:
        index, delta, pieces = each.index, each.delta, b""
        if delta.text or delta.logprobs:
            pieces = events.event(self.wording.adds(index, delta))
        if delta.finish_reason is not None:
            reasons[index] = delta.finish_reason
            pieces += events.event(self.wording.ends(index, delta.finish_reason))
        return pieces

    def _closing_chunk(self) -> bytes:
        chunk = self._object(self.wording.chunk_object, [])
        if self.work.call.include_usage:
            chunk["usage"] = usage_of(self.work)
        return event(chunk | self._times())

    def _times(self) -> dict[str, Any]:
        return {"headrace": times_of(self.work, time.monotonic())} if self.work.call.wants_times else {}

    def _object(self, kind: str, choices: list[Choice]) -> dict[str, Any]:
        return self._shared(kind) | {"choices": choices}

    def _shared(self, kind: str) -> dict[str, Any]:
        """What every object of this reply begins with."""
        return {
            "id": f"{self.wording.id_prefix}-{self.work.context.attempt_id}",
            "object": kind,
            "created": self.created,
            "model": self.work.call.model,
        }


async def _first(deltas: Deltas) -> ChoiceDelta:
    first = await anext(deltas, None)
    if first is None:
        raise EngineUnavailable("the engine ended the request without a token")
    return first


def _decided(reason: FinishReason | None) -> FinishReason:
    if reason is None:
        raise EngineUnavailable("the engine ended the request without a finish reason")
    return reason
