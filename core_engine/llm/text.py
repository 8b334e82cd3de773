"""From a stream of tokens to a stream of text: detokenising, stop strings, and where a generation ends.

Runs in the caller's process, so that text never holds up a step. Concatenated deltas equal the full decode, always.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace

import msgspec

from core_engine.contracts import FinishReason, GenerateRequest, TokenDelta, TokenLogprob, Usage
from core_engine.llm.client import EngineClient
from core_engine.llm.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True):
    """New text (it may be empty) of `num_tokens` new tokens. The last one has a `finish_reason` and `usage`.

    `logprobs` belong to those tokens, one entry each, even if their text is held back and comes with a later delta, or
    is cut off by a stop string.
    """

    text: str
    num_tokens: int
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    detail: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class Detokenizer:
    """Bytes of tokens into whole characters: a character that is not complete yet is held back.

    With `strips_space` a space that the whole text begins with is left out, as `Tokenizer.decode` does.
    """

    def __init__(self, token_bytes: tuple[bytes, ...], *, strips_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._strips_space = strips_space  # until there is text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        text = self._decoder.decode(b"".join(map(self._token_bytes.__getitem__, token_ids)))
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """What is still held back; bytes that never became a character are U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """Cuts a text at the earliest stop string. Only a suffix that may still become one is held back."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """What may be shown now; after a match nothing more comes."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.matched, self._held = True, ""
            return text[: min(found)]
        keep = self._partial(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _partial(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of a stop string."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            suffix = text[len(text) - length :]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0


async def generate_text(
    client: EngineClient, tokenizer: Tokenizer, request: GenerateRequest
) -> AsyncGenerator[TextDelta, None]:
    """Text deltas of one generation; raises what `EngineClient.generate` raises. Closing it aborts the request.

    A stop string ends the stream at once and aborts the rest; it is not part of the text, nor is a stop token's text.
    It is looked for in the text of what comes after the first `min_tokens` tokens. Usage comes with the last delta, and
    with the first token's as far as the engine tells it then.
    """
    detokenizer = Detokenizer(tokenizer.token_bytes, strips_space=tokenizer.strips_space)
    matcher = StopMatcher(request.sampling.stop)
    num_tokens, told = 0, Usage(prompt_tokens=len(request.prompt_token_ids))
    async with aclosing(client.generate(request)) as deltas:
        async for delta in deltas:
            text, num_new = "", len(delta.token_ids)
            for index, token in enumerate(_shown(delta, request)):  # one by one: a stop string ends at one of them
                new = detokenizer.push((token,))
                text += new if num_tokens + index < request.sampling.min_tokens else matcher.push(new)
                if matcher.matched:
                    num_new = index + 1
                    break
            num_tokens += num_new
            told = delta.usage or told
            if delta.finish_reason is not None and not matcher.matched:
                text += matcher.push(detokenizer.flush())
                text += matcher.flush()
            yield TextDelta(
                text,
                num_new,
                FinishReason.STOP if matcher.matched else delta.finish_reason,
                replace(told, completion_tokens=num_tokens) if matcher.matched else delta.usage,
                delta.detail,
                None if delta.logprobs is None else delta.logprobs[:num_new],
                delta.prompt_logprobs,
            )
            if matcher.matched:
                return


def _shown(delta: TokenDelta, request: GenerateRequest) -> tuple[int, ...]:
    if delta.finish_reason is FinishReason.STOP and delta.token_ids[-1] in request.sampling.stop_token_ids:
        return delta.token_ids[:-1]
    return delta.token_ids
