"""Reads the tokenizer of a Hugging Face folder: tokenizer.json, and the settings and templates beside it.

The `tokenizers` library runs tokenizer.json as it is; only its decoder is looked at, because the bytes of every token
must be known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from core_engine.errors import ModelFileError
from core_engine.llm.hf_config import CONFIG_FILE, eos_token_ids, read_json
from core_engine.llm.vocabulary import SPACE, Vocabulary, byte_fallback_bytes, byte_level_bytes

TOKENIZER_FILE, SETTINGS_FILE, TEMPLATE_FILE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
FALLBACK_DECODER: tuple[dict[str, Any], ...] = (
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
STRIP_ONE_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def read_hf_vocabulary(folder: Path) -> Vocabulary:
    """Raises `ModelFileError` for a file that is missing or damaged, or a tokenizer of a kind that is not known."""
    path = folder / TOKENIZER_FILE
    parsed = read_json(path)
    to_bytes, strips = _decoding(parsed.get("decoder"), path)
    text = json.dumps(parsed)
    encoder = _build(text, path)
    added: dict[int, Any] = encoder.get_added_tokens_decoder()
    names: dict[int, str] = {i: token for token, i in encoder.get_vocab(with_added_tokens=True).items()}
    size = max(_num_logits(folder), *(i + 1 for i in names))
    tokens = [names.get(i, f"[PAD{i}]") for i in range(size)]  # llama.cpp's name for what no tokenizer knows
    control = frozenset(i for i in range(size) if i not in names or (i in added and added[i].special))
    settings = read_json(folder / SETTINGS_FILE) if (folder / SETTINGS_FILE).is_file() else {}
    eos_token = _content(settings.get("eos_token"))
    return Vocabulary(
        build=lambda: _build(text, path),
        tokens=tokens,
        token_bytes=tuple(b"" if i in control else to_bytes(token) for i, token in enumerate(tokens)),
        control=control,
        eos_token_ids=_ends(folder, tokens, eos_token, path),
        bos_token=_content(settings.get("bos_token")),
        eos_token=eos_token,
        chat_template=_template(folder, settings),
        strips_space=strips,
    )


def _build(text: str, path: Path) -> Any:
    library: Any = tokenizers  # its classes carry no types
    try:
        encoder = library.Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ModelFileError(f"model file {path} is no tokenizer: {error}") from None
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _decoding(decoder: Any, path: Path) -> tuple[Callable[[str], bytes], bool]:
    """How a token becomes bytes, and whether a text loses the space that it begins with."""
    kind = decoder.get("type") if isinstance(decoder, dict) else None
    if kind == "ByteLevel":
        return byte_level_bytes, False
    parts = tuple(decoder.get("decoders", ())) if isinstance(decoder, dict) and kind == "Sequence" else ()
    if parts in (FALLBACK_DECODER, (*FALLBACK_DECODER, STRIP_ONE_SPACE)):
        return byte_fallback_bytes, len(parts) > len(FALLBACK_DECODER)
    if len(parts) == 1:
        return _decoding(parts[0], path)
    found = [part.get("type") for part in parts if isinstance(part, dict)] or kind
    raise ModelFileError(f"model file {path}: decoder {found} is unknown; known are ByteLevel and ByteFallback")


def _num_logits(folder: Path) -> int:
    """How many ids the model has; 0 if nobody says."""
    size = read_json(folder / CONFIG_FILE).get("vocab_size") if (folder / CONFIG_FILE).is_file() else None
    return size if isinstance(size, int) else 0


def _ends(folder: Path, tokens: list[str], eos_token: str, path: Path) -> frozenset[int]:
    ends = eos_token_ids(folder)
    if not ends and eos_token in tokens:
        ends = frozenset({tokens.index(eos_token)})
    if not ends or max(ends) >= len(tokens):
        raise ModelFileError(
            f"model file {path}: eos_token_id {sorted(ends)} is missing or beyond {len(tokens)} tokens"
        )
    return ends


def _content(token: Any) -> str:
    """A token in tokenizer_config.json: its text, or an object that holds it."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else ""


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The file beside the tokenizer goes before its settings; of several templates, the default one."""
    if (folder / TEMPLATE_FILE).is_file():
        return (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found}.get("default")
    return found if isinstance(found, str) else None
