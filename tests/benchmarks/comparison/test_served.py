from __future__ import annotations

import json

import pytest

from benchmarks.comparison.flows import quantile
from benchmarks.comparison.installation import PeerFailed
from benchmarks.comparison.served import Answer, Arrival, replayed
from tests.headrace.loadgen.server import Asked, serving


def stream(*contents: str, completion_tokens: int) -> str:
    chunks: list[object] = [{"choices": [{"delta": {"content": each}}], "usage": None} for each in contents]
    chunks.append({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": completion_tokens}})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


async def answer_to(text: str, status: int = 200) -> Answer:
    async def handle(asked: Asked) -> None:
        assert asked.json()["ignore_eos"] is True
        asked.reply(text.encode(), status)

    async with serving(handle) as server:
        (answer,) = await replayed(server.url, [Arrival(-1.0, "hello", 3)])
        return answer


async def test_latency_counts_from_the_instant_at_which_the_request_was_due() -> None:
    answer = await answer_to(stream("", "a", "b", completion_tokens=3))
    assert answer.ttft_s >= 1.0
    assert answer.tpot_s >= 0.0
    assert answer.prompt_tokens == 12


@pytest.mark.parametrize(
    ("text", "status", "match"),
    [
        (stream("a", completion_tokens=2), 200, "asked for 3 tokens"),
        (stream("", completion_tokens=3), 200, "no_text"),
        ("busy", 503, "503"),
    ],
)
async def test_a_reply_that_is_not_what_was_asked_for_is_no_measurement(text: str, status: int, match: str) -> None:
    with pytest.raises(PeerFailed, match=match):
        await answer_to(text, status)


def test_quantiles_lie_between_the_nearest_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 100.0], 0.99) == pytest.approx(99.0)
    assert quantile([5.0], 0.99) == 5.0
