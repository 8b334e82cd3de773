"""Same weights, same name; anything else, another one."""

from __future__ import annotations

from pathlib import Path

from core_engine.llm.weights_epoch import PIECE_BYTES, PIECES, weights_epoch

SIZE = 3 * PIECES * PIECE_BYTES  # more than is read


def test_the_same_contents_have_the_same_name_wherever_they_lie(tmp_path: Path) -> None:
    names = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "model.safetensors").write_bytes(bytes(SIZE))
        names += [weights_epoch(tmp_path / place, "bfloat16"), weights_epoch(tmp_path / place, "bfloat16")]
    assert len(set(names)) == 1


def test_other_contents_another_size_another_precision_or_another_file_is_another_name(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(SIZE))
    names = {weights_epoch(file, "bfloat16"), weights_epoch(file, "float32")}
    changed = bytearray(SIZE)
    changed[SIZE * 17 // PIECES + 5] = 1
    file.write_bytes(bytes(changed))
    names.add(weights_epoch(file, "bfloat16"))
    file.write_bytes(bytes(SIZE + 1))
    names.add(weights_epoch(file, "bfloat16"))
    names.add(weights_epoch(tmp_path, "bfloat16"))
    (tmp_path / "adapter.safetensors").write_bytes(b"1")
    names.add(weights_epoch(tmp_path, "bfloat16"))
    assert len(names) == 5  # a folder with one file is named as that file is


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"a")
    one = weights_epoch(file, "float32")
    file.write_bytes(b"b")
    assert weights_epoch(file, "float32") != one
