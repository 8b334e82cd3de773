"""How many leading tokens of a prompt are a predictor's own: those may be shared by tenants in the engine's cache.

Runs in the calling process, which tokenises. For predictors that write; what labels are asked by is `label_prompt`.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from core_engine.predictors.declaration import LMGenerate, Predictor
from core_engine.predictors.label_prompt import FILLERS, MAX_VERSIONS, common_prefix

if TYPE_CHECKING:
    from core_engine.llm.tokenizer import Tokenizer


class SystemPrompts:
    """Token ids that every conversation with a version begins with, made once per version."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._leading: dict[tuple[str, str], tuple[int, ...]] = {}

    def template_tokens(self, predictor: Predictor, prompt_token_ids: Items[int]) -> int:
        """Leading tokens of a prompt that the owner wrote: what two conversations about different things share."""
        model = predictor.model
        assert isinstance(model, LMGenerate)
        key = (predictor.id, model.system_prompt)
        if key not in self._leading:
            self._leading[key] = common_prefix(*(self._render(model, filler) for filler in FILLERS))
            if len(self._leading) > MAX_VERSIONS:
                del self._leading[next(iter(self._leading))]
        return len(common_prefix(tuple(prompt_token_ids), self._leading[key]))

    def _render(self, model: LMGenerate, filler: str) -> tuple[int, ...]:
        turns = [{"role": "system", "content": model.system_prompt}, {"role": "user", "content": filler}]
        return tuple(self._tokenizer.apply_chat_template(turns))
