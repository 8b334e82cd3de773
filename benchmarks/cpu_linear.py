"""How near do the products of the whole-step kernel come to the machine's limits, and to torch's?

Every kind of weight, 576 -> 3072 (the gate and up projection of a model of 135M parameters), at 1 to 512 rows, over as
many different copies as the whole model has weights, so that few rows wait for memory as they do in a step. Floor: the
longer of a plain read of the same bytes and of the same dot products from registers alone, measured in the same run.
Scales and minimums are part of the product's time but not of its operations.
"""

from __future__ import annotations

import ctypes
import math
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.report import Row, options, publish
from kernels.cpu.build import build
from kernels.cpu.isa import chosen_level, this_cpu
from kernels.cpu.step import Linear, Packed, open_library
from kernels.linear import Weight
from kernels.quantise import quantise_int4, quantise_int8

INPUTS, OUTPUTS = 576, 3072
PARAMETERS = 135_000_000
ROWS = (1, 8, 32, 128, 512)
FEW_ROWS = 8  # up to here a product waits for memory; above it needs fewer copies, only too many for the caches
SOURCES = Path(__file__).parent / "cpu"


def kinds(library: ctypes.CDLL) -> dict[str, Packed]:
    """The same random weight in every form."""
    weight = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1))
    forms: dict[str, Weight] = {
        "int8 by 64": quantise_int8(weight),
        "int8 by 32": quantise_int8(weight, 32),
        "int4 by 64": quantise_int4(weight, symmetric=True),
        "int4 by 64, minimums": quantise_int4(weight),
        "int4 by 32, minimums": quantise_int4(weight, 32),
        "bfloat16": weight.bfloat16(),
        "float32": weight,
    }
    return {name: Packed(library, form) for name, form in forms.items()}


def bench_library(folder: Path) -> ctypes.CDLL:
    """`benchmarks/cpu/linear.cpp` at the level of this CPU, and its functions declared."""
    library = ctypes.CDLL(str(build(chosen_level(None, this_cpu()), folder, sources=SOURCES)))
    library.hr_bench_peak.restype = ctypes.c_double
    library.hr_bench_peak.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    library.hr_bench_linear.restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    library.hr_bench_linear.argtypes = [pointer, number, pointer, number, number, number, pointer]
    return library


def torch_seconds(kind: str, rows: int, copies: int, repeats: int) -> float:
    """What torch has for the same rows and dtype, without any scales: products with `copies` different weights."""
    dtype = getattr(torch, kind) if kind in ("bfloat16", "float32") else torch.int8
    x = torch.ones(rows, INPUTS).to(dtype)
    weights = [torch.ones(INPUTS, OUTPUTS).to(dtype) for _ in range(copies)]
    product = torch._int_mm if dtype is torch.int8 else torch.mm
    best = [math.inf] * copies  # each weight's fastest product, as for ours
    for _ in range(repeats):
        for index, weight in enumerate(weights):
            begin = time.perf_counter()
            product(x, weight)
            best[index] = min(best[index], time.perf_counter() - begin)
    return sum(best)


def measured(library: ctypes.CDLL, kind: str, struct: Linear, rows: int, repeats: int) -> Row:
    """One line of the table."""
    whole_model, threads = PARAMETERS // (INPUTS * OUTPUTS), torch.get_num_threads()
    copies = whole_model if rows <= FEW_ROWS else whole_model // 6
    x, seconds = torch.randn(rows, INPUTS), (ctypes.c_double * 2)()
    at = ctypes.byref(struct)
    num_bytes = library.hr_bench_linear(at, copies, x.data_ptr(), rows, threads, repeats, seconds)
    operations = 2.0 * copies * INPUTS * OUTPUTS * rows
    peak = library.hr_bench_peak(at, threads, repeats)
    theirs = torch_seconds(kind, rows, copies, repeats)
    return {
        "weights": kind,
        "rows": rows,
        "GFLOP/s": operations / seconds[0] / 1e9,
        "GB/s": num_bytes / seconds[0] / 1e9,
        "plain read GB/s": num_bytes / seconds[1] / 1e9,
        "peak GFLOP/s": peak / 1e9,
        "share of floor": max(seconds[1], operations / peak) / seconds[0],
        "torch GFLOP/s": operations / theirs / 1e9,
        "ours / torch": theirs / seconds[0],
    }


def main() -> None:
    arguments = options("products of packed weights against the machine's limits and torch")
    repeats, shapes = (3, ROWS[::2]) if arguments.quick else (9, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        library = bench_library(Path(folder))
        forms = kinds(open_library())
        rows = [
            measured(library, kind, packed.struct, count, repeats) for kind, packed in forms.items() for count in shapes
        ]
    of_int8 = {row["rows"]: row for row in rows if row["weights"] == "int8 by 64"}
    headline = {
        "int8_1_share_of_floor": of_int8[1]["share of floor"],
        "int8_32_gflops": of_int8[32]["GFLOP/s"],
        "int8_512_gflops": of_int8[512]["GFLOP/s"],
        "int8_512_share_of_floor": of_int8[512]["share of floor"],
    }
    publish(f"Products {INPUTS} -> {OUTPUTS}, {PARAMETERS / 1e6:.0f}M weights", rows, headline, arguments.json)


if __name__ == "__main__":
    main()
