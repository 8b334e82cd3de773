"""Speculative decoding as the settings ask for it: who proposes drafts, and how long they may get."""

from __future__ import annotations

from core_engine.errors import ConfigurationError
from core_engine.llm.model_decoder import Dials, load_decoder
from core_engine.llm.runner import Runner
from core_engine.llm.speculation.control import Speculation
from core_engine.llm.speculation.draft_model import DraftModel
from core_engine.llm.speculation.prompt_lookup import PromptLookup
from core_engine.settings import EngineSettings


def build_speculation(
    settings: EngineSettings, dials: Dials, runner: Runner, context_tokens: int
) -> Speculation | None:
    """None where it is off. A draft model gets the model's `dials`, and a cache of as many blocks.

    Raises:
        ConfigurationError: a draft model that is not named, not asked for, cannot be loaded or does not fit the model.
    """
    path = settings.draft_model_path
    if settings.speculation != "draft_model":
        if path is not None:
            raise ConfigurationError(
                f"HEADRACE_ENGINE__DRAFT_MODEL_PATH = {path}: expected none, or HEADRACE_ENGINE__SPECULATION = "
                f"draft_model instead of {settings.speculation}"
            )
        if settings.speculation == "off":
            return None
        return Speculation(PromptLookup(runner.sampler.num_allowed), settings.speculation_max_tokens)
    if path is None:
        raise ConfigurationError(
            "HEADRACE_ENGINE__SPECULATION = draft_model: expected HEADRACE_ENGINE__DRAFT_MODEL_PATH to name one"
        )
    model = load_decoder(path, dials)
    for name, own, needed in (
        ("vocab_size", model.config.vocab_size, runner.decoder.config.vocab_size),
        ("max_positions", min(model.config.max_positions, context_tokens), context_tokens),
    ):
        if own != needed:
            raise ConfigurationError(
                f"HEADRACE_ENGINE__DRAFT_MODEL_PATH = {path}: its {name} is {own}, expected {needed}, as the model has"
            )
    cache = runner.cache
    drafts = DraftModel(model.decoder, runner.sampler, cache.num_blocks, cache.block_size)
    return Speculation(drafts, settings.speculation_max_tokens)
