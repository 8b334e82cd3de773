"""Hugging Face folders: one file or shards; every kind of damage is one sentence that names file and tensor."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from core_engine.errors import ModelFileError
from core_engine.llm.hf_config import read_hf_config
from core_engine.llm.model_config import expected_shapes
from core_engine.llm.model_files import load_model
from core_engine.llm.safetensors_weights import hf_name
from tests.core_engine.llm.families import LONG, hf_model, logits_of, save
from tests.core_engine.llm.test_families import ATOL, stepper

SHARD_BYTES = 12_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(hf_model("qwen2"), tmp_path)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return save(hf_model("qwen2"), tmp_path, SHARD_BYTES)


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    return change


@pytest.mark.parametrize("case", ["llama", "qwen2_tied", "qwen3"])
def test_shards_hold_the_same_model_as_one_file(tmp_path: Path, case: str) -> None:
    model = hf_model(case)
    one, many = save(model, tmp_path / "one"), save(model, tmp_path / "many", SHARD_BYTES)
    assert len(list(many.glob("*.safetensors"))) > 2
    assert len(list(one.glob("*.safetensors"))) == 1
    first, second = load_model(one, torch.float32), load_model(many, torch.float32)
    assert first.config == second.config
    assert set(first.weights) == set(second.weights) == set(expected_shapes(first.config))
    assert all(torch.equal(tensor, second.weights[name]) for name, tensor in first.weights.items())
    torch.testing.assert_close(stepper(many).prefill(LONG), logits_of(model, LONG), rtol=0, atol=ATOL)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float32])
def test_weights_come_in_the_precision_asked_for(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    model = hf_model("llama").to(stored)
    weights = load_model(save(model, tmp_path), wanted).weights
    assert {tensor.dtype for tensor in weights.values()} == {wanted}
    assert torch.equal(weights["blk.1.attn_k.weight"], model.model.layers[1].self_attn.k_proj.weight.to(wanted))


def test_loaded_weights_outlive_the_file(folder: Path) -> None:
    weights = load_model(folder, torch.float32).weights
    before = {name: tensor.clone() for name, tensor in weights.items()}
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.items())


def test_every_name_has_its_counterpart() -> None:
    theirs = set(hf_model("qwen2").state_dict())
    assert hf_name("blk.11.attn_q_norm.weight") == "model.layers.11.self_attn.q_norm.weight"
    assert hf_name("output.weight") == "lm_head.weight"
    assert {hf_name(f"blk.{i}.attn_{part}.bias") for i in range(2) for part in "qkv"} <= theirs


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder / "model.safetensors", without("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelFileError, match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load_model(folder, torch.float32)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    def cut(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(31)

    rewrite(folder / "model.safetensors", cut)
    says = r"model\.safetensors: tensor model\.layers\.0\.self_attn\.q_proj\.bias has shape \(31,\), expected \(32,\)"
    with pytest.raises(ModelFileError, match=says):
        load_model(folder, torch.float32)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float64, torch.bool])
def test_a_tensor_that_is_no_plain_float_is_named(folder: Path, dtype: torch.dtype) -> None:
    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype)

    rewrite(folder / "model.safetensors", quantise)
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is of type torch.*expected one of float32"):
        load_model(folder, torch.float32)


def test_a_tensor_that_the_architecture_has_not_is_named(folder: Path) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.o_proj.bias"] = torch.zeros(32)

    rewrite(folder / "model.safetensors", add)
    with pytest.raises(ModelFileError, match=r"o_proj\.bias is unknown for this architecture"):
        load_model(folder, torch.float32)


def test_left_overs_of_older_writers_are_passed_over(tmp_path: Path) -> None:
    folder = save(hf_model("llama_tied"), tmp_path)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    rewrite(folder / "model.safetensors", add)
    assert load_model(folder, torch.float32).config.tie_embeddings


def test_a_missing_shard_is_named(shards: Path) -> None:
    gone = sorted(shards.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelFileError, match=gone.name):
        load_model(shards, torch.float32)


def test_a_tensor_that_the_index_promises_and_the_shard_lacks_is_named(shards: Path) -> None:
    index = json.loads((shards / "model.safetensors.index.json").read_bytes())["weight_map"]
    name, file = next(iter(index.items()))
    rewrite(shards / file, without(name))
    with pytest.raises(ModelFileError, match=rf"{file}: tensor {name} is missing"):
        load_model(shards, torch.float32)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", 7])
def test_an_index_leads_nowhere_but_into_its_folder(shards: Path, name: object) -> None:
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ModelFileError, match="is not the name of a file beside it"):
        load_model(shards, torch.float32)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"weight_map": 3}', b"\xff\xfe"])
def test_a_broken_index_is_one_clear_error(shards: Path, content: bytes) -> None:
    (shards / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"model\.safetensors\.index\.json"):
        load_model(shards, torch.float32)


class Trap:
    """Unpickling it would be seen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was opened",)


def test_a_pickle_is_refused_by_name_and_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin is a pickle and is never opened"):
        load_model(folder, torch.float32)


def test_a_folder_without_weights_says_what_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model\.safetensors is missing, and so is model\.safetensors\.index"):
        load_model(folder, torch.float32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = save(hf_model("llama"), tmp_path_factory.mktemp("cut"))
    return folder, (folder / "model.safetensors").read_bytes()


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_anywhere_is_one_clear_error(whole: tuple[Path, bytes], share: float) -> None:
    folder, content = whole
    (folder / "model.safetensors").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError, match=r"model\.safetensors is missing, damaged or cut short"):
        load_model(folder, torch.float32)


@given(place=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_damaged_header_is_an_error_or_the_same_model_never_anything_else(
    whole: tuple[Path, bytes], place: int, byte: int
) -> None:
    folder, content = whole
    (folder / "model.safetensors").write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
    refusal, names = "", set[str]()
    try:
        names = set(load_model(folder, torch.float32).weights)
    except ModelFileError as error:
        refusal = str(error)
    # not refused: a byte of what nobody reads, or one that was so before
    assert refusal.startswith("model file ") or names == set(expected_shapes(read_hf_config(folder)))
