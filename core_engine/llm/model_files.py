"""One way to a model, whatever it lies in: a GGUF file, or a Hugging Face folder with config.json and safetensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from core_engine.llm.gguf_config import read_config
from core_engine.llm.gguf_reader import open_gguf
from core_engine.llm.gguf_weights import read_weights
from core_engine.llm.hf_config import eos_token_ids, read_hf_config
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.quantised_weights import Scheme, convert
from core_engine.llm.safetensors_weights import read_safetensors
from core_engine.llm.weights_cache import cached
from kernels.quantise import GroupQuantised


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`weights` are those of `expected_shapes(config)`, all of one dtype, but for what is in `linears`, quantised.

    Beside `linears` (the layers' linear weights and always `output.weight`) norms and biases are float32, and the
    embedding is bfloat16.
    """

    config: ModelConfig
    weights: dict[str, torch.Tensor]
    eos_token_ids: frozenset[int]
    linears: dict[str, GroupQuantised] = field(default_factory=dict)


def load_model(path: Path, dtype: torch.dtype) -> LoadedModel:
    """Read the model at `path`, a file or a folder.

    Raises:
        ModelFileError: one sentence that names the file and, where there is one, the tensor or the key.
    """
    if path.is_dir():
        config = read_hf_config(path)
        return LoadedModel(config, read_safetensors(path, config, dtype), eos_token_ids(path))
    file = open_gguf(path)
    config = read_config(file)
    return LoadedModel(config, read_weights(file, config, dtype), file.end_token_ids())


def load_quantised_model(path: Path, scheme: Scheme, cache_folder: Path) -> LoadedModel:
    """Read the model at `path`, its linear weights by `scheme`: converted once, then mapped from `cache_folder`.

    Raises:
        ModelFileError: as `load_model`, and naming a weight that cannot be quantised.
    """
    if path.is_dir():
        config, end_ids = read_hf_config(path), eos_token_ids(path)
    else:
        file = open_gguf(path)
        config, end_ids = read_config(file), file.end_token_ids()
    weights = cached(cache_folder, path, scheme, lambda: convert(path, config, scheme))
    return LoadedModel(config, weights.tensors, end_ids, weights.linears)
