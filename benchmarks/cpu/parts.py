"""Where the time of a decode step goes, beside its floor; and of a prompt's steps, beside torch's int8 product."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal

import torch

from benchmarks.cpu.driving import DrivenEngine, StepSeconds, roomy
from benchmarks.cpu.floor import Floor, StepSize, floor_of, layer_products, measure_limits
from benchmarks.report import Row
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.model_decoder import WeightPrecision
from core_engine.settings import EngineSettings
from kernels.quantise import ACTIVATION_GROUP

WEIGHTS: tuple[WeightPrecision, ...] = ("int8", "int4", "bfloat16")
KV: tuple[Literal["model", "int8"], ...] = ("model", "int8")
TORCH_ROWS = (8, 32, 128, 512)


def decode_rows(*, quick: bool) -> list[Row]:
    """Weights x KV x batch x context."""
    weights, contexts = (WEIGHTS[:1], (256,)) if quick else (WEIGHTS, (128, 256))
    rows: list[Row] = []
    for each in weights:
        limits = measure_limits(each, 3 if quick else 9)
        for kv in KV:
            driven = DrivenEngine.of(roomy(each, kv))
            for batch in (1, 8, 32):
                for context in contexts:
                    found = driven.decode(batch, context, 20 if quick else 60)
                    floor = floor_of(StepSize.decode(batch, driven.context_tokens), driven.decoder, limits)
                    label = {"weights": each, "kv": kv, "batch": batch, "context": driven.context_tokens}
                    rows.append(label | {"read GB/s": limits.read_bytes_per_s / 1e9} | beside(found, floor))
            driven.close()
    return rows


def beside(found: StepSeconds, floor: Floor) -> Row:
    """Milliseconds of each part, `measured / floor` where it has one."""

    def pair(part: str, least: float) -> str:
        return f"{1e3 * found.parts[part]:.2f} / {1e3 * least:.2f}"

    return {
        "step ms": 1e3 * found.step,
        "products": pair("products", floor.products),
        "attention": pair("attention", floor.attention),
        "head": pair("head", floor.head),
        "other": 1e3 * found.parts["other"],
        "sampler": 1e3 * found.sampler,
        "Python": 1e3 * found.python,
        "floor ms": 1e3 * floor.step,
        "x floor": found.step / floor.step,
    }


def prefill_rows(*, quick: bool) -> list[Row]:
    """Fastest of some prompts of each length, in chunks of 512."""
    lengths, repeats = ((512, 2048), 2) if quick else ((128, 512, 2048), 5)
    rows: list[Row] = []
    for weights in WEIGHTS[:1] if quick else WEIGHTS:
        limits = measure_limits(weights, 3 if quick else 9)
        settings = EngineSettings(weights=weights)
        driven = DrivenEngine.of(settings)
        driven.prefill(max(lengths))  # the allocator's and the caches'
        for length in lengths:
            found = min((driven.prefill(length) for _ in range(repeats)), key=lambda each: each.step)
            sizes = StepSize.prefill(length, settings.max_step_tokens)
            floors = [floor_of(size, driven.decoder, limits) for size in sizes]
            floor = Floor(*(sum(getattr(each, part) for each in floors) for part in ("products", "attention", "head")))
            label = {"weights": weights, "tokens": length, "tok/s": length / found.step}
            rows.append(label | beside(found, floor))
        driven.close()
    return rows


def torch_rows(*, quick: bool) -> list[Row]:
    """All layers' products by the kernel and by torch's int8 product, with the groups' scales and without any."""
    driven = DrivenEngine.of(EngineSettings())
    config, repeats = driven.decoder.config, 3 if quick else 15
    rows: list[Row] = []
    for num_rows in TORCH_ROWS:
        ours = min(driven.prefill(num_rows).parts["products"] for _ in range(repeats))
        by_groups = torch_products_s(config, num_rows, repeats, grouped_product)
        bare = torch_products_s(config, num_rows, repeats, lambda x, w, _scales: torch._int_mm(x, w))
        rows.append(
            {
                "rows": num_rows,
                "kernel ms": 1e3 * ours,
                "torch by groups, with scales ms": 1e3 * by_groups,
                "torch without scales ms": 1e3 * bare,
                "with scales / kernel": by_groups / ours,
                "without / kernel": bare / ours,
            }
        )
    driven.close()
    return rows


Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def torch_products_s(config: ModelConfig, num_rows: int, repeats: int, product: Product) -> float:
    """Seconds of one layer's products, each at its fastest, times the layers."""
    seconds = 0.0
    for outputs, inputs in layer_products(config):
        x, weight = (torch.ones(shape, dtype=torch.int8) for shape in ((num_rows, inputs), (inputs, outputs)))
        scales, best = torch.ones(-(-inputs // ACTIVATION_GROUP), outputs), math.inf
        for _ in range(repeats):
            start = time.perf_counter()
            product(x, weight, scales)
            best = min(best, time.perf_counter() - start)
        seconds += best
    return config.num_layers * seconds


def grouped_product(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """As the kernel's scheme has it: an exact product of each group of inputs, scaled by row and by output."""
    out = torch.zeros(len(x), weight.shape[1])
    row_scales = torch.ones(len(x), 1)
    parts = torch.split(x, ACTIVATION_GROUP, 1), torch.split(weight, ACTIVATION_GROUP), scales
    for rows, columns, of_group in zip(*parts, strict=True):
        out.addcmul_(torch._int_mm(rows, columns).float(), row_scales * of_group)
    return out
