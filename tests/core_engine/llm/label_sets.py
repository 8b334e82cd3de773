"""Sets of labels for hypothesis: few tokens, so that beginnings are shared; and what they mean, by brute force."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from core_engine.contracts import Normalise

Labels = tuple[tuple[int, ...], ...]
NextLogprobs = Callable[[tuple[int, ...]], Sequence[float]]  # of every token after some tokens of a label

TOKENS = (11, 40, 7, 93)


def label_sets(normalise: Normalise, tokens: Sequence[int] = TOKENS) -> st.SearchStrategy[Labels]:
    """Distinct labels of one to three tokens; none begins another where the choice is between labels."""
    label = st.lists(st.sampled_from(tokens), min_size=1, max_size=3).map(tuple)
    if normalise is Normalise.VOCAB:
        return st.lists(label, min_size=1, max_size=8, unique=True).map(tuple)
    sets = st.lists(label, min_size=2, max_size=12, unique=True).map(_unnested)
    return sets.filter(lambda labels: len(labels) >= 2)


def _unnested(labels: list[tuple[int, ...]]) -> Labels:
    return tuple(one for one in labels if not any(o != one and o[: len(one)] == one for o in labels))


def probabilities(labels: Labels, normalise: Normalise, next_logprobs: NextLogprobs) -> list[float]:
    """P of each label, one choice after the other, each over the tokens that some label has at that place."""
    return [
        math.prod(_choice(labels, label, at, normalise, next_logprobs) for at in range(len(label))) for label in labels
    ]


def _choice(
    labels: Labels, label: tuple[int, ...], at: int, normalise: Normalise, next_logprobs: NextLogprobs
) -> float:
    logprobs, own = next_logprobs(label[:at]), label[at]
    rivals = {other[at] for other in labels if other[:at] == label[:at] and len(other) > at}
    over = rivals if normalise is Normalise.LABELS else range(len(logprobs))
    return math.exp(logprobs[own]) / math.fsum(math.exp(logprobs[token]) for token in over)
