"""Log-probabilities on the wire: names of tokens that are no text, offsets in characters, and no infinity."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import TokenLogprob
from core_engine.llm.tokenizer import Tokenizer
from online.logprobs import FLOOR, CompletionLogprobs, TokenNames, chat_logprobs
from tests.core_engine.llm.tiny import EOS, tiny_tokenizer

TINY = tiny_tokenizer()


def logprob(token_id: int, value: float = -0.5, *top: tuple[int, float]) -> TokenLogprob:
    return TokenLogprob(token_id, value, 1, top)


def test_a_control_token_has_its_name_and_no_bytes() -> None:
    (entry,) = chat_logprobs(TokenNames(TINY), [logprob(EOS)])["content"]
    assert (entry["token"], entry["bytes"]) == (TINY.tokens[EOS], None)


def test_a_token_that_the_tokenizer_does_not_have_is_named_by_its_number() -> None:
    (entry,) = chat_logprobs(TokenNames(TINY), [logprob(TINY.vocab_size + 3)])["content"]
    assert (entry["token"], entry["bytes"]) == (f"<token {TINY.vocab_size + 3}>", None)


def test_a_piece_of_a_character_has_its_bytes_and_a_name_of_its_own(tokenizer: Tokenizer) -> None:
    pieces, names = tokenizer.encode("🎈"), TokenNames(tokenizer)
    assert len(pieces) > 1
    content = chat_logprobs(names, [logprob(piece) for piece in pieces])["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "🎈"
    assert all("\ufffd" in entry["token"] for entry in content)
    assert names.distinct(pieces[0]).startswith("bytes:\\x")
    assert len({names.distinct(piece) for piece in pieces}) == len(set(pieces))


def test_what_is_out_of_the_question_is_a_number_that_json_has() -> None:
    asked = logprob(5, -math.inf, (6, -math.inf))
    (entry,) = chat_logprobs(TokenNames(TINY), [asked])["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (FLOOR, FLOOR)
    assert CompletionLogprobs(TINY).say([asked])["token_logprobs"] == [FLOOR]


def test_a_completion_s_token_is_always_among_the_likely_ones() -> None:
    said = CompletionLogprobs(TINY).say([logprob(40, -3.0, (41, -0.1)), logprob(41, -0.1, (41, -0.1))])
    own, other = (TokenNames(TINY).distinct(token) for token in (40, 41))
    assert said["top_logprobs"] == [{other: -0.1, own: -3.0}, {other: -0.1}]
    assert CompletionLogprobs(TINY).say([logprob(40)])["top_logprobs"] is None


@given(st.text(max_size=12), st.data())
def test_offsets_are_where_tokens_begin_however_they_are_cut_into_chunks(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    ids = tokenizer.encode(text.encode("utf-8", "replace").decode())
    at = data.draw(st.integers(0, len(ids)))
    said, offsets = CompletionLogprobs(tokenizer), list[int]()
    for chunk in (ids[:at], ids[at:]):
        offsets += said.say([logprob(each) for each in chunk])["text_offset"]
    whole = tokenizer.decode(ids)
    assert offsets == sorted(offsets)
    for start, token_id in zip(offsets, ids, strict=True):
        name = TokenNames(tokenizer).distinct(token_id)
        assert name.startswith("bytes:") or whole.startswith(name, start)


def test_a_broken_character_moves_what_comes_after_it() -> None:
    broken, letter = TINY.tokens.index("Ã"), TINY.tokens.index("a")
    said = CompletionLogprobs(TINY).say([logprob(each) for each in (letter, broken, letter, broken, broken, letter)])
    assert TINY.decode([letter, broken, letter, broken, broken, letter]) == "a\ufffda\ufffd\ufffda"
    assert [said["text_offset"][at] for at in (0, 1, 2, 5)] == [0, 1, 2, 5]
