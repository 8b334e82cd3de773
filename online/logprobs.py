"""Log-probabilities in the two shapes that OpenAI has for them: a chat's, and a completion's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core_engine.contracts import TokenLogprob
from core_engine.llm.text import Detokenizer
from core_engine.llm.tokenizer import Tokenizer

FLOOR = -9999.0  # JSON has no infinity; OpenAI's word for a token that is out of the question


class TokenNames:
    """What a token is called. A control token, which no text shows, has its name and no bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def raw(self, token_id: int) -> bytes | None:
        """Its exact bytes; None of what is no text."""
        is_text = token_id < self._tokenizer.vocab_size and token_id not in self._tokenizer.control
        return self._tokenizer.token_bytes[token_id] if is_text else None

    def text(self, token_id: int) -> str:
        """A piece of a character is U+FFFD."""
        own = self.raw(token_id)
        return self._control(token_id) if own is None else own.decode("utf-8", errors="replace")

    def whole(self, token_id: int) -> str | None:
        """Its text, if that is whole characters and nothing else."""
        own = self.raw(token_id)
        try:
            return None if own is None else own.decode()
        except UnicodeDecodeError:
            return None

    def distinct(self, token_id: int) -> str:
        """As `text`, but a piece of a character is spelt `bytes:\\xf0\\x9f`: no two tokens have one name."""
        own, whole = self.raw(token_id), self.whole(token_id)
        if own is None:
            return self._control(token_id)
        return whole if whole is not None else "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)

    def _control(self, token_id: int) -> str:
        tokens = self._tokenizer.tokens  # a model's head may be wider than its vocabulary
        return tokens[token_id] if token_id < len(tokens) else f"<token {token_id}>"


def chat_logprobs(names: TokenNames, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """One entry per token, those of a piece of text that is held back or cut off by a stop string among them."""
    content = [
        _entry(names, each.token_id, each.logprob) | {"top_logprobs": [_entry(names, *top) for top in each.top]}
        for each in logprobs
    ]
    return {"content": content, "refusal": None}


def _entry(names: TokenNames, token_id: int, logprob: float) -> dict[str, Any]:
    own = names.raw(token_id)
    return {
        "token": names.text(token_id),
        "logprob": max(logprob, FLOOR),
        "bytes": None if own is None else list(own),
    }


class CompletionLogprobs:
    """Those of one choice, of which each chunk is said in turn: an offset counts from the beginning of the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._names = TokenNames(tokenizer)
        self._detokenizer = Detokenizer(tokenizer.token_bytes, strips_space=tokenizer.strips_space)
        self._offset = 0

    def say(self, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        """The token itself is always among the most likely ones, where these were asked for."""
        logprobs, names = list(logprobs), self._names
        top = [self._top(each) for each in logprobs]
        return {
            "tokens": [names.distinct(each.token_id) for each in logprobs],
            "token_logprobs": [max(each.logprob, FLOOR) for each in logprobs],
            "top_logprobs": top if any(each.top for each in logprobs) else None,
            "text_offset": [self._advance(each.token_id) for each in logprobs],
        }

    def _top(self, each: TokenLogprob) -> dict[str, float]:
        wanted = (*each.top, (each.token_id, each.logprob))
        return {self._names.distinct(token_id): max(logprob, FLOOR) for token_id, logprob in wanted}

    def _advance(self, token_id: int) -> int:
        """Where the token begins, in characters; pieces of one character begin together."""
        start, whole = self._offset, self._names.whole(token_id)
        if self._names.raw(token_id) is not None:
            self._offset += len(self._detokenizer.push((token_id,)))
        # pieces before a whole one that never became a character come out with it, as U+FFFD
        return start if whole is None else max(0, self._offset - len(whole))
