from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loadgen.connections import Failed
from headrace.loadgen.replies import Answer, CompletionReader, PredictionReader, StreamReader

ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 7}}


def events(*chunks: object, end: str = "data: [DONE]\n\n", newline: str = "\n") -> bytes:
    lines = [f"data: {json.dumps(chunk)}{newline}{newline}" for chunk in chunks]
    return ("".join(lines) + end).encode()


def words(*contents: str) -> list[object]:
    return [{"choices": [{"delta": {"content": content}}]} for content in contents]


def ticks() -> itertools.count[int]:
    return itertools.count(1)


def read(data: bytes, cuts: Sequence[int] = ()) -> Answer:
    """The answer of a stream that comes cut at `cuts`; each piece arrives one second after the one before."""
    clock = ticks()
    reader = StreamReader(lambda: float(next(clock)))
    for begin, end in itertools.pairwise(sorted({0, *cuts, len(data)})):
        reader.feed(data[begin:end])
    return reader.answer()


def test_only_chunks_with_text_are_tokens_and_the_server_counts_them() -> None:
    data = [events(chunk, end="") for chunk in (ROLE, *words("a", "b", "c"), USAGE)] + [b"data: [DONE]\n\n"]
    answer = read(b"".join(data), list(itertools.accumulate(map(len, data))))
    assert (answer.first_s, answer.last_s, answer.gaps_s) == (2.0, 4.0, (1.0, 1.0))
    assert (answer.prompt_tokens, answer.completion_tokens, answer.tokens_told) == (12, 7, True)


@given(st.data(), st.sampled_from(["\n", "\r\n"]))
def test_it_does_not_matter_where_a_stream_is_cut(data: st.DataObject, newline: str) -> None:
    whole = events(ROLE, *words("é", "b"), {"choices": [{"text": "c"}]}, USAGE, newline=newline)
    cuts = data.draw(st.lists(st.integers(1, len(whole) - 1)))
    answer = read(whole, cuts)
    assert len(answer.gaps_s) == 2
    assert (answer.completion_tokens, answer.tokens_told) == (7, True)


def test_without_usage_the_chunks_are_counted_and_that_is_told() -> None:
    answer = read(events(*words("a", "b")))
    assert (answer.completion_tokens, answer.tokens_told) == (2, False)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (events(*words("a"), end=""), "bad_reply"),
        (events(ROLE, USAGE), "no_text"),
        (events(*words("a"), {"error": {"message": "the engine was lost"}}), "stream_error"),
        (b"data: {nonsense\n\ndata: [DONE]\n\n", "bad_reply"),
        (b"data: " + b"x" * (2 << 20), "bad_reply"),
    ],
    ids=["no end", "no text", "error", "no JSON", "endless line"],
)
def test_a_stream_that_is_not_what_was_asked_for_is_a_failure(data: bytes, kind: str) -> None:
    with pytest.raises(Failed) as failed:
        read(data)
    assert failed.value.kind == kind


def test_a_prediction_tells_rung_reason_and_batch_size() -> None:
    reader = PredictionReader(lambda: 5.0)
    body = {"rung": "student", "degraded": True, "reason": "deadline", "usage": {"batch_size": 3}, "value": 0.5}
    for part in (json.dumps(body).encode()[:20], json.dumps(body).encode()[20:]):
        reader.feed(part)
    assert reader.answer() == Answer(5.0, rung="student", reason="deadline", degraded=True, batch_size=3)


def test_the_tokens_that_a_prefix_cache_had_are_told_by_predictions_and_completions() -> None:
    usage = {"batch_size": 1, "prompt_tokens": 80, "cached_tokens": 64}
    told = {"prompt_tokens": 12, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}
    prediction, completion = PredictionReader(lambda: 5.0), CompletionReader(lambda: 5.0)
    prediction.feed(json.dumps({"rung": "model", "usage": usage}).encode())
    completion.feed(json.dumps({"choices": [{"text": "hi"}], "usage": told}).encode())
    stream = read(events(*words("a"), {"choices": [], "usage": told}))
    assert (prediction.answer().prompt_tokens, prediction.answer().cached_tokens) == (80, 64)
    assert completion.answer().cached_tokens == stream.cached_tokens == 5
    assert read(events(*words("a"), USAGE)).cached_tokens is None


def test_a_completion_in_one_piece_has_tokens_and_no_first_one() -> None:
    reader = CompletionReader(lambda: 5.0)
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    reader.feed(json.dumps({"choices": [{"message": {"content": "hi"}}], "usage": usage}).encode())
    assert reader.answer() == Answer(5.0, prompt_tokens=3, completion_tokens=4)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": []}', b'{"value": 1}'])
def test_a_reply_of_another_shape_is_a_failure(body: bytes) -> None:
    for reader in (PredictionReader(lambda: 5.0), CompletionReader(lambda: 5.0)):
        reader.feed(body)
        with pytest.raises(Failed) as failed:
            reader.answer()
        assert failed.value.kind == "bad_reply"
