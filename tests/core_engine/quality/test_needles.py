from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from core_engine.errors import ConfigurationError
from core_engine.quality.needles import DEPTHS, FACTS, LENGTHS, NeedleCase, NeedleReport, needles, recall

VOCAB = 256


def encode(text: str) -> list[int]:
    return list(text.encode())


class Answers:
    """Recalls perfectly up to some length and depth from which on it knows nothing."""

    def __init__(self, sure: float, forgets_from: int = 1 << 30) -> None:
        self._sure, self._forgets_from = sure, forgets_from

    def logits(self, token_ids: Sequence[int], first: int = 0) -> Iterator[torch.Tensor]:
        following = torch.tensor([*token_ids[first + 1 :], ord(self._last(token_ids))])
        rows = torch.zeros(len(following), VOCAB)
        if len(token_ids) < self._forgets_from:
            rows[torch.arange(len(following)), following] = self._sure
        yield from torch.split(rows, 3)

    @staticmethod
    def _last(token_ids: Sequence[int]) -> str:
        text = bytes(token_ids).decode()
        (answer,) = [answer for question, answer in FACTS if text.rfind(question) > len(text) - 60]
        return answer[-1]


def text() -> list[int]:
    return encode("It rained all day over the harbour, and nobody came. " * 60)


def test_each_length_and_depth_has_one_with_its_fact_in_place() -> None:
    found = needles(encode, text(), 4096)
    assert [(each.length, each.depth) for each in found] == [(n, d) for n in LENGTHS for d in DEPTHS]
    for each in found:
        assert len(each.token_ids) == each.length
        written = bytes(each.token_ids).decode()
        question, answer = next((q, a) for q, a in FACTS if q in written)
        assert written.count(f"{question}{answer}") == 2
        assert written.endswith(f"\n\n{question}{answer}")
        assert bytes(each.token_ids[-each.answer_tokens :]).decode() == answer
        if each.length >= 1024:  # in a byte a token, fact and question are long beside a shorter text
            assert written.index(question) / each.length == pytest.approx(each.depth, abs=0.1)


def test_a_short_text_or_context_has_those_that_fit() -> None:
    assert {each.length for each in needles(encode, text(), 600)} == {256, 512}
    assert {each.length for each in needles(encode, text()[:200], 4096)} == {200}
    with pytest.raises(ConfigurationError, match="have room for 100 tokens, a needle needs 128"):
        needles(encode, text()[:100], 4096)


def test_what_is_forgotten_at_length_shows_as_a_drop_there_alone() -> None:
    found = recall(Answers(9.0), Answers(9.0, forgets_from=1000), needles(encode, text(), 4096))
    assert len(found.recalled) == 12
    assert found.kept == 0.5
    for case in found.cases:
        assert (case.drop > 10) == (case.length >= 1000)
    assert found.worst_drop == max(case.drop for case in found.cases)


def test_only_what_the_reference_recalls_is_judged() -> None:
    found = recall(Answers(9.0, forgets_from=500), Answers(9.0), needles(encode, text(), 4096))
    assert {case.length for case in found.recalled} == {256}
    assert found.kept == 1
    assert found.worst_drop == pytest.approx(0, abs=1e-4)


def test_where_nothing_is_recalled_nothing_is_measured() -> None:
    case = NeedleCase(256, 0.5, reference_logprob=-9.0, logprob=-20.0, is_recalled=False, is_kept=False)
    found = NeedleReport((case,))
    assert (found.worst_drop, found.kept) == (None, None)
