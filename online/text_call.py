"""A request for text that was understood: one generation for each choice that it wants.

A choice of several is an attempt of its own, `<attempt>.<index>`: the engine charges each for what it used, and a fact
of each joins it in the ledger. Together they are one delivery.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from core_engine.contracts import Deadline, GenerateRequest
from core_engine.errors import EngineUnavailable, InvalidRequest
from core_engine.llm.choices import MAX_CHOICES, choice
from core_engine.predictors.declaration import Predictor
from online.openai_bodies import TextBody
from online.services import Services


@dataclass(frozen=True, slots=True)
class TextCall:
    """`requests` are in the order of the choices: prompt by prompt, `n` of each."""

    model: str
    requests: tuple[GenerateRequest, ...]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    wants_times: bool = False

    @classmethod
    def of(cls, body: TextBody, prompts: Items[GenerateRequest], max_streams: int) -> TextCall:
        """`prompts` have the call's own attempt id.

        Raises:
            InvalidRequest: more choices than a door with `max_streams` could ever take.
        """
        n, most = body.n or 1, min(MAX_CHOICES, max_streams)
        if n * len(prompts) > most:
            of_each = f" for each of {len(prompts)} prompts" if len(prompts) > 1 else ""
            message = f"n = {n}{of_each}: expected at most {most} choices"
            raise InvalidRequest(message, field="n", value=n, expected=f"at most {most} choices")
        return cls(
            model=body.model,
            requests=attempts(prompts, n),
            n=n,
            stream=body.stream is True,
            include_usage=body.stream_options is not None and body.stream_options.include_usage is True,
            wants_times=body.headrace is True,
        )


def attempts(prompts: Items[GenerateRequest], n: int) -> tuple[GenerateRequest, ...]:
    """A request for each choice. The seeds of a prompt's choices do not depend on the prompts before it."""
    if n * len(prompts) == 1:
        return tuple(prompts)
    return tuple(
        replace(choice(prompt, number), attempt_id=f"{prompt.attempt_id}.{at * n + number}")
        for at, prompt in enumerate(prompts)
        for number in range(n)
    )


def deadline_of(arrived_s: float, given_ms: float | None, predictor: Predictor | None) -> Deadline:
    """The caller's budget, or the predictor's; the base model alone has none."""
    budget_ms = given_ms if given_ms is not None else (predictor.budget_ms if predictor else None)
    return Deadline.never() if budget_ms is None else Deadline(arrived_s + budget_ms / 1e3)


def context_tokens(services: Services) -> int:
    """What the engine's model holds. Raises `EngineUnavailable` if no engine has told."""
    if services.client.welcome is None:
        raise EngineUnavailable("no engine answers; try again shortly")
    return services.client.welcome.context_tokens
