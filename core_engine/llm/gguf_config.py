"""Reads the shape of a decoder from a GGUF header. No torch; the weights are read by `gguf_weights`.

Source: the GGUF specification, and the keys that llama.cpp's conversion writes for llama, qwen2 and qwen3; Mistral
and SmolLM2 are `llama` there.
"""

from __future__ import annotations

from typing import Any

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_reader import GgufFile
from core_engine.llm.model_config import ModelConfig, RopeScaling, yarn_attention_factor

REFUSED: dict[str, tuple[object, ...]] = {  # keys and the values with which they change nothing
    "expert_count": (0,),
    "attention.sliding_window_pattern": (),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
}


class Header:
    """The fields of one file's architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture: str = file.field("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.field(f"{self.architecture}.{key}", default)

    def whole(self, key: str, default: int | None = None) -> int:
        """Raises `ModelFileError` if the value is no whole number: a list means layers that differ."""
        value = self.get(key, default) if default is not None else self.require(key)
        if not isinstance(value, int):
            raise self.fault(f"{key} = {value!r}, expected a whole number, the same for all layers")
        return value

    def require(self, key: str) -> Any:
        return self.file.field(f"{self.architecture}.{key}")

    def fault(self, what: str) -> ModelFileError:
        return ModelFileError(f"model file {self.file.path}: {self.architecture}.{what}")


def read_config(file: GgufFile) -> ModelConfig:
    """The decoder's shape.

    Raises:
        ModelFileError: for a key that is missing, wrong or not supported.
    """
    header = Header(file)
    for key, harmless in REFUSED.items():
        if (value := header.get(key)) is not None and value not in harmless:
            raise header.fault(f"{key} = {value!r} is not supported")
    shape = _shape(header)
    if faults := shape.faults():
        raise ModelFileError(f"model file {file.path}: {'; '.join(faults)}")
    return shape


def _shape(header: Header) -> ModelConfig:
    tensors = header.file.tensors
    if "token_embd.weight" not in tensors or not tensors["token_embd.weight"].shape:
        raise ModelFileError(f"model file {header.file.path}: tensor token_embd.weight is missing")
    num_heads, hidden = header.whole("attention.head_count"), header.whole("embedding_length")
    return ModelConfig(
        num_layers=header.whole("block_count"),
        hidden_size=hidden,
        intermediate_size=header.whole("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=header.whole("attention.head_count_kv", num_heads),
        head_dim=_head_dim(header, num_heads, hidden),
        vocab_size=tensors["token_embd.weight"].shape[0],
        max_positions=header.whole("context_length"),
        rope_theta=float(header.get("rope.freq_base", 10_000.0)),
        rms_norm_eps=float(header.require("attention.layer_norm_rms_epsilon")),
        tie_embeddings="output.weight" not in tensors,
        qkv_bias=header.architecture == "qwen2",
        qk_norm=header.architecture == "qwen3",
        sliding_window=header.whole("attention.sliding_window", 0) or None,
        rope=_rope(header),
        has_rope_factors="rope_freqs.weight" in tensors,
    )


def _head_dim(header: Header, num_heads: int, hidden: int) -> int:
    """Heads are as wide as their rotation and their values; anything else is refused."""
    head_dim = header.whole("attention.key_length", hidden // max(num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (found := header.whole(key, head_dim)) != head_dim:
            raise header.fault(f"{key} = {found} is not supported, the head's width is {head_dim}")
    return head_dim


def _rope(header: Header) -> RopeScaling:
    kind = header.get("rope.scaling.type", "none")
    factor = float(header.get("rope.scaling.factor", header.get("rope.scale_linear", 1.0)) or 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        linear = float(header.get("rope.scale_linear", 1.0) or 1.0)  # written before there were types
        return RopeScaling() if linear == 1.0 else RopeScaling("linear", linear)
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind != "yarn":
        raise header.fault(f"rope.scaling.type = {kind!r} is unknown; known are none, linear, yarn")
    attention = float(header.get("rope.scaling.attn_factor", header.get("rope.scaling.yarn_attn_factor", 1.0)))
    return RopeScaling(
        "yarn",
        factor,
        header.whole("rope.scaling.original_context_length", header.whole("context_length")),
        beta_fast=float(header.get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(header.get("rope.scaling.yarn_beta_slow", 1.0)),
        attention_factor=attention * yarn_attention_factor(factor),
    )
