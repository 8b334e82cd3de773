"""C++ tests of the kernels' headers: compiled with sanitizers and run as a process of their own.

A C++ test is a file beside this one with a `main` that includes headers of `kernels/cpu/src` (and `check.h` here, for
`CHECK(condition)`), computes, and returns; a failed check, a bad access, a leak, an undefined operation or a data race
ends it with a status that is not 0. A Python test calls it:

    @pytest.mark.parametrize("level", RUNNABLE)
    def test_the_tile_equals_the_plain_loop(level: Level, tmp_path: Path) -> None:
        run_native("linear_tile.cpp", tmp_path, level=level)

Data goes in as arguments (numbers, names of files in `tmp_path`), and out as what it prints, which is returned.

The whole library in Python under sanitizers is a process of its own too, one that preloads them:

    run_sanitized(code)  # Python; `build(level, folder, sanitize=True)` in it is a library whose faults end the process
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.build import ALWAYS, SOURCES
from kernels.cpu.compiler import Compiler, find_compiler
from kernels.cpu.isa import Level, flags, missing, this_cpu

HERE = Path(__file__).parent
RUNNABLE = [level for level in Level if not missing(level, this_cpu())]  # the levels that this CPU can run
MEMORY = "address,undefined"
THREADS = "thread"
STRICT = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wno-psabi",  # how vectors of 64 bytes are passed differs by level; a test is one file of one level
    "-Werror",
)


def run_native(
    name: str, scratch: Path, *arguments: str, level: Level = Level.PORTABLE, sanitizer: str = MEMORY
) -> str:
    """Compile `name` (in this folder, or a whole path) into `scratch` unless it was, run it there, return its output.

    Warnings are errors. Fails unless the status is 0. Skips the test where there is no compiler.
    """
    program = scratch / f"{Path(name).stem}-{level}-{sanitizer.partition(',')[0]}"
    if not program.exists():
        compile_native(HERE / name, program, level, sanitizer)
    argv = [*without_randomised_addresses(sanitizer), str(program), *arguments]
    return output_of(argv, os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"}, scratch)


def run_sanitized(code: str) -> str:
    """Run Python `code` in a process that has preloaded the address sanitizer, and return what it printed.

    Fails unless the status is 0. Leaks are not looked for: Python itself keeps memory to its end.
    """
    compiler = usual_compiler()
    # libstdc++ too, or the sanitizer does not find what to call when something throws
    argv = [[*compiler.command, f"-print-file-name={name}.so"] for name in ("libasan", "libstdc++")]
    found = [subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip() for each in argv]
    environ = os.environ | {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0"}
    return output_of([sys.executable, "-c", code], environ)


def usual_compiler() -> Compiler:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    return compiler


def output_of(argv: list[str], environ: dict[str, str], folder: Path | None = None) -> str:
    done = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def compile_native(source: Path, program: Path, level: Level, sanitizer: str) -> None:
    """Compile one C++ test; the same code generation as the kernels', but for the sanitizers."""
    sanitizers = [f"-fsanitize={sanitizer}", f"-I{SOURCES}", f"-I{HERE}"]
    kernel_flags = [flag for flag in ALWAYS if flag != "-shared"]
    usual_compiler().run([*kernel_flags, *STRICT, *flags(level), *sanitizers, str(source), "-o", str(program)])


def without_randomised_addresses(sanitizer: str) -> list[str]:
    """The thread sanitizer of older compilers finds no place for its memory where Linux randomises 32 bits."""
    setarch = shutil.which("setarch")
    return [setarch, "-R"] if sanitizer == THREADS and setarch else []
