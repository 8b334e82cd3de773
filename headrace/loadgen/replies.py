"""Reading one reply as its bytes come: a prediction, a completion, or a stream of tokens with the instant of each.

A reader takes the time of what arrives before it looks at it, and judges at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.loadgen.connections import Failed

T = TypeVar("T")
Clock = Callable[[], float]
DONE = b"[DONE]"
NO_LARGER = 1 << 20  # bytes of a stream's line


@dataclass(frozen=True, slots=True)
class Answer:
    """What a good reply said. Instants are of the run's clock; `first_s` None where no token was seen to arrive.

    `gaps_s` lie between the chunks with text. `tokens_told`: the counts are the server's, else chunks were counted.
    `cached_tokens` of the prompt were in the server's prefix cache; None: it did not say.
    """

    last_s: float
    first_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    tokens_told: bool = True
    rung: str | None = None
    reason: str | None = None
    degraded: bool = False
    batch_size: int = 0


class Reader(Protocol):
    """Of one reply."""

    def feed(self, data: bytes) -> None: ...

    def answer(self) -> Answer:
        """Once the body has ended. Raises `Failed` for one that is not what was asked for."""
        ...

    def text(self) -> str:
        """The beginning of what came, for the message about a failure."""
        ...


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Tokens(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None

    @property
    def cached_tokens(self) -> int | None:
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Used(msgspec.Struct):
    """Of a prediction; without tokens where no language model scored."""

    batch_size: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None


class _Prediction(msgspec.Struct):
    rung: str
    degraded: bool = False
    reason: str | None = None
    usage: _Used = msgspec.field(default_factory=_Used)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None

    @property
    def has_text(self) -> bool:
        return bool(self.text or (self.delta and (self.delta.content or self.delta.reasoning_content)))


class _Chunk(msgspec.Struct):
    """Of a stream, or a whole completion. What is not named here is not looked at."""

    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Tokens | None = None
    error: Any = None


class _Whole:
    """A reader of JSON in one piece."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s = 0.0
        self._body = bytearray()

    def feed(self, data: bytes) -> None:
        self._last_s = self._clock()
        self._body += data

    def text(self) -> str:
        return self._body[:300].decode("utf-8", "replace")


class PredictionReader(_Whole):
    """Of `/v1/predict`."""

    def answer(self) -> Answer:
        said = _decoded(self._body, _Prediction)
        return Answer(
            self._last_s,
            prompt_tokens=said.usage.prompt_tokens,
            cached_tokens=said.usage.cached_tokens,
            rung=said.rung,
            reason=said.reason,
            degraded=said.degraded,
            batch_size=said.usage.batch_size,
        )


class CompletionReader(_Whole):
    """Of a chat or a completion that is not streamed."""

    def answer(self) -> Answer:
        said = _decoded(self._body, _Chunk)
        if not said.choices:
            raise Failed("bad_reply", f"no choices in {self.text()!r}")
        tokens = said.usage or _Tokens()
        return Answer(
            self._last_s,
            prompt_tokens=tokens.prompt_tokens,
            completion_tokens=tokens.completion_tokens,
            cached_tokens=tokens.cached_tokens,
            tokens_told=said.usage is not None,
        )


class StreamReader:
    """Of server-sent events.

    Source: WHATWG HTML, "Server-sent events", 9.2.6 (lines end with CR LF or LF; `data:` and an optional space).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rest = b""
        self._arrived_s: list[float] = []
        self._usage: _Tokens | None = None
        self._fault: Failed | None = None
        self._ended = False
        self._seen = b""

    def feed(self, data: bytes) -> None:
        now_s = self._clock()
        self._seen = self._seen or data[:300]
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)
        if len(self._rest) > NO_LARGER:
            self._fault, self._rest = Failed("bad_reply", f"a line of more than {NO_LARGER} bytes"), b""

    def answer(self) -> Answer:
        if self._fault is not None:
            raise self._fault
        if not self._ended:
            raise Failed("bad_reply", "the stream ended without [DONE]")
        if not self._arrived_s:
            raise Failed("no_text", "the stream had no text")
        arrived_s = self._arrived_s
        tokens = self._usage or _Tokens(completion_tokens=len(arrived_s))
        return Answer(
            last_s=arrived_s[-1],
            first_s=arrived_s[0],
            gaps_s=tuple(later - earlier for earlier, later in pairwise(arrived_s)),
            prompt_tokens=tokens.prompt_tokens,
            completion_tokens=tokens.completion_tokens,
            cached_tokens=tokens.cached_tokens,
            tokens_told=self._usage is not None,
        )

    def text(self) -> str:
        return self._seen.decode("utf-8", "replace")

    def _event(self, data: bytes, now_s: float) -> None:
        if data == DONE:
            self._ended = True
            return
        try:
            chunk = _decoded(data, _Chunk)
        except Failed as fault:
            self._fault = self._fault or fault
            return
        if chunk.error is not None:
            self._fault = self._fault or Failed("stream_error", str(chunk.error)[:300])
        self._usage = chunk.usage or self._usage
        if any(choice.has_text for choice in chunk.choices):
            self._arrived_s.append(now_s)


def _decoded(data: bytes | bytearray, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise Failed("bad_reply", f"{error}: {bytes(data[:200])!r}") from None
