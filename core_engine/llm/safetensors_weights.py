"""Reads the weights of a Hugging Face folder: one safetensors file or shards with an index, by memory map.

Nothing is ever unpickled: a folder with only `.bin` checkpoints is refused. Weights get the names of `model_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from core_engine.errors import ModelFileError
from core_engine.llm.hf_config import read_json
from core_engine.llm.model_config import ModelConfig, expected_shapes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
READABLE = (torch.float32, torch.float16, torch.bfloat16)
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class FolderTensor:
    """A weight as it lies in its file, which is open."""

    path: Path
    opened: Any
    name: str
    shape: tuple[int, ...]

    def floats(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[out, in], a copy: the map goes away. Raises `ModelFileError` for another shape or what is no plain float."""
        return _read(self.opened, self.name, self.shape, self.path).to(dtype, copy=True)


def folder_tensors(folder: Path, config: ModelConfig, exits: ExitStack) -> dict[str, FolderTensor]:
    """Where every weight of `expected_shapes` is; `exits` closes the files.

    Raises:
        ModelFileError: for a file that is missing, damaged or cut short; a tensor that is missing; and one that this
            architecture does not have.
    """
    tensors: dict[str, FolderTensor] = {}
    places = _places(folder, exits)
    for name, shape in expected_shapes(config).items():
        theirs = hf_name(name)
        if theirs not in places:
            raise ModelFileError(f"model file {folder}: tensor {theirs} is missing")
        tensors[name] = FolderTensor(*places.pop(theirs), theirs, shape)
    unknown = [name for name in places if not _is_harmless(name, config)]
    if unknown:
        raise ModelFileError(f"model file {folder}: tensor {min(unknown)} is unknown for this architecture")
    return tensors


def read_safetensors(folder: Path, config: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every weight of `expected_shapes` in `dtype`, [out, in].

    Raises:
        ModelFileError: what `folder_tensors` refuses, and a tensor of another shape or that is no plain float.
    """
    with ExitStack() as exits:
        return {name: tensor.floats(dtype) for name, tensor in folder_tensors(folder, config, exits).items()}


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` as a Hugging Face checkpoint calls it: `model.layers.3.self_attn.q_proj.weight`."""
    block, part, kind = name.rpartition(".")[0].rpartition(".")[0], *name.split(".")[-2:]
    return f"{block.replace('blk.', 'model.layers.')}.{NAMES[part]}.{kind}".lstrip(".")


def _places(folder: Path, exits: ExitStack) -> dict[str, tuple[Path, Any]]:
    """Where each tensor is: its file, and that file opened."""
    places: dict[str, tuple[Path, Any]] = {}
    for path, promised in _files(folder):
        try:
            opened = exits.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ModelFileError(f"model file {path} is missing, damaged or cut short: {error}") from None
        held = set(opened.keys())
        if absent := sorted(promised - held):
            raise ModelFileError(f"model file {path}: tensor {absent[0]} is missing, {INDEX} promises it")
        places |= dict.fromkeys(held, (path, opened))
    return places


def _files(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Each safetensors file and the tensors that the index promises in it."""
    if (folder / INDEX).is_file():
        shards: dict[str, set[str]] = {}
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelFileError(f"model file {folder / INDEX}: weight_map is {weight_map!r}, expected an object")
        for tensor, name in weight_map.items():
            if not isinstance(name, str) or Path(name).name != name:
                raise ModelFileError(f"model file {folder / INDEX}: {name!r} is not the name of a file beside it")
            shards.setdefault(name, set()).add(tensor)
        yield from ((folder / name, promised) for name, promised in sorted(shards.items()))
    elif (folder / SINGLE).is_file():
        yield folder / SINGLE, set()
    else:
        found = sorted(path.name for path in folder.glob("*.bin"))
        why = f"; {found[0]} is a pickle and is never opened, save the model as safetensors" if found else ""
        raise ModelFileError(f"model file {folder / SINGLE} is missing, and so is {INDEX}{why}")


def _read(opened: Any, name: str, shape: tuple[int, ...], path: Path) -> torch.Tensor:
    try:
        tensor: torch.Tensor = opened.get_tensor(name)
    except (SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise ModelFileError(f"model file {path}: tensor {name} cannot be read: {error}") from None
    if tuple(tensor.shape) != shape:
        raise ModelFileError(f"model file {path}: tensor {name} has shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype not in READABLE:
        known = ", ".join(str(each).removeprefix("torch.") for each in READABLE)
        raise ModelFileError(f"model file {path}: tensor {name} is of type {tensor.dtype}, expected one of {known}")
    return tensor


def _is_harmless(name: str, config: ModelConfig) -> bool:
    """Left over by older writers: a second copy of tied embeddings, and frequencies that follow from the shape."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_embeddings)
