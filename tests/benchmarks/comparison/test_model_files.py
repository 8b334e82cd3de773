from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.comparison.model_files import EMBEDDING, write_gguf


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    rng = np.random.default_rng(0)
    writer.add_tensor(EMBEDDING, rng.standard_normal((4, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", rng.standard_normal((4, 64), np.float32))
    writer.add_tensor("output_norm.weight", rng.standard_normal(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("kind", "embedding", "matrix"),
    [("f16.gguf", "F16", "F16"), ("q8_0.gguf", "Q8_0", "Q8_0"), ("q4_0.gguf", "Q8_0", "Q4_0")],
)
def test_matrices_change_their_format_and_nothing_else_changes(
    source: Path, tmp_path: Path, kind: str, embedding: str, matrix: str
) -> None:
    target = tmp_path / kind
    write_gguf(source, target, kind)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(target)
    assert [t.tensor_type.name for t in after.tensors] == [embedding, matrix, "F32"]
    assert after.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert after.fields["llama.block_count"].contents() == 3
    for old, new in zip(before.tensors, after.tensors, strict=True):
        restored = gguf.quants.dequantize(new.data, new.tensor_type)
        assert np.abs(restored - old.data).max() <= np.abs(old.data).max() / 7
    assert np.array_equal(after.tensors[2].data, before.tensors[2].data)
