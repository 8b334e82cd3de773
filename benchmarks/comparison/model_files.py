"""The example model in the files that each peer reads, made once from the GGUF that the engine itself loads.

Weights: `bf16` is a Hugging Face folder; `w8a8` the same with int8 weights per output channel, in the format
compressed-tensors (activations are quantised per token at run time); `f16.gguf`, `q8_0.gguf`, `q4_0.gguf` GGUF files.
As llama.cpp does it, the embedding, which is also the output layer, stays Q8_0 in the 4-bit file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig

from core_engine.llm.gguf_reader import default_model_path

EMBEDDING = "token_embd.weight"
KINDS = {
    "f16.gguf": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0.gguf": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0.gguf": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}


def prepare(kind: str, folder: Path) -> Path:
    """The model in format `kind` (see the module) inside `folder`; made if it is not there yet, whole or not at all.

    Raises:
        KeyError: no such format.
    """
    target = folder / kind
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        makers: dict[str, Callable[[Path, Path], None]] = {"bf16": _write_bf16, "w8a8": _write_w8a8}
        making = folder / f"making-{kind}"
        if kind in KINDS:
            write_gguf(default_model_path(), making, kind)
        else:
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            makers[kind](making, folder)
        making.rename(target)
    return target


def _write_bf16(target: Path, _folder: Path) -> None:
    """bfloat16, tied as it is. Config and tensors apart: transformers does not save a model read from a GGUF."""
    path = default_model_path()
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, quantization_config=dense
    )
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    tensors = {name: tensor.to(torch.bfloat16).contiguous().clone() for name, tensor in model.state_dict().items()}
    if torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]):
        del tensors["lm_head.weight"]
    given = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        given.pop(key, None)
    given |= {"tie_word_embeddings": "lm_head.weight" not in tensors, "architectures": ["LlamaForCausalLM"]}
    LlamaConfig(**(given | {"dtype": "bfloat16"})).save_pretrained(target)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(target)
    # CTranslate2 reads it with transformers 4, which knows neither this class nor where the base now stands
    _amend(target / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    _amend(target / "config.json", rope_theta=given["rope_parameters"]["rope_theta"])


def _amend(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=1))


def _write_w8a8(target: Path, folder: Path) -> None:
    """Scheme: int8 symmetric, weights per output channel, activations per token at run time; embedding stays bf16."""
    source = prepare("bf16", folder)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            scale = tensor.float().abs().amax(1, keepdim=True) / 127
            tensors[name] = (tensor.float() / scale).round().clamp(-127, 127).to(torch.int8)
            tensors[f"{name}_scale"] = scale.to(torch.bfloat16)
        else:
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    _amend(target / "config.json", quantization_config=_w8a8_config())


def _w8a8_config() -> dict[str, object]:
    int8 = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": int8 | {"strategy": "channel", "dynamic": False},
        "input_activations": int8 | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def write_gguf(source: Path, target: Path, kind: str) -> None:
    """Every matrix of `source` in the format of `kind`; header fields and vectors as they are."""
    reader = GGUFReader(source)
    wanted, file_type = KINDS[kind]
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        dense = dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, dense.astype(np.float32))
            continue
        is_kept_finer = tensor.name == EMBEDDING and wanted == GGMLQuantizationType.Q4_0
        as_type = GGMLQuantizationType.Q8_0 if is_kept_finer else wanted
        writer.add_tensor(tensor.name, quantize(dense, as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
