"""Writes transformers' tiny models as GGUF files the way llama.cpp's conversion does, quantised or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from core_engine.llm.safetensors_weights import hf_name

Change = Callable[[gguf.GGUFWriter], None]
K_BLOCK = {Kind.Q4_K: (144, (0, 2)), Kind.Q6_K: (210, (208,)), Kind.Q5_K: (176, (0, 2))}  # bytes; where float16s lie


def write_gguf(
    path: Path,
    model: Any,
    kind: Kind = Kind.F32,
    *,
    change: Change = lambda writer: None,
    factors: torch.Tensor | None = None,
    without: str = "",
    head_count_kv: int | list[int] | None = None,
) -> Path:
    """Write `model`, its matrices as `kind`; the rounding is put into the model itself, so that it stays the reference.

    `change` may add keys; `factors` [head_dim / 2] are written as the divisors of the rotary frequencies. The tensor
    named `without` is left out; `head_count_kv` goes before the model's own.
    """
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    _add_shape(writer, config)
    writer.add_head_count_kv(head_count_kv or config.num_key_value_heads)
    change(writer)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    state = model.state_dict()
    for name in names_of(config):
        if name == without:
            continue
        tensor = state[hf_name(name)]
        is_turned = architecture == "llama" and name.endswith(("attn_q.weight", "attn_k.weight"))
        array = tensor.numpy()
        if is_turned:
            array = interleaved(array, config.num_attention_heads, name, config.num_key_value_heads)
        if array.ndim == 1:
            writer.add_tensor(name, array)
            continue
        data, rounded = quantised(array, kind)
        if is_turned:
            rounded = halves(rounded, config.num_attention_heads, name, config.num_key_value_heads)
        tensor.copy_(torch.from_numpy(rounded.copy()))
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def names_of(config: Any) -> list[str]:
    parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    layer = [f"{part}.weight" for part in parts]
    if config.model_type == "qwen2":
        layer += [f"attn_{part}.bias" for part in "qkv"]
    if config.model_type == "qwen3":
        layer += ["attn_q_norm.weight", "attn_k_norm.weight"]
    names = ["token_embd.weight", "output_norm.weight"]
    names += [] if config.tie_word_embeddings else ["output.weight"]
    return names + [f"blk.{i}.{name}" for i in range(config.num_hidden_layers) for name in layer]


def interleaved(array: np.ndarray, heads: int, name: str, kv_heads: int) -> np.ndarray:
    """Rows as llama.cpp keeps them for `llama`: rotary pairs side by side."""
    heads = heads if "attn_q" in name else kv_heads
    return array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


def halves(array: np.ndarray, heads: int, name: str, kv_heads: int) -> np.ndarray:
    heads = heads if "attn_q" in name else kv_heads
    return array.reshape(heads, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


def quantised(array: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """The stored form of `array`, and the numbers that it stands for. K-quants are random: the package makes none."""
    if kind in K_BLOCK:
        data = random_blocks(array.shape, kind)
    else:
        data = gguf.quants.quantize(np.ascontiguousarray(array), kind)
    return data, gguf.quants.dequantize(data, kind).astype(np.float32)


def random_blocks(shape: tuple[int, ...], kind: Kind) -> np.ndarray:
    num_bytes, scales = K_BLOCK[kind]
    rows, blocks = shape[0], shape[1] // 256
    data = np.random.default_rng(5).integers(0, 256, (rows, blocks, num_bytes), dtype=np.uint8)
    for place in scales:
        scale = np.random.default_rng(place).uniform(1e-4, 3e-4, (rows, blocks, 1)).astype(np.float16)
        data[:, :, place : place + 2] = scale.view(np.uint8)
    return data.reshape(rows, blocks * num_bytes)


def _add_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.model_type == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    elif config.model_type != "qwen2":
        writer.add_rope_dimension_count(head_dim)
