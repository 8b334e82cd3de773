"""The text that the gate reads: the user's own file, or prose that every Python carries.

The default is the prose of Python's language reference (`pydoc_data.topics`): paragraphs in full sentences, without
grammar, tables and examples, each once. It is English, technical, 38,000 tokens of SmolLM2 long, and on every machine.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from pydoc_data import topics

from core_engine.errors import ConfigurationError

MIN_PARAGRAPH = 80  # characters
LENGTHS = (2048, 1024, 512, 512, 256, 256, 256, 256)  # tokens of the sequences that a text is cut into, in turn
MIN_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Text:
    """`sha256` is that of the text in UTF-8: figures of two reports compare only where it is the same."""

    name: str
    content: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


def default_text() -> Text:
    paragraphs = (part for _, topic in sorted(topics.topics.items()) for part in topic.split("\n\n"))
    prose = dict.fromkeys(" ".join(each.split()) for each in paragraphs if _is_prose(each))
    return Text(f"prose of the language reference in Python {platform.python_version()}", "\n\n".join(prose))


def read_text(path: Path) -> Text:
    """Raises `ConfigurationError` for a file that cannot be read or is not UTF-8."""
    try:
        return Text(path.name, path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"text {path} cannot be read: {error}") from None


def cut(token_ids: Sequence[int], max_tokens: int, max_context: int) -> list[list[int]]:
    """Sequences of mixed lengths, one after the other, of `max_tokens` together and `max_context` each at most.

    Raises:
        ConfigurationError: if not one sequence comes out of it.
    """
    left = list(token_ids[:max_tokens])
    sequences = [each for each in _pieces(left, max_context) if len(each) >= MIN_LENGTH]
    if not sequences:
        raise ConfigurationError(
            f"the text has {len(left)} tokens to judge by, expected at least {MIN_LENGTH}; 20,000 are sensible"
        )
    return sequences


def _pieces(token_ids: list[int], max_context: int) -> Iterator[list[int]]:
    start = 0
    for length in cycle(LENGTHS):
        if start >= len(token_ids):
            return
        end = start + min(length, max_context)
        yield token_ids[start:end]
        start = end


def _is_prose(paragraph: str) -> bool:
    """Whether it is a paragraph of sentences: not indented, not short, ended as one, neither grammar nor a session."""
    ends = paragraph.rstrip().endswith((".", ":"))
    return (
        ends and len(paragraph) >= MIN_PARAGRAPH and paragraph[0] != " " and not {"::=", ">>>"} & set(paragraph.split())
    )
