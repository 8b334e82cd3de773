"""A Hugging Face folder is a model like any other: the whole engine and the tokenizer take it by its path."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from core_engine.contracts import Pool
from core_engine.errors import ModelFileError
from core_engine.llm.batch_invariant import BatchInvariantDecoder
from core_engine.llm.tokenizer import Tokenizer
from core_engine.settings import EngineSettings
from headrace.engine import build_engine
from headrace.wheels import model_file
from tests.core_engine.llm.families import LONG, hf_model, save
from tests.core_engine.llm.tiny import request, run_all
from tests.core_engine.llm.tokenizer_folders import byte_fallback, write_folder

SMALL: dict[str, int] = {"kv_cache_bytes": 1 << 20, "max_context_tokens": 64, "block_size": 4}


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("case", ["llama", "mistral_window", "qwen2_tied", "qwen3_yarn", "llama_dynamic"])
def test_greedy_generation_is_that_of_transformers(tmp_path: Path, case: str, is_deterministic: bool) -> None:
    model = hf_model(case, eos_token_id=None)
    model.generation_config.eos_token_id = None
    settings = EngineSettings(
        model_path=save(model, tmp_path, 12_000), weights="float32", deterministic=is_deterministic, **SMALL
    )
    engine, info = build_engine(settings)
    assert isinstance(engine.runner.decoder, BatchInvariantDecoder) == is_deterministic
    assert info.vocab_size == 97
    prompts = [LONG[:n] for n in (1, 9, 14, 30)]
    requests = [request(p, 12, pool) for p in prompts for pool in Pool]
    answers = run_all(engine, requests)
    for each in requests:
        ids = torch.tensor([each.prompt_token_ids])
        with torch.inference_mode():
            fresh = copy.deepcopy(model)  # dynamic RoPE remembers the longest that it has seen
            theirs = fresh.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert answers[each.attempt_id] == theirs[0, ids.shape[1] :].tolist()


def test_ends_of_the_folder_end_a_generation(tmp_path: Path) -> None:
    model = hf_model("qwen2")
    model.generation_config.eos_token_id = [5, 7]
    engine, _ = build_engine(EngineSettings(model_path=save(model, tmp_path), weights="float32", **SMALL))
    assert engine.eos_token_ids == {5, 7}


def test_a_folder_holds_model_and_tokenizer(tmp_path: Path) -> None:
    tokenizer = byte_fallback()
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    folder = save(hf_model("llama", vocab_size=size), tmp_path)
    config = (folder / "config.json").read_text()
    write_folder(folder, tokenizer)
    (folder / "config.json").write_text(config)
    settings = EngineSettings(model_path=folder, weights="float32", **SMALL)
    assert model_file(settings) == folder
    engine, info = build_engine(settings)
    ours = Tokenizer.from_path(model_file(settings))
    assert ours.vocab_size == info.vocab_size
    answer = run_all(engine, [request(ours.encode("the other"), 5)]).popitem()[1]
    assert isinstance(ours.decode(answer), str)


def test_a_folder_without_a_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json cannot be read: No such file"):
        build_engine(EngineSettings(model_path=tmp_path, **SMALL))
