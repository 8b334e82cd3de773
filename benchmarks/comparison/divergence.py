"""KL to float32 of the same weights, on the quality gate's own text and by its own figures, for every precision.

Ours is the engine's own decoder. A peer is measured where it gives full distributions; otherwise its published scheme
is emulated in torch, in float32 but for what the scheme quantises, and the result says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from benchmarks.comparison.ours import Precision
from benchmarks.comparison.peer_process import PeerProcess
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.model_decoder import Dials, load_decoder
from core_engine.llm.tokenizer import Tokenizer
from core_engine.quality.model import PagedModel
from core_engine.quality.texts import LENGTHS, Text, cut, default_text, read_text

MAX_TOKENS = 20_480
CHUNK = 256  # rows of logits that are looked at together


def material(path: Path | None, max_tokens: int = MAX_TOKENS) -> tuple[Text, list[list[int]]]:
    """The text (of the file, or the gate's own) and its token sequences. Raises `ConfigurationError`, as `cut`."""
    text = read_text(path) if path else default_text()
    ids = Tokenizer.from_path(default_model_path()).encode(text.content)
    return text, cut(ids, max_tokens, max(LENGTHS))


def our_model(precision: Precision, *, kernel: str = "auto") -> PagedModel:
    """The engine's decoder over its paged cache."""
    kv = None if precision.kv == "model" else precision.kv
    dials = Dials(precision.weights, kv, kernel)  # type: ignore[arg-type]  # which it checks
    return PagedModel(load_decoder(default_model_path(), dials).decoder, max(LENGTHS))


def reference_model() -> PagedModel:
    return our_model(Precision("float32", "model"), kernel="reference")


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A peer that tells its logits, through files in `folder`. A `core_engine.quality.model.Model`."""

    peer: PeerProcess
    folder: Path

    def logits(self, token_ids: Sequence[int], first: int = 0) -> Iterator[torch.Tensor]:
        path = self.folder / f"{self.peer.label.name}.npy"
        self.peer.save_logits(token_ids, path)
        yield from torch.split(torch.from_numpy(np.load(path)[first:]), CHUNK)


@dataclass(frozen=True, slots=True)
class EmulatedModel:
    """A published scheme on transformers' float32 model. `scheme` says in words which. A `Model` as well."""

    transformer: Any
    scheme: str

    @torch.inference_mode()
    def _all(self, token_ids: Sequence[int]) -> torch.Tensor:
        logits: torch.Tensor = self.transformer(torch.tensor([list(token_ids)])).logits[0]
        return logits

    def logits(self, token_ids: Sequence[int], first: int = 0) -> Iterator[torch.Tensor]:
        yield from torch.split(self._all(token_ids)[first:], CHUNK)


def emulated_model(bits: int, *, per_channel: bool) -> EmulatedModel:
    """GGUF's Q8_0 or Q4_0 with activations in int8 by 32, as llama.cpp and OpenVINO compute with them; or
    (`per_channel`) int8 per output channel with activations per token. The output layer is quantised as well."""
    from transformers import AutoModelForCausalLM, GgufConfig

    path, dense = default_model_path(), GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, quantization_config=dense
    ).eval()
    group = 0 if per_channel else 32
    kind = GGMLQuantizationType.Q4_0 if bits == 4 else GGMLQuantizationType.Q8_0
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            own = GGMLQuantizationType.Q8_0 if name == "lm_head" else kind
            weight = int8_rounded(layer.weight.data) if per_channel else through_gguf(layer.weight.data, own)
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            layer.register_forward_pre_hook(lambda _, inputs: (int8_rounded(inputs[0], group),))
    weights = "int8 per channel" if per_channel else kind.name
    return EmulatedModel(
        model, f"weights {weights}, activations int8 " + ("per token" if per_channel else "by 32") + ", KV float32"
    )


def int8_rounded(x: torch.Tensor, group: int = 0) -> torch.Tensor:
    """`x` on a symmetric int8 grid: one scale per row of the last dimension, or per `group` of it."""
    rows = x.view(*x.shape[:-1], -1, group or x.shape[-1])
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return ((rows / scale).round() * scale).view_as(x)


def through_gguf(weight: torch.Tensor, kind: GGMLQuantizationType) -> torch.Tensor:
    return torch.from_numpy(np.asarray(dequantize(quantize(weight.numpy(), kind), kind)))
