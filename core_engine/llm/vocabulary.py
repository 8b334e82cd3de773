"""What a tokenizer's file says: its tokens, the exact bytes of each, which of them are control tokens, its template.

Two kinds are known. Byte-level: every letter of a token stands for a byte. Byte-fallback (SentencePiece): a token is
its text with "▁" for a space, and a byte that no token has is a token of its own, `<0x0A>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SPACE = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids that the model has and the tokenizer has not count as control tokens."""

    build: Callable[[], Any]  # makes an encoder of the `tokenizers` library
    tokens: list[str]
    token_bytes: tuple[bytes, ...]  # of control tokens, none
    control: frozenset[int]
    eos_token_ids: frozenset[int]
    bos_token: str = ""
    eos_token: str = ""
    chat_template: str | None = None
    strips_space: bool = False  # a text that begins with a space is decoded without that space


def byte_level_bytes(token: str) -> bytes:
    """A token with a letter that stands for no byte is an added one and means its own text."""
    if all(letter in _LETTERS for letter in token):
        return bytes(_LETTERS[letter] for letter in token)
    return token.encode()


def byte_fallback_bytes(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(SPACE, " ").encode()


def _byte_letters() -> dict[str, int]:
    """Which letter stands for which byte in a byte-level vocabulary.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, and the tokenizer it released.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_LETTERS = _byte_letters()
