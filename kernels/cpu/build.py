"""Builds the C++ kernels at first use, keeps what was built, and loads it only if it is whole.

A cache folder holds for each level and state of the sources `<level>-<hash>.so` and beside it a record with the
library's SHA-256 and the compiler that made it: a damaged library is never opened (it can kill the process), it is
built anew. A machine without a compiler takes what any compiler built from the same sources; one with a compiler only
its own. Callers turn `KernelUnavailable` into one warning and the reference path.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernels.cpu import KernelUnavailable
from kernels.cpu.compiler import USUAL, Compiler, find_compiler
from kernels.cpu.isa import Level, chosen_level, flags, this_cpu

SOURCES = Path(__file__).parent / "src"
# No contraction: what is fused is written so, and a row's result is the same in every tile. Inline functions stay
# hidden, so that libraries of two levels in one process share nothing.
ALWAYS = ("-std=c++17", "-pthread", "-fPIC", "-shared", "-ffp-contract=off", "-fvisibility-inlines-hidden")
FAST = ("-O3", "-fno-math-errno", "-fno-trapping-math")
SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`headrace/kernels` in the user's cache folder.

    Raises:
        KernelUnavailable: this user has no home.
    """
    if cache := environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "headrace" / "kernels"
    try:
        return Path.home() / ".cache" / "headrace" / "kernels"
    except RuntimeError as error:
        raise KernelUnavailable("the kernels have no cache folder: neither XDG_CACHE_HOME nor HOME is set") from error


def load(level: Level | None = None, folder: Path | None = None, *, sources: Path = SOURCES) -> ctypes.CDLL:
    """The library of `level` (default: the best that this CPU runs), built first where it is not in `folder`.

    Raises:
        KernelUnavailable: the CPU is too old for `level`, or what `build` raises, or the library cannot be linked.
    """
    path = build(chosen_level(level, this_cpu()), folder, sources=sources)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelUnavailable(f"the kernels that were built cannot be loaded: {error}") from error


def build(level: Level, folder: Path | None = None, *, sanitize: bool = False, sources: Path = SOURCES) -> Path:
    """The library of `level` in `folder` (default: `default_folder()`), built unless it is there, whole.

    Any level that the compiler knows can be built, whatever this CPU runs. With `sanitize` it is one for tests, that
    stops at the first bad access or undefined operation; a process that loads it has preloaded the sanitizer.

    Raises:
        KernelUnavailable: no compiler, a build that fails, or a folder that cannot be written.
    """
    folder = folder or default_folder()
    try:
        compiler = find_compiler()
        path = library_path(level, folder, sanitize=sanitize, sources=sources)
        if not is_whole(path, compiler):
            make(path, compiler, sources, all_flags(level, sanitize=sanitize))
    except OSError as error:
        raise KernelUnavailable(f"the kernels cannot be kept in {folder}: {error}") from error
    return path


def library_path(level: Level, folder: Path, *, sanitize: bool = False, sources: Path = SOURCES) -> Path:
    """Where the library of `level` lies in `folder`, named by a hash of all that it is made from but the compiler."""
    digest = hashlib.sha256("\0".join(all_flags(level, sanitize=sanitize)).encode())
    for source in sorted([*sources.glob("*.h"), *sources.glob("*.cpp")]):
        content = source.read_bytes()
        digest.update(f"\0{source.name}\0{len(content)}\0".encode() + content)
    return folder / f"{level}-{digest.hexdigest()[:20]}.so"


def is_whole(path: Path, compiler: Compiler | None) -> bool:
    """Whether the library is as it was built, by this compiler where there is one."""
    try:
        record = json.loads(record_path(path).read_text())
        content = path.read_bytes()
    except (OSError, ValueError):
        return False
    if not isinstance(record, dict) or (compiler is not None and record.get("compiler") != compiler.version):
        return False
    return record.get("sha256") == hashlib.sha256(content).hexdigest()


def record_path(path: Path) -> Path:
    return path.with_suffix(".json")


def all_flags(level: Level, *, sanitize: bool) -> list[str]:
    """Every flag of a build but the file names."""
    return [*ALWAYS, *(SANITIZED if sanitize else FAST), *flags(level)]


def make(path: Path, compiler: Compiler | None, sources: Path, arguments: list[str]) -> None:
    """Build `path` and its record, unless another process did while this one waited for the lock.

    Raises:
        KernelUnavailable: no compiler, or the build fails.
        OSError: the folder cannot be written.
    """
    if compiler is None:
        raise KernelUnavailable(f"no C++ compiler was found (tried {os.environ.get('CXX') or ', '.join(USUAL)})")
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        if is_whole(path, compiler):
            return
        built = Path(scratch) / path.name
        compiler.run([*arguments, *(str(source) for source in sorted(sources.glob("*.cpp"))), "-o", str(built)])
        record = {"compiler": compiler.version, "sha256": hashlib.sha256(built.read_bytes()).hexdigest()}
        record_path(built).write_text(json.dumps(record))
        built.replace(path)
        record_path(built).replace(record_path(path))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; a process that dies lets it go."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
