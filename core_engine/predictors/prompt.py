"""The conversation that asks a predictor which generates text about one row of inputs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from core_engine.contracts import Scalar
from core_engine.errors import InvalidRequest
from core_engine.predictors.declaration import LMGenerate, Predictor


def conversation(predictor: Predictor, inputs: Mapping[str, Scalar]) -> list[dict[str, str]]:
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
    try:
        asked = model.prompt.format_map(inputs)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise InvalidRequest(f"the prompt of {predictor.id} cannot be filled in: {error!r}", field="inputs") from None
    return [{"role": "system", "content": model.system_prompt}, {"role": "user", "content": asked}]
