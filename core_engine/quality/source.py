"""What precision a model's own file has: below it nothing is lost, above it nothing can be had."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf

from core_engine.llm.gguf_reader import open_gguf
from core_engine.llm.gguf_weights import source_bits
from core_engine.llm.model_config import is_layer_linear

FLOOR_BITS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """Of the layers' linear weights: the fewest bits and every type, as in `Q4_1`; None and nothing of a folder."""

    bits: int | None
    kinds: tuple[str, ...]

    @property
    def is_floor(self) -> bool:
        return self.bits is not None and self.bits <= FLOOR_BITS

    def describe(self) -> str:
        if self.bits is None:
            return "source is in floating point"
        kinds = ", ".join(self.kinds)
        if self.is_floor:
            return (
                f"source is natively {self.bits}-bit ({kinds}): a floor; there is no higher precision to fall back to"
            )
        return f"source is {self.bits}-bit ({kinds})"


def source(path: Path) -> Source:
    """Raises `ModelFileError` as `open_gguf`."""
    bits = source_bits(path)
    if bits is None:
        return Source(None, ())
    tensors = open_gguf(path).tensors.items()
    kinds = {gguf.GGMLQuantizationType(tensor.kind).name for name, tensor in tensors if is_layer_linear(name)}
    return Source(bits, tuple(sorted(kinds)))
