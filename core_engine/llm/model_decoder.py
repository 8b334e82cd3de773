"""From a model's files and three dials (weights, KV, kernel) to the decoder that runs it.

`auto` takes the C++ step where this machine and this model allow it, and says in one warning why where they do not; the
plain torch reference then computes the same scheme, slower and with a KV cache that is not smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
import torch

from core_engine.llm.batch_invariant import BatchInvariantDecoder
from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.decoder import Decoder, KvPrecision
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.model_files import load_model, load_quantised_model
from core_engine.llm.quantised_weights import Scheme
from core_engine.llm.weights_cache import default_cache_folder
from kernels.cpu import KernelUnavailable
from kernels.cpu.memory import return_freed
from kernels.cpu.step import open_library
from kernels.linear import Weight

log = structlog.get_logger()
WeightPrecision = Literal["bfloat16", "float32", "int8", "int4"]
BITS: dict[str, Literal[4, 8]] = {"int8": 8, "int4": 4}
AnyDecoder = Decoder | CpuDecoder


@dataclass(frozen=True, slots=True)
class Dials:
    """What a model is run with. `kv` None: what the weights are computed in, bfloat16 but for float32 weights."""

    weights: WeightPrecision = "int8"
    kv: KvPrecision | None = None
    kernel: Literal["auto", "reference"] = "auto"
    deterministic: bool = False
    num_threads: int = 0  # of the kernel; 0: as many as CPUs may be used
    cpus: tuple[int, ...] = ()  # to pin its threads to, one for each
    block_size: int = 16
    weights_cache: Path | None = None  # None: in the user's cache folder
    kernels_cache: Path | None = None

    @property
    def precision(self) -> str:
        """`int8`, or `int8+kv_int8`."""
        return self.weights if self.kv is None else f"{self.weights}+kv_{self.kv}"


@dataclass(frozen=True, slots=True)
class LoadedDecoder:
    decoder: AnyDecoder
    config: ModelConfig
    eos_token_ids: frozenset[int]


def load_decoder(path: Path, dials: Dials) -> LoadedDecoder:
    """Read the model at `path` and make its decoder.

    Raises:
        ModelFileError: as `load_model`.
        ConfigurationError: determinism that the reference cannot promise on this machine.
    """
    loaded = _loaded(path, dials)
    return_freed()  # weights that were packed, and what was on the way to them
    return loaded


def _loaded(path: Path, dials: Dials) -> LoadedDecoder:
    if (bits := BITS.get(dials.weights)) is None:
        model = load_model(path, getattr(torch, dials.weights))
    else:
        model = load_quantised_model(path, Scheme(bits), dials.weights_cache or default_cache_folder())
    weights: dict[str, Weight] = {**model.weights, **model.linears}
    return LoadedDecoder(make_decoder(model.config, weights, dials), model.config, model.eos_token_ids)


def make_decoder(config: ModelConfig, weights: dict[str, Weight], dials: Dials) -> AnyDecoder:
    """The C++ step, or the reference where that is asked for or nothing else can be had."""
    if dials.kernel == "auto":
        try:
            return _cpu_decoder(config, weights, dials)
        except KernelUnavailable as error:
            log.warning("kernel_unavailable", reason=str(error), instead="the torch reference, slower")
    kind = BatchInvariantDecoder if dials.deterministic else Decoder
    kv = dials.kv
    if kv is None and dials.weights in BITS:
        kv = "bfloat16"  # as the kernel keeps it; float models keep what they compute
    return kind(config, weights, kv)


def _cpu_decoder(config: ModelConfig, weights: dict[str, Weight], dials: Dials) -> CpuDecoder:
    if dials.weights == "float32" and dials.kv is None:
        raise KernelUnavailable("float32 weights keep float32 KV, which the kernel does not")
    if dials.block_size % 16:
        raise KernelUnavailable(f"block_size is {dials.block_size}, the kernel takes multiples of 16")
    library = open_library(folder=dials.kernels_cache)
    kv = dials.kv or "bfloat16"
    return CpuDecoder(library, config, weights, kv, num_threads=dials.num_threads, cpus=dials.cpus)
