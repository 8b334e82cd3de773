"""Which peers there are, in which precisions, and which model file and runner script each of them takes."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.comparison.side import Label

BEST = ("vllm", "openvino")  # the two best of the table of 2026-11-30; what --quick uses


@dataclass(frozen=True, slots=True)
class Variant:
    """One peer in one precision. `bits` of its weights is the class in which it is compared; `mode` as its script reads
    it."""

    name: str
    peer: str
    precision: str
    bits: int
    model: str  # a format of `model_files`
    mode: str = ""

    @property
    def script(self) -> str:
        return f"run_{self.peer}.py"

    def label(self, version: str) -> Label:
        return Label(self.name, self.peer, self.precision, self.bits, version)


VARIANTS = (
    Variant("vllm-w8a8", "vllm", "w8a8, bf16 KV", 8, "w8a8"),
    Variant("vllm-bf16", "vllm", "bf16", 16, "bf16"),
    Variant("openvino-q8_0", "openvino", "Q8_0, u8 KV", 8, "q8_0.gguf"),
    Variant("openvino-bf16", "openvino", "f16 file, bf16, u8 KV", 16, "f16.gguf"),
    Variant("openvino-q4_0", "openvino", "Q4_0, u8 KV", 4, "q4_0.gguf"),
    Variant("llama-q8_0", "llama", "Q8_0, f16 KV", 8, "q8_0.gguf"),
    Variant("llama-f16", "llama", "f16", 16, "f16.gguf"),
    Variant("llama-q4_0", "llama", "Q4_0, f16 KV", 4, "q4_0.gguf"),
    Variant("transformers-static", "transformers", "bf16", 16, "bf16", "static"),
    Variant("transformers-continuous", "transformers", "bf16", 16, "bf16", "continuous"),
    Variant("ctranslate2-int8", "ctranslate2", "int8, float32 rest", 8, "ctranslate2"),
)
PEERS = tuple(dict.fromkeys(variant.peer for variant in VARIANTS))


def chosen(names: list[str], bits: list[int]) -> list[Variant]:
    """The variants of the named peers (or named themselves) of the classes `bits`, the most important first."""
    return [v for v in VARIANTS if v.bits in bits and (v.peer in names or v.name in names)]
