from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from core_engine.quality.texts import LENGTHS, MIN_LENGTH, Text, cut, default_text, read_text


def test_the_default_text_is_prose_named_by_its_python_and_the_same_every_time() -> None:
    text = default_text()
    assert text == default_text()
    assert "language reference in Python 3." in text.name
    paragraphs = text.content.split("\n\n")
    assert len(paragraphs) == len(set(paragraphs)) > 500
    assert all(each.endswith((".", ":")) and not each.startswith(" ") for each in paragraphs)
    assert len(text.content) > 120_000  # over 20,000 tokens of any tokenizer with words in it
    assert ">>>" not in text.content.split()
    assert "::=" not in text.content.split()


def test_a_files_text_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("naïve café\n", "utf-8")
    assert read_text(path) == Text("mine.txt", "naïve café\n")
    assert read_text(path).sha256 == "805f7469e3c6951641102490db37edf36ede14c2720fa69af1005b79b61dedab"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"text .*mine\.txt cannot be read"):
        read_text(path)


@given(num_tokens=st.integers(MIN_LENGTH, 30_000), most=st.integers(1, 30_000), context=st.integers(MIN_LENGTH, 4096))
def test_sequences_are_the_texts_tokens_in_order_within_every_bound(num_tokens: int, most: int, context: int) -> None:
    ids = list(range(num_tokens))
    if min(num_tokens, most) < MIN_LENGTH:
        with pytest.raises(ConfigurationError, match="expected at least 64"):
            cut(ids, most, context)
        return
    sequences = cut(ids, most, context)
    joined = [token for each in sequences for token in each]
    assert joined == ids[: len(joined)]
    assert min(num_tokens, most) - len(joined) < MIN_LENGTH
    assert all(MIN_LENGTH <= len(each) <= min(context, max(LENGTHS)) for each in sequences)


def test_twenty_thousand_tokens_have_long_and_short_sequences() -> None:
    lengths = [len(each) for each in cut(list(range(20_480)), 20_480, 4096)]
    assert len(lengths) == 32
    assert {lengths.count(each) for each in set(LENGTHS)} == {4, 8, 16}
