"""Speculative decoding by settings: every architecture answers as without it; what cannot be built is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core_engine.contracts import Pool
from core_engine.errors import ConfigurationError
from core_engine.settings import EngineSettings
from headrace.engine import build_engine
from tests.core_engine.llm.families import LONG, hf_model, save
from tests.core_engine.llm.tiny import request, run_all

SMALL: dict[str, Any] = {
    "kv_cache_bytes": 1 << 20,
    "max_context_tokens": 64,
    "block_size": 4,
    "weights": "float32",
    "kernel": "reference",
}


def saved(folder: Path, case: str, **options: int) -> Path:
    folder.mkdir()
    return save(hf_model(case, **options), folder)


@pytest.mark.parametrize("speculation", ["prompt_lookup", "draft_model"])
@pytest.mark.parametrize("case", ["llama", "mistral_window", "qwen3_yarn", "llama_dynamic"])
def test_every_architecture_answers_as_without_it(tmp_path: Path, case: str, speculation: str) -> None:
    model = saved(tmp_path / "model", case)
    settings = {**SMALL, "model_path": model}
    plain, _ = build_engine(EngineSettings(**settings))
    path = model if speculation == "draft_model" else None
    engine, _ = build_engine(EngineSettings(**settings, speculation=speculation, draft_model_path=path))
    assert engine.scheduler.speculation is not None
    engine.scheduler.speculation._is_adaptive = False
    requests = [request((LONG[:n] * 2)[:n], 20) for n in (3, 9, 14, 30)]
    assert run_all(engine, requests) == run_all(plain, requests)
    counters = engine.scheduler.counters[Pool.INTERACTIVE]
    assert counters.drafts > 0
    if speculation == "draft_model":  # itself
        assert counters.accepted_tokens == counters.draft_tokens


def test_it_is_off_by_default(tmp_path: Path) -> None:
    engine, _ = build_engine(EngineSettings(model_path=saved(tmp_path / "model", "llama"), **SMALL))
    assert engine.scheduler.speculation is None


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"speculation": "draft_model"}, "HEADRACE_ENGINE__DRAFT_MODEL_PATH to name one"),
        ({"draft_model_path": "other"}, "SPECULATION = draft_model instead of off"),
        ({"draft_model_path": "other", "speculation": "prompt_lookup"}, "instead of prompt_lookup"),
        ({"draft_model_path": "other", "speculation": "draft_model"}, "vocab_size is 120, expected 97"),
        ({"draft_model_path": "short", "speculation": "draft_model"}, "max_positions is 32, expected 64"),
    ],
)
def test_what_cannot_be_built_is_named(tmp_path: Path, dials: dict[str, str], said: str) -> None:
    model = saved(tmp_path / "model", "llama")
    saved(tmp_path / "other", "llama", vocab_size=120)
    saved(tmp_path / "short", "llama", max_position_embeddings=32)
    if "draft_model_path" in dials:
        dials["draft_model_path"] = str(tmp_path / dials["draft_model_path"])
    with pytest.raises(ConfigurationError, match=said):
        build_engine(EngineSettings(model_path=model, **SMALL, **dials))
