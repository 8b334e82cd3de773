"""Reads the tokenizer inside a GGUF file: byte-level BPE (`gpt2`), or SentencePiece BPE with byte fallback (`llama`).

Both are built on the `tokenizers` library from the file's own vocabulary, so that nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_reader import open_gguf
from core_engine.llm.vocabulary import SPACE, Vocabulary, byte_fallback_bytes, byte_level_bytes

UNKNOWN_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN = 2, 3, 4  # GGUF token_type
# Words as GPT-4's tokenizer cuts them, runs of digits by {digits} at most.
# Source: the tokenizer files of Llama 3 and Qwen2.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _words(digits: str) -> Any:
    split = pre_tokenizers.Split(Regex(WORDS.format(digits=digits)), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama-bpe": lambda: _words("{1,3}"),
    "qwen2": lambda: _words(""),
}


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """Raises `ModelFileError` for a file that cannot be read or a tokenizer of another kind."""
    file = open_gguf(path)

    def get(key: str, default: Any = None) -> Any:
        return file.field(f"tokenizer.ggml.{key}", default)

    kind, pre = file.field("tokenizer.ggml.model"), get("pre", "default")
    tokens: list[str] = file.field("tokenizer.ggml.tokens")
    types: list[int] = get("token_type", [1] * len(tokens))
    control = frozenset(i for i, of_type in enumerate(types) if of_type == CONTROL_TOKEN)
    added = [tokens[i] for i, of_type in enumerate(types) if of_type == USER_DEFINED_TOKEN]
    if kind == "gpt2" and pre in PRE_TOKENIZERS:
        merges: list[str] = file.field("tokenizer.ggml.merges")
        build, to_bytes, strips = _byte_level(tokens, merges, pre, control, added), byte_level_bytes, False
    elif kind == "llama":
        scores: list[float] = file.field("tokenizer.ggml.scores")
        unknown = next((tokens[i] for i, of_type in enumerate(types) if of_type == UNKNOWN_TOKEN), None)
        strips = bool(get("add_space_prefix", True))
        build, to_bytes = _byte_fallback(tokens, scores, unknown, control, added, strips), byte_fallback_bytes
    else:
        known = ", ".join(["llama", *(f"gpt2/{name}" for name in PRE_TOKENIZERS)])
        raise ModelFileError(f"model file {path}: tokenizer {kind}/{pre} is unknown; known are {known}")
    bos, eos = get("bos_token_id"), int(file.field("tokenizer.ggml.eos_token_id"))
    return Vocabulary(
        build=build,
        tokens=tokens,
        token_bytes=tuple(b"" if i in control else to_bytes(token) for i, token in enumerate(tokens)),
        control=control,
        eos_token_ids=file.end_token_ids(),
        bos_token="" if bos is None else tokens[int(bos)],
        eos_token=tokens[eos],
        chat_template=file.field("tokenizer.chat_template", None),
        strips_space=strips,
    )


def byte_level_vocabulary(
    tokens: list[str], merges: list[str], control: frozenset[int], pre: str, eos: int, template: str | None
) -> Vocabulary:
    """A byte-level vocabulary from its parts; `merges` are pairs with a space between."""
    return Vocabulary(
        build=_byte_level(tokens, merges, pre, control, []),
        tokens=tokens,
        token_bytes=tuple(b"" if i in control else byte_level_bytes(token) for i, token in enumerate(tokens)),
        control=control,
        eos_token_ids=frozenset({eos}),
        eos_token=tokens[eos],
        chat_template=template,
    )


def _byte_level(
    tokens: list[str], merges: list[str], pre: str, control: frozenset[int], added: list[str]
) -> Callable[[], Any]:
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]

    def build() -> Any:
        library: Any = tokenizers  # its classes carry no types
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre == "llama-bpe")
        encoder = library.Tokenizer(model)
        if pre == "qwen2":
            encoder.normalizer = normalizers.NFC()
        encoder.pre_tokenizer = PRE_TOKENIZERS[pre]()
        encoder.decoder = decoders.ByteLevel()
        return _with_added(encoder, [tokens[i] for i in sorted(control)], added)

    return build


def _byte_fallback(
    tokens: list[str],
    scores: list[float],
    unknown: str | None,
    control: frozenset[int],
    added: list[str],
    adds_space: bool,
) -> Callable[[], Any]:
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = _merges(vocab, scores)

    def build() -> Any:
        library: Any = tokenizers
        encoder = library.Tokenizer(
            models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        spaces = normalizers.Replace(" ", SPACE)
        encoder.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if adds_space else spaces
        parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        encoder.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if adds_space else parts)
        return _with_added(encoder, [tokens[i] for i in sorted(control)], added)

    return build


def _merges(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together of two others, best tokens first: SentencePiece joins the pair whose result has
    the highest score, the leftmost of equals.

    Source: Kudo and Richardson, "SentencePiece", 2018, section 3.1; the order of equals is transformers' conversion's.
    """
    splits = [
        (scores[i], vocab[token[:cut]], vocab[token[cut:]], token[:cut], token[cut:])
        for token, i in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    splits.sort(key=lambda split: (-split[0], split[1], split[2]))
    return [(left, right) for _, _, _, left, right in splits]


def _with_added(encoder: Any, control: list[str], added: list[str]) -> Any:
    encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    encoder.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return encoder
