"""What a step's run gives back, by attempt id. No torch: the engine hands it on."""

from __future__ import annotations

from dataclasses import dataclass, field

from core_engine.contracts import TokenLogprob
from core_engine.errors import HeadraceError


@dataclass(slots=True)
class StepResult:
    """`tokens`: the next token of every sequence that samples, after those of its draft that are `accepted`, if any.

    The others only where they were asked for; `logprobs` has one entry per new token.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    prompt_logprobs: dict[str, tuple[TokenLogprob | None, ...]] = field(default_factory=dict)
    heads: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of every sequence whose head is complete
    failures: dict[str, HeadraceError] = field(default_factory=dict)  # of what cannot go on; nobody else is hurt
