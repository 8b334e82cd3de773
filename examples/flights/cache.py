"""A folder that holds what one recipe made of one input, whole or not at all.

It is named by a fingerprint of everything that went in, built beside its place and moved there in one step, and every
file is checked against its digest before it is used: a second run is instant, a broken folder is built again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from core_engine.errors import ConfigurationError

_DIGESTS = "digests.json"


def fingerprint(files: Iterable[Path], modules: Iterable[str], packages: Iterable[str]) -> str:
    """SHA-256 over the content of data files and of modules' source, and the versions of packages.

    Raises:
        ConfigurationError: a data file cannot be read.
    """
    digest = hashlib.sha256()
    sources = [Path(spec.origin) for m in modules if (spec := importlib.util.find_spec(m)) and spec.origin]
    for path in (*files, *sources):
        digest.update(f"{path.name} {_digest(path)}\n".encode())
    for name in packages:
        digest.update(f"{name} {_version(name)}\n".encode())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigurationError(f"file {path} cannot be read: {error.strerror}") from None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def is_intact(folder: Path) -> bool:
    """Whether every file that was built is there with the content that it was built with."""
    try:
        digests = msgspec.json.decode((folder / _DIGESTS).read_bytes(), type=dict[str, str])
        return bool(digests) and all(_digest(folder / name) == digest for name, digest in digests.items())
    except (OSError, msgspec.DecodeError, ConfigurationError):
        return False


def build(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a new folder and put it at `folder`, in place of what is there.

    Of two that build at once, the later one wins; both leave a whole folder with the same content. Where `fill` raises,
    nothing is left behind.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        fill(partial)
        names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())
        digests = {name: _digest(partial / name) for name in names}
        (partial / _DIGESTS).write_bytes(msgspec.json.encode(digests))
        _put(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(partial: Path, folder: Path) -> None:
    """A folder can be renamed onto a free name only, so what is there is moved away first."""
    away = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
    try:
        if folder.exists():
            folder.rename(away / folder.name)
        partial.rename(folder)
    finally:
        shutil.rmtree(away, ignore_errors=True)
