"""Turns a model's linear weights into groups of integers, by a scheme; what lies in the file as such is taken as it is.

Quantised are the linear weights of the layers and the LM head, which is the embedding again where the two are tied. The
head has 8 bits always: its rows decide between tokens directly. The embedding that is looked up stays a bfloat16 table,
norms, biases and rotary divisors float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_codes import GROUP as FILE_GROUP
from core_engine.llm.gguf_reader import open_gguf
from core_engine.llm.gguf_weights import GgufTensor, stored_tensors
from core_engine.llm.model_config import ModelConfig, is_layer_linear
from core_engine.llm.safetensors_weights import FolderTensor, folder_tensors
from kernels.quantise import GroupQuantised, quantise_int4, quantise_int8

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
HEAD_BITS = 8
StoredTensor = GgufTensor | FolderTensor


@dataclass(frozen=True, slots=True)
class Scheme:
    """How linear weights are kept. `group` and `symmetric` are for what must be quantised from floats.

    Codes of a file with as many bits are taken as they are, in groups of 32, unless `requantise` says that they are to
    be put onto this scheme's own grid; then groups of 32 hold for all layers, which stack weights of one kind.
    """

    bits: Literal[4, 8]
    group: int = 64
    symmetric: bool = False  # of 4 bits; 8 always are
    requantise: bool = False


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """`linears` by their names, the head as `output.weight` even if it is tied; `tensors` the rest."""

    linears: dict[str, GroupQuantised]
    tensors: dict[str, torch.Tensor]


def convert(path: Path, config: ModelConfig, scheme: Scheme) -> QuantisedWeights:
    """The weights of the model at `path`, a GGUF or a folder, by `scheme`; one float weight at a time is in memory.

    Raises:
        ModelFileError: as the readers of both; and naming a tensor that cannot be quantised.
    """
    if not path.is_dir():
        return _converted(path, stored_tensors(open_gguf(path), config), scheme)
    with ExitStack() as exits:
        return _converted(path, folder_tensors(path, config, exits), scheme)


def _converted(path: Path, stored: Mapping[str, StoredTensor], scheme: Scheme) -> QuantisedWeights:
    layers = {name: tensor for name, tensor in stored.items() if is_layer_linear(name)}
    linears = dict[str, GroupQuantised]()
    group = FILE_GROUP if any(_has_codes(each, scheme.bits, scheme) for each in layers.values()) else scheme.group
    for name, tensor in layers.items():
        linears[name] = _quantised(path, name, tensor, scheme.bits, group, scheme)
    head = EMBEDDING if HEAD not in stored else HEAD
    linears[HEAD] = _quantised(path, head, stored[head], HEAD_BITS, scheme.group, scheme)
    tensors = {name: tensor.floats() for name, tensor in stored.items() if name not in linears}
    tensors[EMBEDDING] = tensors[EMBEDDING].bfloat16()
    return QuantisedWeights(linears, tensors)


def _has_codes(tensor: StoredTensor, bits: int, scheme: Scheme) -> bool:
    return not scheme.requantise and isinstance(tensor, GgufTensor) and tensor.code_bits == bits


def _quantised(path: Path, name: str, tensor: StoredTensor, bits: int, group: int, scheme: Scheme) -> GroupQuantised:
    if isinstance(tensor, GgufTensor) and _has_codes(tensor, bits, scheme):
        return tensor.codes()
    try:
        if bits == 8:
            return quantise_int8(tensor.floats(), group)
        return quantise_int4(tensor.floats(), group, symmetric=scheme.symmetric)
    except ValueError as error:
        raise ModelFileError(f"model file {path}: tensor {name} cannot be quantised: {error}") from None
