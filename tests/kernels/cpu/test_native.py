"""The harness of the C++ tests: what it is there to find, it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu import KernelUnavailable
from kernels.cpu.isa import Level
from tests.kernels.cpu.native import MEMORY, RUNNABLE, THREADS, run_native

FAULTS = {
    "a check that fails": (MEMORY, "CHECK(argc == 5);", "failed: argc == 5"),
    "a read past the end": (MEMORY, "std::vector<int> v(3); return v.data()[argc + 2];", "heap-buffer-overflow"),
    "a leak": (
        MEMORY,
        "int* volatile kept = new int[3]; kept = nullptr; return kept != nullptr || argc != 1;",
        "LeakSanitizer",
    ),
    "an overflow": (MEMORY, "int most = 2147483647; return most + argc == 0;", "signed integer overflow"),
    "a misaligned read": (MEMORY, "alignas(8) char c[16] = {}; return *(int*)(c + argc);", "misaligned address"),
    "a race": (THREADS, "int x = argc; std::thread t([&] { x = 1; }); x = 2; t.join();", "data race"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_test(fault: str, tmp_path: Path) -> None:
    sanitizer, statements, told = FAULTS[fault]
    with pytest.raises(AssertionError, match=told):
        run_native(str(program(tmp_path, statements)), tmp_path, sanitizer=sanitizer)


@pytest.mark.parametrize("level", RUNNABLE)
def test_a_sound_program_gives_its_output_at_every_level(level: Level, tmp_path: Path) -> None:
    source = program(tmp_path, 'std::printf("%d", argc);')
    assert run_native(str(source), tmp_path, "first", "second", level=level) == "3"


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelUnavailable, match=r"unused variable .unused."):
        run_native(str(program(tmp_path, "int unused = argc;")), tmp_path)


def program(folder: Path, statements: str) -> Path:
    source = folder / "program.cpp"
    headers = "\n".join(f"#include {name}" for name in ('"check.h"', "<thread>", "<vector>"))
    source.write_text(f"{headers}\nint main(int argc, char**) {{ {statements} }}\n")
    return source
