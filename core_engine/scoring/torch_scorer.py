"""The torch scorer: a small declared architecture in a safetensors file; the engine runs it between its steps.

"tabular_mlp" is the one architecture: numbers are standardised, categories are embedded, two hidden layers, a
sigmoid. What the file says of itself (architecture and sizes) is JSON in the safetensors header; nothing is pickled.
The only module of this folder that imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from core_engine.errors import InvalidRequest, ModelFileError
from core_engine.predictors.declaration import Artifact, Column, ColumnKind
from core_engine.scoring.artifact import read_artifact, write_artifact

ARCHITECTURE = "tabular_mlp"
METADATA_KEY = "scorer"
MAX_DEVIATIONS = 8.0  # standardised numbers are cut here, so that one absurd input cannot saturate the network


class TabularSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a tabular_mlp. `numeric` and `categories` are positions in the row; `cardinality` excludes unknown."""

    numeric: tuple[int, ...]
    categories: tuple[int, ...]
    cardinality: tuple[int, ...]
    embedding_dim: int = 8
    hidden: tuple[int, int] = (64, 32)

    @classmethod
    def of(cls, columns: Sequence[Column], embedding_dim: int = 8, hidden: tuple[int, int] = (64, 32)) -> TabularSpec:
        """Categories and weekdays are embedded, all else is a number."""
        embedded = (ColumnKind.CATEGORY, ColumnKind.WEEKDAY)
        categories = tuple(i for i, c in enumerate(columns) if c.kind in embedded)
        return cls(
            numeric=tuple(i for i, c in enumerate(columns) if c.kind not in embedded),
            categories=categories,
            cardinality=tuple(
                7 if columns[i].kind is ColumnKind.WEEKDAY else len(columns[i].values) for i in categories
            ),
            embedding_dim=embedding_dim,
            hidden=hidden,
        )

    @property
    def num_features(self) -> int:
        return len(self.numeric) + len(self.categories)

    def check(self) -> None:
        """Raises ValueError where the sizes do not describe one row."""
        if sorted(self.numeric + self.categories) != list(range(self.num_features)) or not self.num_features:
            raise ValueError("the positions of its columns are not 0 to num_features - 1, each once")
        if len(self.categories) != len(self.cardinality):
            raise ValueError("it has another number of categories than of cardinalities")
        if min(*self.hidden, self.embedding_dim, *self.cardinality) < 1:
            raise ValueError("a size is below one")


class TabularMLP(nn.Module):
    """Logits of rows [num_rows, num_features]; NaN in a number is the mean plus its is-missing indicator."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: TabularSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("mean", torch.zeros(len(spec.numeric)))
        self.register_buffer("std", torch.ones(len(spec.numeric)))
        # One row more than there are values: the last one stands for unknown.
        self.embeddings = nn.ModuleList(nn.Embedding(n + 1, spec.embedding_dim) for n in spec.cardinality)
        width = 2 * len(spec.numeric) + spec.embedding_dim * len(spec.categories)
        self.hidden_1 = nn.Linear(width, spec.hidden[0])
        self.hidden_2 = nn.Linear(spec.hidden[0], spec.hidden[1])
        self.head = nn.Linear(spec.hidden[1], 1)

    def forward(self, rows: Tensor) -> Tensor:
        x = self._inputs(rows)  # [num_rows, width]
        x = nn.functional.silu(self.hidden_1(x))
        x = nn.functional.silu(self.hidden_2(x))
        logits: Tensor = self.head(x).squeeze(-1)
        return logits  # [num_rows]

    def _inputs(self, rows: Tensor) -> Tensor:
        numbers = (rows[:, self.spec.numeric] - self.mean) / self.std
        missing = numbers.isnan()
        parts = [numbers.nan_to_num(nan=0.0).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS), missing.to(rows.dtype)]
        for i, size, table in zip(self.spec.categories, self.spec.cardinality, self.embeddings, strict=True):
            index = rows[:, i].nan_to_num(nan=-1.0).clamp(-1, size).long()
            parts.append(table(torch.where(index < 0, size, index)))
        return torch.cat(parts, dim=1)


class TorchScorerModel:
    """A loaded scorer. Its answer for a row does not depend on the rows beside it, beyond float rounding."""

    def __init__(self, module: TabularMLP, device: torch.device) -> None:
        self._module = module.to(device).eval()
        self._device = device

    @property
    def num_features(self) -> int:
        return self._module.spec.num_features

    def score(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Probabilities float32 [num_rows] of `features` float32 [num_rows, num_features]; NaN is absent.

        Raises:
            InvalidRequest: another shape or type.
        """
        if features.ndim != 2 or features.shape[1] != self.num_features or features.dtype != np.float32:
            expected = f"float32 [num_rows, {self.num_features}]"
            found = f"{features.dtype} {list(features.shape)}"
            raise InvalidRequest(
                f"features = {found}: the scorer expects {expected}", field="features", value=found, expected=expected
            )
        # Rows out of a message are read-only, which torch refuses to wrap: they are copied, others are not.
        rows = torch.from_numpy(np.require(features, requirements=["C", "W"]))
        with torch.inference_mode():
            scores: npt.NDArray[np.float32] = self._module(rows.to(self._device)).sigmoid().cpu().numpy()
        return scores


def save_scorer(path: str | Path, module: TabularMLP) -> Artifact:
    """Write `module` as safetensors in one step; the same weights give the same bytes."""
    described = {"architecture": ARCHITECTURE, "spec": msgspec.to_builtins(module.spec)}
    # One key only: safetensors writes several in an order that changes from call to call.
    metadata = {METADATA_KEY: json.dumps(described, sort_keys=True)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    return write_artifact(path, save_tensors(tensors, metadata))


def load_scorer(path: str | Path, sha256: str, device: str | torch.device = "cpu") -> TorchScorerModel:
    """The scorer in `path`, on `device`.

    Raises:
        ModelFileError: unreadable, another digest, not safetensors, an unknown architecture, or tensors that do not
            fit the sizes it states.
    """
    data = read_artifact(path, sha256)
    try:
        tensors = load_tensors(data)
        described = _description(data)
    except (SafetensorError, ValueError) as error:
        raise ModelFileError(f"model file {path} is not a safetensors file: {error}") from None
    architecture = described.get("architecture", "none")
    if architecture != ARCHITECTURE:
        raise ModelFileError(f"model file {path} has architecture {architecture!r}; known: {ARCHITECTURE}")
    return TorchScorerModel(_build(path, described.get("spec"), tensors), torch.device(device))


def _description(data: bytes) -> dict[str, Any]:
    """What the file says of itself: its first eight bytes are the length of a JSON header that holds the metadata."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    described = json.loads(metadata.get(METADATA_KEY, "{}"))
    return described if isinstance(described, dict) else {}


def _build(path: str | Path, described: object, tensors: dict[str, Tensor]) -> TabularMLP:
    try:
        spec = msgspec.convert(described, TabularSpec)
        spec.check()
        module = TabularMLP(spec)
        module.load_state_dict(tensors, strict=True)
    except (msgspec.ValidationError, ValueError, RuntimeError) as error:  # torch's own are RuntimeErrors
        reason = " ".join(str(error).split())
        raise ModelFileError(f"model file {path} is not a {ARCHITECTURE} of the sizes it states: {reason}") from None
    return module
