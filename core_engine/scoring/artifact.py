"""Model files by digest: written atomically, read once, and refused where the digest differs.

Every loader of this folder takes its bytes from `read_artifact`, so that what was checked is what is parsed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from core_engine.errors import ModelFileError
from core_engine.predictors.declaration import Artifact


def read_artifact(path: str | Path, sha256: str) -> bytes:
    """The bytes of `path`.

    Raises:
        ModelFileError: the file cannot be read, or its SHA-256 is not `sha256`.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"model file {path} cannot be read: {error.strerror}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ModelFileError(f"model file {path} has SHA-256 {found[:12]}..., but {sha256[:12]}... was declared")
    return data


def write_artifact(path: str | Path, data: bytes) -> Artifact:
    """Put `data` at `path` in one step (a reader sees the old file or the new one) and return its digest."""
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return Artifact(path=str(target), sha256=hashlib.sha256(data).hexdigest())
