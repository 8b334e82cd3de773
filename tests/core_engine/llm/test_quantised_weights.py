"""Models loaded as integers: codes of the file where they fit, quantised from its floats where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.gguf_weights import source_bits
from core_engine.llm.model_config import expected_shapes, is_layer_linear
from core_engine.llm.model_files import LoadedModel, load_model, load_quantised_model
from core_engine.llm.quantised_weights import EMBEDDING, HEAD, Scheme
from kernels.quantise import quantise_int4, quantise_int8
from tests.core_engine.llm.families import hf_model, save
from tests.core_engine.llm.gguf_files import write_gguf
from tests.core_engine.llm.test_gguf_families import WIDE

QUERY, DOWN = "blk.0.attn_q.weight", "blk.0.ffn_down.weight"
WHOLE_BLOCKS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}  # of 32


def written(folder: Path, kind: Kind, case: str = "llama") -> Path:
    """A GGUF whose matrices are of one type."""
    sizes = WIDE if kind in (Kind.Q4_K, Kind.Q6_K) else WHOLE_BLOCKS
    return write_gguf(folder / f"{case}-{kind.name}.gguf", hf_model(case, **sizes), kind)


def both(path: Path, scheme: Scheme) -> tuple[LoadedModel, dict[str, torch.Tensor]]:
    """The quantised model and the float32 weights that the file stands for."""
    return load_quantised_model(path, scheme, path.parent / "cache"), load_model(path, torch.float32).weights


@pytest.mark.parametrize("case", ["llama", "llama_tied", "qwen2", "qwen3"])
@pytest.mark.parametrize("bits", [8, 4])
def test_linear_weights_are_integers_and_everything_else_is_not(tmp_path: Path, case: str, bits: Any) -> None:
    model, floats = both(save(hf_model(case), tmp_path / "model"), Scheme(bits))
    names = set(expected_shapes(model.config))
    assert set(model.linears) == {name for name in names if is_layer_linear(name)} | {HEAD}
    assert set(model.weights) == names - set(model.linears)
    assert {linear.bits for name, linear in model.linears.items() if name != HEAD} == {bits}
    assert model.linears[HEAD].bits == 8
    assert torch.equal(model.weights[EMBEDDING], floats[EMBEDDING].bfloat16())
    for name in set(model.weights) - {EMBEDDING}:
        assert torch.equal(model.weights[name], floats[name])
        assert model.weights[name].dtype == torch.float32


@pytest.mark.parametrize("case", ["llama", "qwen2"])
@pytest.mark.parametrize(("kind", "bits"), [(Kind.Q8_0, 8), (Kind.Q4_0, 4), (Kind.Q4_1, 4), (Kind.Q4_K, 4)])
def test_codes_of_the_file_are_taken_as_they_are(tmp_path: Path, case: str, kind: Kind, bits: Any) -> None:
    model, floats = both(written(tmp_path, kind, case), Scheme(bits))
    atol = 0.0 if kind is not Kind.Q4_K else 2e-4  # see `gguf_codes`
    for name, linear in model.linears.items():
        if name != HEAD:  # its 8 bits are of the file only if that has 8
            assert linear.group == 32
            torch.testing.assert_close(linear.dequantise(), floats[name], rtol=0, atol=atol)
    assert model.linears[HEAD].group == (32 if bits == 8 else 64)


def test_a_tied_head_takes_the_codes_of_the_embedding(tmp_path: Path) -> None:
    model, floats = both(written(tmp_path, Kind.Q8_0, "llama_tied"), Scheme(4))
    assert torch.equal(model.linears[HEAD].dequantise(), floats[EMBEDDING])
    assert model.linears[HEAD].group == 32


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize(
    ("kind", "bits", "symmetric"),
    [(Kind.Q4_1, 8, False), (Kind.Q8_0, 4, False), (Kind.F16, 4, True), (Kind.Q6_K, 8, False)],
)
def test_other_types_are_quantised_from_what_they_stand_for(
    tmp_path: Path, kind: Kind, bits: Any, symmetric: bool, group: int
) -> None:
    model, floats = both(written(tmp_path, kind), Scheme(bits, group, symmetric))
    for name in (QUERY, DOWN):
        expected = quantise_int8(floats[name], group)
        if bits == 4:
            expected = quantise_int4(floats[name], group, symmetric=symmetric)
        assert torch.equal(model.linears[name].codes, expected.codes)
        assert torch.equal(model.linears[name].scales, expected.scales)
        assert (model.linears[name].group, model.linears[name].minimums is None) == (group, bits == 8 or symmetric)


def test_a_source_is_put_onto_another_grid_where_that_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, Kind.Q4_1)
    direct, floats = both(path, Scheme(4))
    again, _ = both(path, Scheme(4, requantise=True))
    assert torch.equal(direct.linears[DOWN].dequantise(), floats[DOWN])
    assert again.linears[DOWN].group == 64
    assert torch.equal(again.linears[DOWN].codes, quantise_int4(floats[DOWN], 64).codes)


def test_layers_of_mixed_types_have_one_group(tmp_path: Path) -> None:
    def mixed(writer: gguf.GGUFWriter) -> None:
        data = gguf.quants.quantize(floats.numpy(), Kind.Q8_0)
        writer.add_tensor("blk.0.attn_v.weight", data, raw_dtype=Kind.Q8_0)

    model = hf_model("qwen2", **WHOLE_BLOCKS)
    floats = model.model.layers[0].self_attn.v_proj.weight.detach().clone()
    path = write_gguf(tmp_path / "m.gguf", model, Kind.Q4_1, change=mixed, without="blk.0.attn_v.weight")
    linears = both(path, Scheme(4))[0].linears
    assert {(linear.bits, linear.group) for name, linear in linears.items() if name != HEAD} == {(4, 32)}


@pytest.mark.parametrize(
    ("kind", "bits"),
    [(Kind.F32, 32), (Kind.BF16, 16), (Kind.Q8_0, 8), (Kind.Q6_K, 6), (Kind.Q4_1, 4), (Kind.Q4_K, 4)],
)
def test_the_bits_of_a_source_are_those_of_its_layers(tmp_path: Path, kind: Kind, bits: int) -> None:
    assert source_bits(written(tmp_path, kind)) == bits


def test_a_folder_of_floats_has_no_fewer_bits_than_any_setting(tmp_path: Path) -> None:
    assert source_bits(save(hf_model("llama"), tmp_path)) is None


def test_a_weight_that_cannot_be_quantised_is_named(tmp_path: Path) -> None:
    folder = save(hf_model("llama"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 7] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    says = r"tensor blk\.1\.ffn_up\.weight cannot be quantised: a group needs a scale or minimum of size nan"
    with pytest.raises(ModelFileError, match=says):
        load_quantised_model(folder, Scheme(8), tmp_path / "cache")


def test_a_scale_in_the_file_that_is_not_finite_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, Kind.Q8_0)
    content = bytearray(path.read_bytes())
    place = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}[DOWN].data_offset
    content[place : place + 2] = b"\x00\x7c"  # infinity
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"tensor blk\.0\.ffn_down\.weight of type 8 cannot be read: .*not finite"):
        load_quantised_model(path, Scheme(8), tmp_path / "cache")


def test_a_type_that_nobody_knows_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, Kind.Q8_0)
    content = path.read_bytes()
    name = DOWN.encode()
    kind_at = content.index(name) + len(name) + 4 + 2 * 8  # after the number of dimensions and the two of them
    assert content[kind_at] == Kind.Q8_0
    path.write_bytes(content[:kind_at] + bytes([250]) + content[kind_at + 1 :])
    with pytest.raises(ModelFileError, match=r"tensor blk\.0\.ffn_down\.weight of type 250 cannot be read"):
        load_quantised_model(path, Scheme(8), tmp_path / "cache")
    with pytest.raises(ModelFileError, match="250"):
        source_bits(path)


@pytest.mark.weights
def test_the_example_model_is_of_4_bits_and_loses_nothing_in_them(tmp_path: Path) -> None:
    path = default_model_path()
    floats = load_model(path, torch.float32).weights
    linears = load_quantised_model(path, Scheme(4), tmp_path).linears
    assert source_bits(path) == 4
    assert all(torch.equal(linears[name].dequantise(), floats[name]) for name in floats if is_layer_linear(name))
    assert torch.equal(linears[HEAD].dequantise(), floats[EMBEDDING])
