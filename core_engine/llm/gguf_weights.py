"""Reads the weights of a GGUF in the layout that `decoder` wants; `gguf_config` has its shape.

llama.cpp stores the rows of a llama's Q and K so that rotary pairs are neighbours; they are put back into the
half-rotation layout here, once. Those of qwen2 and qwen3 are stored as they were.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_codes import BITS, group_codes
from core_engine.llm.gguf_reader import GgufFile, TensorPlace, open_gguf
from core_engine.llm.model_config import ModelConfig, expected_shapes, is_layer_linear
from kernels.quantise import GroupQuantised


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A weight as it lies in the file."""

    file: GgufFile
    place: TensorPlace
    shape: tuple[int, ...]
    head_dim: int | None  # of a Q or K whose rows are to be put back; None for the others

    @property
    def code_bits(self) -> int | None:
        """Bits of the codes that `codes` takes as they are; None where there are none."""
        return BITS.get(self.place.kind)

    def codes(self) -> GroupQuantised:
        """The stored codes, [out, in]; only where `code_bits` says so. Raises `ModelFileError` naming the tensor."""
        try:
            weight = group_codes(self._rows(), gguf.GGMLQuantizationType(self.place.kind))
        except ValueError as error:
            raise self._unreadable(error) from None
        return weight if self.head_dim is None else weight.rows(_half_rotation(self.shape[0], self.head_dim))

    def floats(self) -> torch.Tensor:
        """What the tensor stands for, float32 [out, in], a copy. Raises `ModelFileError` naming the tensor."""
        try:
            array = gguf.quants.dequantize(self._rows(), gguf.GGMLQuantizationType(self.place.kind))
        except (ValueError, KeyError, NotImplementedError) as error:
            raise self._unreadable(error) from None
        weight = torch.from_numpy(array if array.flags.writeable else array.copy())  # read-only: a view of the file
        return weight if self.head_dim is None else weight[_half_rotation(self.shape[0], self.head_dim)]

    def _rows(self) -> np.ndarray:
        """The stored bytes, uint8 [out, row_bytes]."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(self.place.kind)]
        if self.shape[-1] % block:
            raise ValueError(f"rows of {self.shape[-1]} are no whole blocks of {block}")
        row_bytes = self.shape[-1] // block * block_bytes
        num_bytes = math.prod(self.shape[:-1]) * row_bytes
        return self.file.bytes_of(self.place, num_bytes).reshape(*self.shape[:-1], row_bytes)

    def _unreadable(self, error: Exception) -> ModelFileError:
        what = f"tensor {self.place.name} of type {self.place.kind}"
        return ModelFileError(f"model file {self.file.path}: {what} cannot be read: {error}")


def stored_tensors(file: GgufFile, config: ModelConfig) -> dict[str, GgufTensor]:
    """Where every weight of `expected_shapes` is.

    Raises:
        ModelFileError: for a tensor that is missing or has another shape than the file's own header promises, and for
            one that this architecture does not have.
    """
    found = dict(file.tensors)
    is_interleaved = file.field("general.architecture") == "llama"
    stored: dict[str, GgufTensor] = {}
    for name, shape in expected_shapes(config).items():
        if name not in found:
            raise ModelFileError(f"model file {file.path}: tensor {name} is missing")
        place = found.pop(name)
        if place.shape != shape:
            raise ModelFileError(f"model file {file.path}: tensor {name} has shape {place.shape}, expected {shape}")
        is_turned = is_interleaved and name.endswith(("attn_q.weight", "attn_k.weight"))
        stored[name] = GgufTensor(file, place, shape, config.head_dim if is_turned else None)
    if found:
        raise ModelFileError(f"model file {file.path}: tensor {min(found)} is unknown for this architecture")
    return stored


def read_weights(file: GgufFile, config: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every weight of `expected_shapes`, dequantised, in `dtype`, [out, in], Q and K in half-rotation layout.

    Raises:
        ModelFileError: what `stored_tensors` refuses, a type that cannot be dequantised, and a file that is cut short.
    """
    return {name: tensor.floats().to(dtype) for name, tensor in stored_tensors(file, config).items()}


def source_bits(path: Path) -> int | None:
    """The fewest bits of a code or float among the layers' linear weights of the GGUF at `path`; None for a folder.

    A source of 4 bits is a floor: its own grid of 4 bits loses nothing against it, and there is nothing above it.

    Raises:
        ModelFileError: as `open_gguf`, and for a type that is unknown.
    """
    if path.is_dir():
        return None
    file = open_gguf(path)
    try:
        kinds = {gguf.GGMLQuantizationType(t.kind).name for name, t in file.tensors.items() if is_layer_linear(name)}
    except ValueError as error:
        raise ModelFileError(f"model file {path}: {error}") from None
    # a type's name has its bits first: Q4_K, IQ2_XXS, MXFP4, BF16
    return min((int(re.findall(r"\d+", kind)[0]) for kind in kinds), default=None)


def _half_rotation(num_rows: int, head_dim: int) -> torch.Tensor:
    """Which stored row each row of the half-rotation layout is: the pairs' first rows of a head, then their second."""
    return torch.arange(num_rows).view(-1, head_dim // 2, 2).transpose(1, 2).flatten()
