"""Reads the shape of a decoder from the config.json of a Hugging Face folder. No torch: doors read it too.

What the decoder does not compute is refused by name; nothing that would change a logit is passed over. Absent keys
have the meaning that transformers gives them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core_engine.errors import ModelFileError
from core_engine.llm.hf_rope import read_rope
from core_engine.llm.model_config import ModelConfig

CONFIG_FILE = "config.json"
KNOWN_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
MISTRAL_WINDOW = 4096  # what transformers takes for a mistral whose configuration says nothing
REFUSED: dict[str, tuple[object, ...]] = {  # keys and the values with which they change nothing
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "hidden_act": (None, "silu"),
    "quantization_config": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0, 1),
    "no_rope_layers": (None, []),
    "use_mrope": (None, False),
    "add_cross_attention": (None, False),
}


def read_hf_config(folder: Path) -> ModelConfig:
    """Raises `ModelFileError` naming the key that is missing, wrong or not supported."""
    path = folder / CONFIG_FILE
    config = read_json(path)
    kind = config.get("model_type")
    if kind not in KNOWN_MODEL_TYPES:
        raise ModelFileError(
            f"model file {path}: architecture {kind!r} is unknown; known are {', '.join(KNOWN_MODEL_TYPES)}"
        )
    _refuse(config, path)
    shape = _shape(config, kind, path)
    if faults := shape.faults():
        raise ModelFileError(f"model file {path}: {'; '.join(faults)}")
    return shape


def eos_token_ids(folder: Path) -> frozenset[int]:
    """Every token that ends a generation: of generation_config.json, else of config.json; empty if neither says.

    Raises:
        ModelFileError: if the value is neither a token id nor a list of them.
    """
    for name in ("generation_config.json", CONFIG_FILE):
        path = folder / name
        found = read_json(path).get("eos_token_id") if path.is_file() else None
        if found is not None:
            ids = found if isinstance(found, list) else [found]
            if not all(isinstance(i, int) and i >= 0 for i in ids):
                raise ModelFileError(f"model file {path}: eos_token_id = {found!r}, expected token ids")
            return frozenset(ids)
    return frozenset()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ModelFileError` if it is absent or holds no object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"model file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not JSON, or not UTF-8
        raise ModelFileError(f"model file {path} is not JSON, or is cut short: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"model file {path} holds a {type(value).__name__}, expected an object")
    return value


def _shape(config: dict[str, Any], kind: str, path: Path) -> ModelConfig:
    def whole(key: str, default: int | None = None) -> int:
        return _whole(config, key, path, default)

    heads, hidden = whole("num_attention_heads"), whole("hidden_size")
    per_head = hidden // heads if heads > 0 else 0
    eps = config.get("rms_norm_eps")
    if not isinstance(eps, int | float):
        raise ModelFileError(f"model file {path}: rms_norm_eps = {eps!r}, expected a number")
    theta, rope = read_rope(config, whole("max_position_embeddings"), path)
    stretched = rope.factor if rope.type == "dynamic" else 1.0
    return ModelConfig(
        num_layers=whole("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=whole("num_key_value_heads", heads if kind == "llama" else None),
        head_dim=whole("head_dim", None if kind == "qwen3" else per_head),
        vocab_size=whole("vocab_size"),
        max_positions=int(whole("max_position_embeddings") * stretched),
        rope_theta=theta,
        rms_norm_eps=float(eps),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        sliding_window=_window(config, kind, path),
        rope=rope,
    )


def _whole(config: dict[str, Any], key: str, path: Path, default: int | None = None) -> int:
    """Raises `ModelFileError` if the value is no whole number, or is missing and has no default."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelFileError(f"model file {path}: {key} = {config.get(key)!r}, expected a whole number")
    return value


def _window(config: dict[str, Any], kind: str, path: Path) -> int | None:
    """One window for all layers, or none; layers that differ are refused."""
    window: object = config.get("sliding_window")
    if kind == "mistral":
        window = config.get("sliding_window", MISTRAL_WINDOW)
    elif kind != "llama":
        window = window if config.get("use_sliding_window") else None
    layers = config.get("layer_types")
    if kind.startswith("qwen") and not layers and window is not None:
        slides, total = _whole(config, "max_window_layers", path, 28), _whole(config, "num_hidden_layers", path)
        layers = ["full_attention" if i < slides else "sliding_attention" for i in range(total)]
    kinds = set(layers or ["sliding_attention"])
    if len(kinds) > 1 or not kinds <= {"full_attention", "sliding_attention"}:
        raise ModelFileError(f"model file {path}: layer_types of several kinds are not supported: {sorted(kinds)}")
    if kinds == {"full_attention"}:
        return None
    if window is not None and (not isinstance(window, int) or kind == "llama"):
        raise ModelFileError(f"model file {path}: sliding_window = {window!r} is not supported for {kind}")
    return window


def _refuse(config: dict[str, Any], path: Path) -> None:
    for key, harmless in REFUSED.items():
        if config.get(key) not in harmless:
            raise ModelFileError(f"model file {path}: {key} = {config[key]!r} is not supported")
