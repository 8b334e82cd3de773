"""Small tokenizers of every kind, as Hugging Face folders and inside GGUF files, made here: nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

CONTROL = ["<unk>", "<s>", "</s>"]
THINK = "<think>"  # added, but no control token: its text is shown
CORPUS = [
    "The flight from New York to Chicago leaves at nine in the morning.",
    "the weather over the lakes is clear and the other others are there",
    "naïve café — “quotes” 日本語 🙂 12345 I'm we've they'll\n\n\tdef delay(minutes): return minutes",
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
SETTINGS: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": {
        "__type": "AddedToken",
        "content": "</s>",
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
    },
    "unk_token": "<unk>",
    "chat_template": TEMPLATE,
    "clean_up_tokenization_spaces": False,
}


def byte_level() -> Any:
    library: Any = tokenizers
    tokenizer = library.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(THINK, normalized=False)])
    return tokenizer


def fallback_pieces() -> list[str]:
    """Control tokens, the 256 bytes, letters, and words that letters can be joined to, better ones first."""
    words = ["▁t", "▁th", "▁the", "he", "re", "▁▁", "▁f", "▁fl", "in", "ing", "er", "ers", "日本", "the", "th"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyzTNYC.,:()", "日", "本", "é"]
    return [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]


def byte_fallback(*, strips: bool = True) -> Any:
    pieces = fallback_pieces()
    vocab = {piece: i for i, piece in enumerate(pieces)}
    library: Any = tokenizers
    merges = [
        ("▁", "t"),
        ("▁t", "h"),
        ("▁th", "e"),
        ("h", "e"),
        ("r", "e"),
        ("▁", "▁"),
        ("▁", "f"),
        ("i", "n"),
        ("日", "本"),
    ]
    tokenizer = library.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if strips else spaces
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strips else parts)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    return tokenizer


def write_folder(folder: Path, tokenizer: Any, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "vocab_size": size, "eos_token_id": 2} | config)
    )
    return folder


def write_sentencepiece_gguf(path: Path, *, adds_space: bool = True) -> Path:
    """A GGUF that holds only the byte-fallback tokenizer, as llama.cpp writes SentencePiece models."""
    pieces = fallback_pieces()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0 if i < 259 else -float(i - 259) for i in range(len(pieces))])
    writer.add_token_types([2, 3, 3, *([6] * 256), *([1] * (len(pieces) - 259))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(adds_space)
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
