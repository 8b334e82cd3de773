"""What to send: bodies or prompts from a file, or random words of given lengths, which no prefix cache knows.

Lengths come from two options or from a trace; where a trace says that prompts share a prefix, their words do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core_engine.errors import ConfigurationError
from core_engine.llm.tokenizer import Tokenizer
from core_engine.simulation.trace import PREFIX_TOKENS, TraceRow

CANDIDATES = 4096  # words tried: each must be one token in a text as it is by itself
LEAST_WORDS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    output_tokens: int


def read_bodies(path: Path) -> list[bytes]:
    """Each line of a JSON-lines file as it will be sent.

    Raises:
        ConfigurationError: unreadable, empty, or a line that is no JSON object, by its number.
    """
    return [json.dumps(row, ensure_ascii=False).encode() for _, row in _objects(path)]


def read_prompts(path: Path, output_tokens: int | None) -> list[Prompt]:
    """Lines of `{"prompt": text, "output_tokens": n}`; the option, where given, stands for every line's own.

    Raises:
        ConfigurationError: as `read_bodies`, or a line without a prompt or a length.
    """
    prompts = []
    for where, row in _objects(path):
        text, own = row.get("prompt"), output_tokens or row.get("output_tokens")
        if not isinstance(text, str) or not text:
            raise ConfigurationError(f"{where}: prompt = {text!r}, expected text")
        if not isinstance(own, int) or own < 1:
            raise ConfigurationError(f"{where}: output_tokens = {own!r}, expected at least 1, here or by --output-len")
        prompts.append(Prompt(text, own))
    return prompts


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if not lines:
        raise ConfigurationError(f"{path} is empty; expected a JSON object per line")
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigurationError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ConfigurationError(f"{where}: {line[:80]!r}, expected a JSON object")
        yield where, row


class RandomPrompts:
    """Texts of random words, each one token to `tokenizer`; the server adds those of its chat template."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        """Raises `ConfigurationError` for a vocabulary with too few such words."""
        self._words = _words(tokenizer)
        self._seed = seed

    def of_length(self, prompt_tokens: int, output_tokens: int, count: int) -> list[Prompt]:
        return [self._prompt(number, prompt_tokens, output_tokens) for number in range(count)]

    def of_trace(self, rows: Sequence[TraceRow]) -> list[Prompt]:
        """One for each row, with its lengths; rows with a prefix id in common begin with the same words."""
        return [
            self._prompt(number, row.prompt_tokens, row.output_tokens, row.prefix_ids)
            for number, row in enumerate(rows)
        ]

    def _prompt(self, number: int, prompt_tokens: int, output_tokens: int, prefix_ids: Sequence[int] = ()) -> Prompt:
        words: list[str] = []
        for prefix in prefix_ids:
            words += self._drawn(f"{self._seed} prefix {prefix}", PREFIX_TOKENS)
        words = words[:prompt_tokens]
        words += self._drawn(f"{self._seed} prompt {number}", prompt_tokens - len(words))
        return Prompt("".join(words).lstrip(), output_tokens)

    def _drawn(self, of: str, count: int) -> list[str]:
        return random.Random(of).choices(self._words, k=count)


def _words(tokenizer: Tokenizer) -> list[str]:
    spelt = (token.decode("ascii", "ignore") for token in tokenizer.token_bytes if token[:1] == b" ")
    candidates = sorted(word for word in set(spelt) if len(word) > 3 and word[1:].isalpha() and word[1:].islower())
    random.Random(0).shuffle(candidates)
    words = [word for word in candidates[:CANDIDATES] if len(tokenizer.encode(f" a{word} a")) == 3]
    if len(words) < LEAST_WORDS:
        raise ConfigurationError("the tokenizer has too few words of one token; give the prompts by --prompts")
    return words
