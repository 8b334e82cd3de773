from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.loadgen.connections import Address
from headrace.loadgen.prompts import Prompt
from headrace.loadgen.replies import CompletionReader, StreamReader
from headrace.loadgen.targets import Generation, Target, chat_target, completions_target, predict_target

DOOR = Address("door", 8000)
PROMPTS = [Prompt("Write é", 7)]


def sent(target: Target, address: Address = DOOR, **headers: str) -> tuple[list[str], Any]:
    """Lines of the head, and the body, of the first request."""
    head, _, body = target.requests(address, headers)[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in lines
    return lines, json.loads(body)


def test_a_prediction_is_asked_for_as_the_file_says() -> None:
    lines, body = sent(predict_target("delay_risk", [b'{"inputs": {}}']))
    assert lines[0] == "POST /v1/predict/delay_risk HTTP/1.1"
    assert "Host: door:8000" in lines
    assert body == {"inputs": {}}


def test_a_streamed_chat_asks_for_its_usage() -> None:
    target = chat_target("m", PROMPTS, Generation(ignore_eos=True))
    lines, body = sent(target, Address("::1", 8000, "/api"), Authorization="Bearer key")
    assert lines[0] == "POST /api/v1/chat/completions HTTP/1.1"
    assert {"Host: [::1]:8000", "Authorization: Bearer key"} <= set(lines)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Write é"}],
        "max_tokens": 7,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert target.reader is StreamReader


@pytest.mark.parametrize("make", [chat_target, completions_target])
def test_what_is_not_streamed_is_read_in_one_piece_and_asks_for_nothing_unusual(make: Any) -> None:
    target = make("m", PROMPTS, Generation(stream=False))
    _, body = sent(target)
    assert target.reader is CompletionReader
    assert not {"stream", "stream_options", "ignore_eos"} & set(body)


def test_a_completion_sends_its_prompt_as_it_is() -> None:
    lines, body = sent(completions_target("m", PROMPTS, Generation()))
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert body["prompt"] == "Write é"
