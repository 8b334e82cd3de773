"""Text to token ids and back, from the tokenizer inside a GGUF file. Runs in the caller's process, without torch.

Byte-level BPE is built on the `tokenizers` library from the file's own vocabulary and merges, so that nothing is
downloaded. `token_bytes` gives the exact bytes of each token: `detokenizer` needs no second opinion.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from core_engine.errors import InvalidRequest, ModelFileError
from core_engine.llm.gguf_reader import field, open_gguf

CONTROL_TOKEN = 3  # GGUF token_type
PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
}


class Tokenizer:
    def __init__(
        self, tokens: list[str], merges: list[str], control: frozenset[int], pre: str, eos: int, template: str | None
    ) -> None:
        self.tokens = tokens
        self.control = control
        self.eos_token_ids = frozenset({eos})
        self.token_bytes = tuple(b"" if i in control else _bytes_of(token) for i, token in enumerate(tokens))
        self._encode = _build(tokens, merges, control, pre)
        self._encode_plain = _build(tokens, merges, control, pre)
        self._encode_plain.encode_special_tokens = True  # control tokens in here are ordinary text
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(template) if template else None

    @classmethod
    def from_gguf(cls, path: Path) -> Tokenizer:
        """Raises `ModelFileError` for a file that cannot be read or a tokenizer of another kind."""
        reader = open_gguf(path)
        kind, pre = field(reader, "tokenizer.ggml.model", path), field(reader, "tokenizer.ggml.pre", path)
        if kind != "gpt2" or pre not in PRE_TOKENIZERS:
            known = ", ".join(f"gpt2/{name}" for name in PRE_TOKENIZERS)
            raise ModelFileError(f"model file {path}: tokenizer {kind}/{pre} is unknown; known are {known}")
        types = field(reader, "tokenizer.ggml.token_type", path)
        return cls(
            tokens=field(reader, "tokenizer.ggml.tokens", path),
            merges=field(reader, "tokenizer.ggml.merges", path),
            control=frozenset(i for i, kind in enumerate(types) if kind == CONTROL_TOKEN),
            pre=pre,
            eos=int(field(reader, "tokenizer.ggml.eos_token_id", path)),
            template=field(reader, "tokenizer.chat_template", path, default=None),
        )

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, parse_control: bool = False) -> list[int]:
        """Token ids of `text`; with `parse_control` the names of control tokens in it become those tokens."""
        encoder = self._encode if parse_control else self._encode_plain
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Items[int]) -> str:
        """The text of `token_ids` without control tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes[i] for i in token_ids).decode("utf-8", errors="replace")

    def apply_chat_template(self, messages: Items[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn.

        A control token's name inside a message stays text: nobody writes a turn of another role through it.

        Raises:
            InvalidRequest: if the model has no template or the template refuses the roles.
        """
        names = [self.tokens[i] for i in self.control]
        if not any(name in message["content"] for message in messages for name in names):
            return self.encode(self._render(messages), parse_control=True)
        marks = [f"\x00{index}\x00" for index in range(len(messages))]
        rendered = self._render([{**m, "content": mark} for m, mark in zip(messages, marks, strict=True)])
        ids: list[int] = []
        for message, mark in zip(messages, marks, strict=True):
            before, _, rendered = rendered.partition(mark)
            ids += self.encode(before, parse_control=True) + self.encode(message["content"])
        return ids + self.encode(rendered, parse_control=True)

    def _render(self, messages: Items[dict[str, str]]) -> str:
        if self._template is None:
            raise InvalidRequest("this model has no chat template", field="messages")
        (eos,) = self.eos_token_ids
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, bos_token="", eos_token=self.tokens[eos]
            )
        except TemplateError as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", field="messages") from error


def _build(tokens: list[str], merges: list[str], control: frozenset[int], pre: str) -> Any:
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    library: Any = tokenizers  # its classes carry no types
    tokenizer = library.Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in sorted(control)])
    return tokenizer


def _byte_letters() -> dict[str, int]:
    """Which letter stands for which byte in a byte-level vocabulary.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, and the tokenizer it released.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_LETTERS = _byte_letters()


def _bytes_of(token: str) -> bytes:
    if all(letter in _LETTERS for letter in token):
        return bytes(_LETTERS[letter] for letter in token)
    return token.encode()
