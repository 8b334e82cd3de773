"""The C ABI of the whole step under sanitizers, and what it refuses. What it computes: `test_cpu_decoder`."""

from __future__ import annotations

import ctypes

import pytest
import torch

from kernels.cpu.compiler import find_compiler
from kernels.cpu.isa import Level
from kernels.cpu.step import INPUTS, PANEL, Model, Packed, StepKernel, open_library
from kernels.linear import Weight
from kernels.quantise import quantise_int4, quantise_int8
from tests.kernels.cpu.native import RUNNABLE, run_sanitized
from tests.kernels.cpu.sanitized_step import bits_of_a_crowd

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
FLOATS = torch.randn(33, 66, generator=torch.Generator().manual_seed(0))
IN_ALL = 2 * PANEL * 2 * INPUTS  # numbers of it in whole panels and groups


@pytest.mark.parametrize("level", RUNNABLE)
def test_a_step_is_sound_under_sanitizers_and_has_the_bits_of_the_optimised_build(level: Level) -> None:
    code = "from kernels.cpu.isa import Level; from tests.kernels.cpu.sanitized_step import sanitized_bits\n"
    code += f"print(sanitized_bits(Level({level.value!r})))"
    assert run_sanitized(code).strip() == bits_of_a_crowd(open_library(level), num_threads=1)


@pytest.mark.parametrize(
    ("weight", "num_bytes"),
    [
        (FLOATS, 4 * IN_ALL),
        (FLOATS.bfloat16(), 2 * IN_ALL),
        (quantise_int8(FLOATS), IN_ALL + IN_ALL // 64 * 2),
        (quantise_int8(FLOATS, 32), IN_ALL + IN_ALL // 32 * 2),
        (quantise_int4(FLOATS), IN_ALL // 2 + IN_ALL // 64 * 4),
        (quantise_int4(FLOATS, symmetric=True), IN_ALL // 2 + IN_ALL // 64 * 2),
    ],
    ids=["float32", "bfloat16", "int8", "int8 by 32", "int4", "int4 symmetric"],
)
def test_a_packed_weight_takes_whole_panels_and_groups(weight: Weight, num_bytes: int) -> None:
    packed = Packed(open_library(), weight)
    assert (packed.struct.n, packed.struct.k) == (33, 66)
    assert (packed.struct.n_pad, packed.struct.k_pad) == (64, 128)
    assert packed.num_bytes == num_bytes


@pytest.mark.parametrize(
    ("num_threads", "cpus", "told"),
    [
        (0, (), "a team needs a thread, got 0"),
        (1, (0, 1), "pinning names one CPU for each of 1 threads, got 2"),
        (1, (9999,), "a thread cannot be pinned to CPU 9999"),
        (1, (-1,), "a thread cannot be pinned to CPU -1"),
    ],
)
def test_threads_that_cannot_be_had_are_a_sentence(num_threads: int, cpus: tuple[int, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        StepKernel(open_library(), Model(), (), num_threads, cpus)


def test_a_kernel_is_closed_once() -> None:
    kernel = StepKernel(open_library(), Model(), (), 2)
    assert set(kernel.seconds().values()) == {0.0}
    kernel.close()
    kernel.close()


def test_every_function_is_declared() -> None:
    """An undeclared one would be given pointers of 32 bits."""
    library = open_library()
    for name in ("hr_open", "hr_close", "hr_run", "hr_logits", "hr_seconds", "hr_kv_tile_bytes"):
        assert getattr(library, name).argtypes, name
    assert library.hr_open.restype is ctypes.c_void_p
