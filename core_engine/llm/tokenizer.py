"""Text to token ids and back, from the tokenizer that lies with the model. Runs in the caller's process, without torch.

`token_bytes` gives the exact bytes of each token: the detokeniser needs no second opinion. Bytes that are not UTF-8
become U+FFFD, each by itself. (The `tokenizers` library gives up a whole run of byte tokens, whole characters
included, if one of them is broken; a stream would have to hold back all of the run for that.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core_engine.errors import InvalidRequest, ModelFileError
from core_engine.llm.gguf_vocabulary import read_gguf_vocabulary
from core_engine.llm.hf_vocabulary import read_hf_vocabulary
from core_engine.llm.vocabulary import Vocabulary


class Tokenizer:
    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `ModelFileError` for a chat template that is no template."""
        self.tokens = vocabulary.tokens
        self.control = vocabulary.control
        self.eos_token_ids = vocabulary.eos_token_ids
        self.token_bytes = vocabulary.token_bytes
        self.strips_space = vocabulary.strips_space  # of a text, the space that it begins with
        self._names = {"bos_token": vocabulary.bos_token, "eos_token": vocabulary.eos_token}
        self._encode = vocabulary.build()
        self._encode_plain = vocabulary.build()
        self._encode_plain.encode_special_tokens = True  # control tokens in here are ordinary text
        try:
            text = vocabulary.chat_template
            self._template = _environment().from_string(text) if text else None
        except TemplateSyntaxError as error:
            raise ModelFileError(f"the model's chat template is no template: {error}") from None

    @classmethod
    def from_path(cls, path: Path) -> Tokenizer:
        """Of a GGUF file or a Hugging Face folder; raises `ModelFileError` for what cannot be read or is not known."""
        return cls(read_hf_vocabulary(path)) if path.is_dir() else cls.from_gguf(path)

    @classmethod
    def from_gguf(cls, path: Path) -> Tokenizer:
        """Raises `ModelFileError` for a file that cannot be read or a tokenizer of another kind."""
        return cls(read_gguf_vocabulary(path))

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
        text = b"".join(self.token_bytes[i] for i in token_ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_space else text

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
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._names
            )
        except TemplateError as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", field="messages") from error


def _environment() -> ImmutableSandboxedEnvironment:
    """What chat templates are written for. No clock: a template that asks for the date takes its own fixed one.

    Source: transformers, "Templates for chat models": the names that a template may use.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
