"""The question that a predictor asks the language model's labels, in token ids: prompt, labels, and what never changes.

Runs in the calling process, which tokenises. Beside the tokenizer it knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core_engine.contracts import Head, HeadKind, Scalar
from core_engine.predictors.declaration import LMScore, Predictor
from core_engine.predictors.prompt import question, template

if TYPE_CHECKING:
    from core_engine.llm.tokenizer import Tokenizer

MAX_VERSIONS = 256
FILLERS = ("0", "Zebra")  # two values that begin with different tokens


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt. Its first `template_tokens` are the same in every prompt of the predictor."""

    token_ids: tuple[int, ...]
    template_tokens: int
    head: Head


@dataclass(frozen=True, slots=True)
class _Template:
    """What a version's prompts have in common; `leading` tokens lie wholly before the first value."""

    predictor: Predictor
    leading: tuple[int, ...]
    head: Head


class LabelPrompts:
    """Prompts of every version, by one tokenizer; what versions have in common is made once, the oldest out first."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._templates: dict[str, _Template] = {}

    def ask(self, predictor: Predictor, inputs: Mapping[str, Scalar], features: Mapping[str, Any]) -> Asked:
        """The prompt about one row: checked inputs, and features as the predictor judges them.

        Raises:
            InvalidRequest: a value that cannot be written as the prompt asks, or a model without a chat template.
        """
        common = self._template(predictor)
        ids = tuple(self._tokenizer.apply_chat_template(question(predictor, inputs, features)))
        return Asked(ids, len(common_prefix(ids, common.leading)), common.head)

    def _template(self, predictor: Predictor) -> _Template:
        known = self._templates.get(predictor.id)
        if known is not None and (known.predictor is predictor or known.predictor == predictor):
            return known
        self._templates.pop(predictor.id, None)
        self._templates[predictor.id] = made = self._make(predictor)
        if len(self._templates) > MAX_VERSIONS:
            del self._templates[next(iter(self._templates))]
        return made

    def _make(self, predictor: Predictor) -> _Template:
        model = predictor.model
        assert isinstance(model, LMScore)
        one, other = (tuple(self._tokenizer.apply_chat_template(template(predictor, filler))) for filler in FILLERS)
        labels = tuple(tuple(self._tokenizer.encode(label.text)) for label in model.labels)
        head = Head(HeadKind.SCORE, labels=labels, normalise=model.normalise)
        return _Template(predictor, common_prefix(one, other), head)


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The longest common beginning."""
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]
