"""A name for a set of weights: KV blocks of other weights, or of the same in another precision, must not be found.

Taken from the contents, so that engines on several machines that loaded the same files agree on it and a router can
tell what each has cached. Of each file its name, its size and pieces spread evenly over it: gigabytes need not be read.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PIECES = 64
PIECE_BYTES = 1 << 16


def weights_epoch(path: Path, precision: str) -> str:
    """Of the model file, or of every file in the folder, at `path`."""
    digest = hashlib.blake2b(precision.encode(), digest_size=16)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            size = file.stat().st_size
            digest.update(f"\0{file.name}\0{size}\0".encode())
            with file.open("rb") as opened:
                for piece in range(PIECES):
                    opened.seek(size * piece // PIECES)
                    digest.update(opened.read(PIECE_BYTES))
    return digest.hexdigest()
