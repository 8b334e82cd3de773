"""Reads a Llama-family GGUF: its shape and its weights, dequantised, in the layout that `decoder` wants.

llama.cpp stores the rows of Q and K so that rotary pairs are neighbours; they are put back into the half-rotation
layout here, once. Opening the file is `gguf_reader`'s; the tokenizer inside it is read by `tokenizer`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_reader import field
from core_engine.llm.model_config import ModelConfig


def read_config(reader: gguf.GGUFReader, path: Path) -> ModelConfig:
    """The decoder's shape. Raises `ModelFileError` naming a key that is absent."""

    def get(key: str) -> Any:
        return field(reader, f"llama.{key}", path)

    num_heads, hidden = int(get("attention.head_count")), int(get("embedding_length"))
    names = {tensor.name for tensor in reader.tensors}
    return ModelConfig(
        num_layers=int(get("block_count")),
        hidden_size=hidden,
        intermediate_size=int(get("feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(get("attention.head_count_kv")),
        head_dim=int(get("rope.dimension_count")),
        vocab_size=int(get("vocab_size")),
        max_positions=int(get("context_length")),
        rope_theta=float(get("rope.freq_base")),
        rms_norm_eps=float(get("attention.layer_norm_rms_epsilon")),
        tie_embeddings="output.weight" not in names,
    )


def read_weights(
    reader: gguf.GGUFReader, config: ModelConfig, dtype: torch.dtype, path: Path
) -> dict[str, torch.Tensor]:
    """Every weight by its GGUF name, [out, in], Q and K in half-rotation layout.

    Raises:
        ModelFileError: for a tensor that is missing or has another shape than the file's own header promises.
    """
    found = {tensor.name: tensor for tensor in reader.tensors}
    weights: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        if name not in found:
            raise ModelFileError(f"model file {path}: tensor {name} is missing")
        try:
            array = gguf.quants.dequantize(found[name].data, found[name].tensor_type)
        except (ValueError, NotImplementedError) as error:
            kind = found[name].tensor_type.name
            raise ModelFileError(f"model file {path}: tensor {name} of type {kind} cannot be read: {error}") from error
        if array.shape != shape:
            raise ModelFileError(f"model file {path}: tensor {name} has shape {array.shape}, expected {shape}")
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            array = _to_half_rotation(array, config.head_dim)
        weights[name] = torch.from_numpy(np.array(array, dtype=np.float32)).to(dtype)  # a copy: the map goes away
    return weights


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes that a file of this shape must hold."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["output.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        block = f"blk.{layer}."
        shapes |= {
            block + "attn_norm.weight": (hidden,),
            block + "attn_q.weight": (query, hidden),
            block + "attn_k.weight": (kv, hidden),
            block + "attn_v.weight": (kv, hidden),
            block + "attn_output.weight": (hidden, query),
            block + "ffn_norm.weight": (hidden,),
            block + "ffn_gate.weight": (inner, hidden),
            block + "ffn_up.weight": (inner, hidden),
            block + "ffn_down.weight": (hidden, inner),
        }
    return shapes


def _to_half_rotation(weight: np.ndarray, head_dim: int) -> np.ndarray:
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
