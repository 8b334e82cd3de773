"""The system's C++ compiler: which one, its version, and one call of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.cpu import KernelUnavailable

USUAL = ("c++", "g++", "clang++")
LONGEST_BUILD_S = 600.0


@dataclass(frozen=True, slots=True)
class Compiler:
    """`command` starts it; `version` is what it says of itself."""

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version.partition(chr(10))[0]})"

    def run(self, arguments: list[str]) -> None:
        """Compile.

        Raises:
            KernelUnavailable: it failed; the sentence holds its first error.
        """
        done = called([*self.command, *arguments], LONGEST_BUILD_S)
        if done.returncode != 0:
            raise KernelUnavailable(f"{shlex.join(self.command)} did not build the kernels: {first_error(done)}")


def find_compiler(environ: Mapping[str, str] = os.environ) -> Compiler | None:
    """The compiler that $CXX names, otherwise the first usual one on the path; None where there is none.

    Raises:
        KernelUnavailable: $CXX cannot be read as a command, or the compiler does not tell its version.
    """
    try:
        wanted = shlex.split(environ.get("CXX", ""))
    except ValueError as error:
        raise KernelUnavailable(f"CXX = {environ['CXX']!r} is no command: {error}") from error
    for command in [wanted] if wanted else [[name] for name in USUAL]:
        if shutil.which(command[0], path=environ.get("PATH")) is not None:
            return Compiler(tuple(command), version_of(command))
    return None


def version_of(command: list[str]) -> str:
    """What `--version` prints.

    Raises:
        KernelUnavailable: it fails.
    """
    done = called([*command, "--version"], 60.0)
    if done.returncode != 0:
        raise KernelUnavailable(f"{shlex.join(command)} --version failed: {first_error(done)}")
    return done.stdout.strip()


def called(argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in English.

    Raises:
        KernelUnavailable: it cannot be started, or does not end in time.
    """
    environ = os.environ | {"LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            check=False, timeout=timeout_s,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelUnavailable(f"{Path(argv[0]).name} cannot be run: {error}") from error


def first_error(done: subprocess.CompletedProcess[str]) -> str:
    """The line that says what went wrong, or the exit status where none does."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line]
    return next(iter(errors + lines), f"exit status {done.returncode}")
