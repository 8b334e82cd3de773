"""The conversation that asks the language model about one row: for a text, or for one of a predictor's labels. Pure."""

from __future__ import annotations

import string
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from core_engine.contracts import Scalar
from core_engine.errors import InvalidRequest
from core_engine.predictors.declaration import LMGenerate, LMScore, Predictor

Conversation = list[dict[str, str]]
UNKNOWN = "unknown"  # how a prompt to labels writes a value that is not there


class Written(str):
    """Stands for a value: written as it is, however the prompt formats it."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


def conversation(predictor: Predictor, inputs: Mapping[str, Scalar]) -> Conversation:
    """The platform's own system prompt, then the declared prompt with the checked inputs in it.

    Raises:
        InvalidRequest: the predictor has no prompt for rows, or an input cannot be written as the prompt asks.
    """
    model = predictor.model
    if not isinstance(model, LMGenerate) or not model.prompt:
        raise InvalidRequest(
            f"predictor {predictor.id} has no prompt for rows of inputs",
            field="predictor",
            value=predictor.name,
            expected="a predictor that declares a prompt",
        )
    return _turns(model, _fill(predictor, model.prompt, inputs))


def question(predictor: Predictor, inputs: Mapping[str, Scalar], features: Mapping[str, Any]) -> Conversation:
    """The same for a predictor that scores labels, with features beside the inputs: `{view.feature}` in the prompt.

    What is not there is written as "unknown", whatever its format.

    Raises:
        InvalidRequest: a value cannot be written as the prompt asks.
    """
    model = predictor.model
    assert isinstance(model, LMScore)
    values: dict[str, Any] = {name: _or_unknown(value) for name, value in inputs.items()}
    return _turns(model, _fill(predictor, model.prompt, values | _by_view(features)))


def template(predictor: Predictor, filler: str) -> Conversation:
    """The same with `filler` in the place of every value."""
    inputs = {field.name: Written(filler) for field in predictor.inputs}
    return question(predictor, inputs, {use.ref: Written(filler) for use in predictor.features})


def prompt_fields(prompt: str) -> set[str]:
    """The names that a prompt has values for; raises ValueError where it is no format string."""
    return {name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None}


def _or_unknown(value: Any) -> Any:
    return Written(UNKNOWN) if value is None else value


def _by_view(features: Mapping[str, Any]) -> dict[str, SimpleNamespace]:
    views: dict[str, dict[str, Any]] = {}
    for ref, value in features.items():
        view, _, name = ref.partition(".")
        views.setdefault(view, {})[name] = _or_unknown(value)
    return {view: SimpleNamespace(**values) for view, values in views.items()}


def _fill(predictor: Predictor, prompt: str, values: Mapping[str, Any]) -> str:
    try:
        return prompt.format_map(values)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise InvalidRequest(f"the prompt of {predictor.id} cannot be filled in: {error!r}", field="inputs") from None


def _turns(model: LMGenerate | LMScore, asked: str) -> Conversation:
    return [{"role": "system", "content": model.system_prompt}, {"role": "user", "content": asked}]
