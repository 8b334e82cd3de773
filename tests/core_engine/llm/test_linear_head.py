"""A linear head's file: what is saved is what is loaded, and nothing else is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from core_engine.errors import ModelFileError
from core_engine.llm.linear_head import LinearHead, load_linear_head, save_linear_head

HIDDEN, CLASSES = 6, 3
WEIGHT, BIAS = torch.arange(18, dtype=torch.float32).view(CLASSES, HIDDEN) / 10, torch.tensor([0.5, -0.5, 0.0])


def write(path: Path, data: bytes) -> tuple[Path, str]:
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


def refusal(path: Path, digest: str) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_linear_head(path, digest, HIDDEN)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_head_comes_back_as_it_was_saved_and_the_same_head_gives_the_same_bytes(tmp_path: Path) -> None:
    head = LinearHead(WEIGHT, BIAS)
    artifact = save_linear_head(tmp_path / "head.safetensors", head)
    assert save_linear_head(tmp_path / "again.safetensors", head).sha256 == artifact.sha256
    loaded = load_linear_head(artifact.path, artifact.sha256, HIDDEN)
    assert torch.equal(loaded.weight, WEIGHT)
    assert torch.equal(loaded.bias, BIAS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_are_the_softmax_of_the_linear_map_in_float32(dtype: torch.dtype) -> None:
    hidden = torch.linspace(-1, 1, HIDDEN).to(dtype)
    found = LinearHead(WEIGHT, BIAS).probabilities(hidden)
    logits = WEIGHT.double() @ hidden.double() + BIAS.double()
    torch.testing.assert_close(found.double(), logits.softmax(dim=0), rtol=1e-5, atol=1e-6)
    assert found.dtype == torch.float32


def test_another_file_than_the_declared_one_is_refused(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "head.safetensors", save({"weight": WEIGHT, "bias": BIAS}))
    assert "was declared" in refusal(path, "0" * 64)
    assert "cannot be read" in refusal(tmp_path / "absent", "0" * 64)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    whole = save({"weight": WEIGHT, "bias": BIAS})
    for index, data in enumerate((b"", b"PK", whole[:-1], b"\xff" * 64)):
        assert "is not a safetensors file" in refusal(*write(tmp_path / f"{index}", data))


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": WEIGHT},
        {"weight": WEIGHT, "bias": BIAS, "more": BIAS + 1},
        {"weight": WEIGHT[:, :-1].contiguous(), "bias": BIAS},
        {"weight": WEIGHT, "bias": BIAS[:-1].clone()},
        {"weight": WEIGHT.double(), "bias": BIAS},
        {"weight": WEIGHT, "bias": BIAS.half()},
        {"weight": WEIGHT[:0].clone(), "bias": BIAS[:0].clone()},
        {"weight": torch.tensor(1.0), "bias": BIAS},
        {},
    ],
    ids=["no bias", "one more", "narrow", "few", "float64", "float16", "no classes", "scalar", "empty"],
)
def test_tensors_of_another_head_or_of_another_models_size_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    message = refusal(*write(tmp_path / "head.safetensors", save(tensors)))
    assert f"expected weight float32 [num_classes, {HIDDEN}] and bias float32 [num_classes]" in message


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, number: float) -> None:
    bias = torch.tensor([0.0, number, 0.0])
    assert "not finite" in refusal(*write(tmp_path / "head.safetensors", save({"weight": WEIGHT, "bias": bias})))
