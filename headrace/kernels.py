"""`headrace kernels`: builds the C++ kernels ahead of their first use, and says what a process here would use."""

from __future__ import annotations

import platform
from pathlib import Path

from core_engine.errors import ConfigurationError
from kernels.cpu import KernelUnavailable
from kernels.cpu.build import SOURCES, build, default_folder, is_whole, library_path
from kernels.cpu.compiler import find_compiler
from kernels.cpu.isa import Level, best_level, levels_of, missing, this_cpu


def build_levels(levels: list[Level], folder: Path | None, *, sources: Path = SOURCES) -> list[Path]:
    """The libraries of `levels` (default: all that this architecture has), built unless they are there.

    Raises:
        ConfigurationError: one cannot be built.
    """
    try:
        return [build(level, folder, sources=sources) for level in levels or levels_of(platform.machine())]
    except KernelUnavailable as error:
        raise ConfigurationError(str(error)) from error


def lines(folder: Path | None, *, sources: Path = SOURCES) -> list[str]:
    """What is chosen and why, for a person.

    Raises:
        ConfigurationError: no cache folder, or a compiler that cannot be asked for its version.
    """
    try:
        folder, compiler = folder or default_folder(), find_compiler()
    except KernelUnavailable as error:
        raise ConfigurationError(str(error)) from error
    cpu = this_cpu()
    told = [f"level     {best_level(cpu)}", f"compiler  {compiler or 'none'}", f"folder    {folder}"]
    for level in levels_of(platform.machine()):
        built = "built" if is_whole(library_path(level, folder, sources=sources), compiler) else "not built"
        lacking = missing(level, cpu)
        told.append(f"{level:<9} {built}" + (f"; this CPU lacks {', '.join(lacking)}" if lacking else ""))
    return told
