"""Reads the weights of a GGUF, dequantised, in the layout that `decoder` wants; `gguf_config` has its shape.

llama.cpp stores the rows of a llama's Q and K so that rotary pairs are neighbours; they are put back into the
half-rotation layout here, once. Those of qwen2 and qwen3 are stored as they were.
"""

from __future__ import annotations

import math

import gguf
import numpy as np
import torch

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_reader import GgufFile, TensorPlace
from core_engine.llm.model_config import ModelConfig, expected_shapes


def read_weights(file: GgufFile, config: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every weight of `expected_shapes` in `dtype`, [out, in], Q and K in half-rotation layout.

    Raises:
        ModelFileError: for a tensor that is missing, has another shape than the file's own header promises or a type
            that cannot be dequantised, and for a tensor that this architecture does not have.
    """
    found, path = dict(file.tensors), file.path
    is_interleaved = file.field("general.architecture") == "llama"
    weights: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        if name not in found:
            raise ModelFileError(f"model file {path}: tensor {name} is missing")
        array = _dequantised(file, found.pop(name), shape)
        if is_interleaved and name.endswith(("attn_q.weight", "attn_k.weight")):
            array = _to_half_rotation(array, config.head_dim)
        weights[name] = torch.from_numpy(np.array(array, dtype=np.float32)).to(dtype)  # a copy: the map goes away
    if found:
        raise ModelFileError(f"model file {path}: tensor {min(found)} is unknown for this architecture")
    return weights


def _dequantised(file: GgufFile, tensor: TensorPlace, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor's numbers, [out, in]."""
    if tensor.shape != shape:
        raise ModelFileError(f"model file {file.path}: tensor {tensor.name} has shape {tensor.shape}, expected {shape}")
    try:
        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise ValueError(f"rows of {shape[-1]} are no whole blocks of {block}")
        row_bytes = shape[-1] // block * block_bytes
        rows = file.bytes_of(tensor, math.prod(shape[:-1]) * row_bytes).reshape(*shape[:-1], row_bytes)
        array: np.ndarray = gguf.quants.dequantize(rows, kind)
    except (ValueError, KeyError, NotImplementedError) as error:
        message = f"model file {file.path}: tensor {tensor.name} of type {tensor.kind} cannot be read: {error}"
        raise ModelFileError(message) from None
    return array


def _to_half_rotation(weight: np.ndarray, head_dim: int) -> np.ndarray:
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
