from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.tokenizer import Tokenizer
from core_engine.simulation.trace import PREFIX_TOKENS, TraceRow
from headrace.loadgen.prompts import Prompt, RandomPrompts, read_bodies, read_prompts

TOKENIZER = Tokenizer.from_path(default_model_path())
WORDS = RandomPrompts(TOKENIZER, seed=3)


@given(st.integers(1, 300), st.integers(1, 50))
def test_a_random_prompt_has_as_many_tokens_as_asked_for(prompt_tokens: int, output_tokens: int) -> None:
    first, second = WORDS.of_length(prompt_tokens, output_tokens, 2)
    assert len(TOKENIZER.encode(f" {first.text}")) == prompt_tokens
    assert first.output_tokens == output_tokens
    assert first.text != second.text or prompt_tokens < 3


def test_the_seed_makes_the_prompts() -> None:
    assert RandomPrompts(TOKENIZER, seed=3).of_length(20, 1, 3) == WORDS.of_length(20, 1, 3)
    assert RandomPrompts(TOKENIZER, seed=4).of_length(20, 1, 3) != WORDS.of_length(20, 1, 3)


def test_rows_with_a_prefix_in_common_begin_with_the_same_words() -> None:
    rows = [TraceRow(PREFIX_TOKENS + 40, 5, 0.0, (7, 8)), TraceRow(PREFIX_TOKENS + 90, 6, 0.0, (7, 9))]
    one, other = (prompt.text.split() for prompt in WORDS.of_trace(rows))
    assert one[:PREFIX_TOKENS] == other[:PREFIX_TOKENS]
    assert one[PREFIX_TOKENS:] != other[PREFIX_TOKENS : len(one)]
    assert (len(one), len(other)) == (PREFIX_TOKENS + 40, PREFIX_TOKENS + 90)


class FewWords:
    """A tokenizer whose words all fall apart."""

    token_bytes = (b" the", b" flight")

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def test_a_vocabulary_without_words_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="too few words of one token; give the prompts by --prompts"):
        RandomPrompts(FewWords(), seed=0)  # type: ignore[arg-type]


def test_bodies_are_sent_as_they_stand_in_the_file(tmp_path: Path) -> None:
    rows = [{"inputs": {"origin": "JFK"}, "budget_ms": 45}, {"inputs": {"origin": "Orly é"}}]
    path = tmp_path / "bodies.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [json.loads(body) for body in read_bodies(path)] == rows


def test_a_prompts_own_length_gives_way_to_the_option(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "output_tokens": 7}\n{"prompt": "two", "output_tokens": 9}\n')
    assert read_prompts(path, None) == [Prompt("one", 7), Prompt("two", 9)]
    assert read_prompts(path, 3) == [Prompt("one", 3), Prompt("two", 3)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ('{"prompt": "a", "output_tokens": 1}\n{nonsense', "line 2: not JSON"),
        ("[1]", "line 1: .* expected a JSON object"),
        ('{"text": "a"}', "line 1: prompt = None, expected text"),
        ('{"prompt": "a"}', "line 1: output_tokens = None, expected at least 1"),
        ('{"prompt": "a", "output_tokens": 0}', "line 1: output_tokens = 0"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused_by_its_line(text: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=match):
        read_prompts(path, None)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone.jsonl cannot be read"):
        read_bodies(tmp_path / "gone.jsonl")
