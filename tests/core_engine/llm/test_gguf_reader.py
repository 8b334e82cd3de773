"""The header of a GGUF as the gguf package writes and reads it; whatever is done to a file, one clear error."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Type
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ModelFileError
from core_engine.llm.gguf_reader import GgufFile, default_model_path, open_gguf

VALUES: dict[str, tuple[Any, Type]] = {
    "u8": (255, Type.UINT8),
    "i8": (-128, Type.INT8),
    "u16": (65_535, Type.UINT16),
    "i16": (-32_768, Type.INT16),
    "u32": (4_294_967_295, Type.UINT32),
    "i32": (-2_147_483_648, Type.INT32),
    "u64": (18_446_744_073_709_551_615, Type.UINT64),
    "i64": (-9_223_372_036_854_775_808, Type.INT64),
    "f32": (0.5, Type.FLOAT32),
    "f64": (0.1, Type.FLOAT64),
    "flag": (True, Type.BOOL),
    "text": ("naïve 日本語 🙂", Type.STRING),
}
ARRAYS: dict[str, list[Any]] = {
    "numbers": [1, -2, 3],
    "reals": [0.5, 1.5],
    "words": ["a", "", "ünï"],
    "flags": [True, False],
}


def written(path: Path, alignment: int = 32) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, (value, kind) in VALUES.items():
        writer.add_key_value(key, value, kind)
    for key, values in ARRAYS.items():
        writer.add_array(key, values)
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_values_of_every_type_come_back(tmp_path: Path, alignment: int) -> None:
    file = open_gguf(written(tmp_path / "m.gguf", alignment))
    assert {key: file.field(key) for key in VALUES} == {key: value for key, (value, _) in VALUES.items()}
    assert {key: file.field(key) for key in ARRAYS} == ARRAYS
    first, second = file.tensors["first"], file.tensors["second"]
    assert (first.shape, second.shape) == ((2, 3), (5,))
    assert file.bytes_of(first, 24).view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert file.bytes_of(second, 10).view(np.float16).tolist() == [0, 1, 2, 3, 4]
    assert first.start % alignment == second.start % alignment == 0


@pytest.mark.weights
def test_the_real_header_is_the_one_that_the_gguf_package_reads() -> None:
    path = default_model_path()
    file, reader = open_gguf(path), gguf.GGUFReader(path)
    theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert file.fields == theirs
    assert len(file.fields["tokenizer.ggml.tokens"]) == 49_152
    for tensor in reader.tensors:
        ours = file.tensors[tensor.name]
        assert (ours.shape, ours.kind) == (tuple(tensor.shape[::-1].tolist()), tensor.tensor_type)
        assert np.array_equal(file.bytes_of(ours, tensor.n_bytes), tensor.data.reshape(-1).view(np.uint8))


def test_a_key_that_is_absent_is_named_or_has_its_default(tmp_path: Path) -> None:
    file = open_gguf(written(tmp_path / "m.gguf"))
    assert file.field("none", 7) == 7
    with pytest.raises(ModelFileError, match=r"m\.gguf: key none is missing"):
        file.field("none")


def test_a_tensor_that_is_not_all_there_is_named(tmp_path: Path) -> None:
    file = open_gguf(written(tmp_path / "m.gguf"))
    with pytest.raises(ModelFileError, match=r"m\.gguf is cut short: tensor second is not all there"):
        file.bytes_of(file.tensors["second"], 1 << 40)


def test_other_versions_and_orders_of_bytes_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for version in (struct.pack("<I", 1), struct.pack("<I", 4), struct.pack(">I", 3)):
        path.write_bytes(whole[:4] + version + whole[8:])
        with pytest.raises(ModelFileError, match=r"version \d+ is unknown; known are \(2, 3\)"):
            open_gguf(path)


def header(*parts: bytes, tensors: int = 0, fields: int = 0) -> memoryview:
    return memoryview(b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + b"".join(parts))


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header(fields=1 << 60), "cut short"),
        (header(tensors=1 << 60), "cut short"),
        (header(struct.pack("<Q", 1 << 60), fields=1), "1152921504606846976 bytes are promised"),
        (header(text(b"k"), struct.pack("<IIQ", 9, 4, 1 << 60), fields=1), "bytes are promised"),
        (header(text(b"k"), struct.pack("<IIQ", 9, 8, 1 << 60), fields=1), "cut short"),
        (header(text(b"k"), struct.pack("<IIQ", 9, 9, 1), fields=1), "type 9 at byte"),
        (header(text(b"k"), struct.pack("<I", 99), fields=1), "type 99 at byte"),
        (header(text(b"\xff"), fields=1), "utf-8"),
        (header(text(b"k"), struct.pack("<IB", 0, 1), text(b"k"), struct.pack("<IB", 0, 1), fields=2), "there twice"),
        (header(text(b"t"), struct.pack("<I", 5), tensors=1), "tensor t has 5 dimensions"),
        (header(text(b"general.alignment"), struct.pack("<II", 4, 0), fields=1), "general.alignment is 0"),
    ],
)
def test_a_header_that_lies_is_one_clear_error(content: memoryview, says: str) -> None:
    with pytest.raises(ModelFileError, match=says) as caught:
        GgufFile(Path("liar.gguf"), content)
    assert "liar.gguf" in str(caught.value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


@given(data=st.data())
def test_a_file_with_any_bytes_changed_or_gone_is_read_or_refused_and_nothing_else(
    whole: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    refusal, tensors = "", {}
    try:
        tensors = GgufFile(Path("m.gguf"), memoryview(bytes(damaged))).tensors
    except ModelFileError as error:
        refusal = str(error)
    assert refusal.startswith("model file m.gguf ") or len(tensors) <= 2
