"""A trained linear head on the last hidden state: weights in a safetensors file, read by digest, nothing pickled.

`weight` [num_classes, hidden] and `bias` [num_classes], both float32, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.nn import functional as F

from core_engine.errors import ModelFileError
from core_engine.predictors.declaration import Artifact
from core_engine.scoring.artifact import read_artifact, write_artifact


@dataclass(frozen=True, slots=True)
class LinearHead:
    weight: Tensor  # [num_classes, hidden], float32
    bias: Tensor  # [num_classes], float32

    def probabilities(self, hidden: Tensor) -> Tensor:
        """Softmax float32 [num_classes] of one final hidden state [hidden]."""
        return F.linear(hidden.float(), self.weight, self.bias).softmax(dim=-1)


def save_linear_head(path: str | Path, head: LinearHead) -> Artifact:
    """Write `head` in one step; the same weights give the same bytes."""
    tensors = {"weight": head.weight, "bias": head.bias}
    return write_artifact(path, save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()}))


def load_linear_head(path: str | Path, sha256: str, hidden_size: int, device: str | torch.device = "cpu") -> LinearHead:
    """The head in `path`, on `device`, for a model whose hidden states have `hidden_size` numbers.

    Raises:
        ModelFileError: unreadable, another digest, not safetensors, or other tensors than a head of that size has.
    """
    data = read_artifact(path, sha256)
    try:
        tensors = load_tensors(data)
    except (SafetensorError, ValueError) as error:
        raise ModelFileError(f"model file {path} is not a safetensors file: {error}") from None
    _check(path, tensors, hidden_size)
    return LinearHead(tensors["weight"].to(device), tensors["bias"].to(device))


def _check(path: str | Path, tensors: dict[str, Tensor], hidden_size: int) -> None:
    found = {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in sorted(tensors.items())}
    num_classes = tensors["weight"].shape[0] if "weight" in tensors and tensors["weight"].ndim else 0
    expected = {"bias": f"float32 [{num_classes}]", "weight": f"float32 [{num_classes}, {hidden_size}]"}
    if found != expected or not num_classes:
        wanted = f"weight float32 [num_classes, {hidden_size}] and bias float32 [num_classes]"
        raise ModelFileError(f"model file {path} holds {found or 'no tensors'}, expected {wanted} for this model")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise ModelFileError(f"model file {path} holds numbers that are not finite; train the head again")
