"""Keeps converted weights on disk, so that a model is quantised once: safetensors files, mapped at the next load.

A file is named `<key>.<digest>.safetensors`. The key names what is in it: source, scheme and version of this format.
The digest is that of all its bytes and is checked before a file is used; one that does not fit is removed and built
again. Writers need no lock: a file comes into its place whole, and two that convert the same write the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from core_engine.llm.quantised_weights import QuantisedWeights, Scheme
from core_engine.llm.weights_epoch import weights_epoch
from kernels.quantise import GroupQuantised

FORMAT = 1  # another number for every change of what a converted weight is
PARTS = ("codes", "scales", "minimums")

log = structlog.get_logger()


def default_cache_folder() -> Path:
    """`headrace/weights` in the user's cache folder, as the XDG base directory specification has it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "weights"


def cached(folder: Path, path: Path, scheme: Scheme, make: Callable[[], QuantisedWeights]) -> QuantisedWeights:
    """The weights of the model at `path` by `scheme`, mapped from `folder`; made and kept there if they are not there.

    A folder that cannot be written costs the conversion every time, with a line in the log, and nothing else.
    """
    key = cache_key(path, scheme)
    for file in sorted(folder.glob(f"{key}.*.safetensors")):
        if (found := _read(file)) is not None:
            return found
    weights = make()
    try:
        _write(folder, key, weights)
    except OSError as error:
        log.warning("weights_not_cached", folder=str(folder), error=str(error))
    return weights


def cache_key(path: Path, scheme: Scheme) -> str:
    """Names source, scheme and format. Of the source its name, size, pieces (`weights_epoch`) and time of change."""
    files = [path, *path.iterdir()] if path.is_dir() else [path]
    changed_ns = max(file.stat().st_mtime_ns for file in files)
    return weights_epoch(path, f"{scheme}, format {FORMAT}, changed {changed_ns}")


def _read(file: Path) -> QuantisedWeights | None:
    """Its tensors are views of the mapped file. None for one that is not what its name promises: it is removed.

    The linear weights have a mapping of their own, which goes with them when a decoder has packed them.
    """
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != file.name.split(".")[1]:
            raise ValueError(f"its contents have the digest {digest}")
        with safe_open(file, framework="pt") as of_linears, safe_open(file, framework="pt") as of_others:
            groups = json.loads(of_linears.metadata()["groups"])
            mappings = {name: of_linears if "/" in name else of_others for name in of_linears.keys()}  # noqa: SIM118
            return _joined({name: mapping.get_tensor(name) for name, mapping in mappings.items()}, groups)
    except (OSError, SafetensorError, ValueError) as error:
        log.warning("cached_weights_damaged", file=str(file), error=str(error), action="built again")
        with suppress(OSError):  # gone, or in a folder that cannot be written: it is not used either way
            file.unlink()
        return None


def _write(folder: Path, key: str, weights: QuantisedWeights) -> None:
    """Raises `OSError` if the folder cannot be made or has no room."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    groups = {name: linear.group for name, linear in sorted(weights.linears.items())}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as room:
        written = Path(room) / "weights"
        try:
            save_file(_split(weights), written, {"groups": json.dumps(groups)})
        except SafetensorError as error:
            raise OSError(str(error)) from None
        with written.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        written.replace(folder / f"{key}.{digest}.safetensors")


def _split(weights: QuantisedWeights) -> dict[str, torch.Tensor]:
    """Every tensor by a name; a linear weight's have its name, a slash and their own."""
    tensors = dict(weights.tensors)
    for name, linear in weights.linears.items():
        parts = {f"{name}/{part}": getattr(linear, part) for part in PARTS}
        tensors |= {part: tensor for part, tensor in parts.items() if tensor is not None}
    return tensors


def _joined(tensors: dict[str, torch.Tensor], groups: dict[str, int]) -> QuantisedWeights:
    """The opposite of `_split`."""
    linears = {}
    for name, group in groups.items():
        codes, scales, minimums = (tensors.pop(f"{name}/{part}", None) for part in PARTS)
        assert codes is not None, name
        assert scales is not None, name
        linears[name] = GroupQuantised(codes, scales, minimums, 8 if codes.dtype == torch.int8 else 4, group)
    return QuantisedWeights(linears, tensors)
