"""Instruction-set levels: what the compiler is told for each, and which this CPU can run."""

from __future__ import annotations

import enum
import platform
from pathlib import Path

from kernels.cpu import KernelUnavailable


class Level(enum.StrEnum):
    """One build of the kernels; best first. What a level needs is in `FEATURES`."""

    AVX512 = "avx512"
    AVX2 = "avx2"
    PORTABLE = "portable"


# By the compiler's names; the kernel's list of a CPU's flags spells some of them another way.
FEATURES: dict[Level, tuple[str, ...]] = {
    Level.AVX512: (
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16"),
        *("avx2", "fma", "f16c"),
    ),
    Level.AVX2: ("avx2", "fma", "f16c"),
    Level.PORTABLE: (),
}
SPELT_BY_LINUX = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}


def flags(level: Level) -> list[str]:
    """The compiler's flags of a level."""
    return [f"-m{feature}" for feature in FEATURES[level]]


def missing(level: Level, cpu_flags: frozenset[str]) -> list[str]:
    """What `level` needs and a CPU with these flags (as Linux spells them) lacks."""
    return [name for name in FEATURES[level] if SPELT_BY_LINUX.get(name, name) not in cpu_flags]


def best_level(cpu_flags: frozenset[str]) -> Level:
    """The best level that a CPU with these flags runs; `PORTABLE` always runs."""
    return next(level for level in Level if not missing(level, cpu_flags))


def chosen_level(level: Level | None, cpu_flags: frozenset[str]) -> Level:
    """`level`, or the best one where None.

    Raises:
        KernelUnavailable: the CPU lacks what `level` needs.
    """
    if level is None:
        return best_level(cpu_flags)
    if lacking := missing(level, cpu_flags):
        raise KernelUnavailable(f"this CPU lacks {', '.join(lacking)}, which kernel level {level} needs")
    return level


def levels_of(machine: str) -> list[Level]:
    """The levels that a compiler for this architecture (as `platform.machine()` names it) can build."""
    return list(Level) if machine.lower() in ("x86_64", "amd64") else [Level.PORTABLE]


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The flags that every core of this CPU has, as Linux lists them; none on another system or architecture."""
    if levels_of(platform.machine()) == [Level.PORTABLE]:
        return frozenset()
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    cores = [frozenset(line.partition(":")[2].split()) for line in lines if line.partition(":")[0].strip() == "flags"]
    return frozenset.intersection(*cores) if cores else frozenset()
