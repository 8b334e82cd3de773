"""All that is measured of one candidate: tokens, needles, greedy decode. `limits` judges it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core_engine.quality.comparison import compare
from core_engine.quality.greedy import NUM_PROMPTS, NUM_TOKENS, PROMPT_TOKENS, GreedyReport, greedy, prompts
from core_engine.quality.model import PagedModel, StepDecoder
from core_engine.quality.needles import NeedleReport, needles, recall
from core_engine.quality.report import Report
from core_engine.quality.texts import LENGTHS, cut


@dataclass(frozen=True, slots=True)
class Findings:
    tokens: Report
    needles: NeedleReport
    greedy: GreedyReport


@dataclass(frozen=True, slots=True)
class Material:
    """What both models read. `text` is the whole text's token ids; needles and prompts are made of it as well."""

    text: Sequence[int]
    encode: Callable[[str], list[int]]
    max_tokens: int
    max_context: int


def measure(reference: StepDecoder, candidate: StepDecoder, material: Material) -> Findings:
    """Raises `ConfigurationError` for a text that is too short."""
    sequences = cut(material.text, material.max_tokens, material.max_context)
    cases = needles(material.encode, material.text, material.max_context)
    room = max(material.max_context, max(LENGTHS), NUM_PROMPTS * (PROMPT_TOKENS + NUM_TOKENS + 16))
    of, against = PagedModel(reference, room), PagedModel(candidate, room)
    return Findings(
        tokens=compare(of, against, sequences),
        needles=recall(of, against, cases),
        greedy=greedy(of, against, prompts(material.text)),
    )
