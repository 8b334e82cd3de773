"""What a reply says of itself: tokens over all choices, and times that are those of the meters."""

from __future__ import annotations

import pytest

from core_engine.contracts import Usage
from online.generation import Generations
from online.reply_usage import times_of, usage_of
from online.request_context import RequestContext
from online.text_call import TextCall, attempts
from tests.core_engine.llm.tiny import request
from tests.online.conftest import DoorUnderTest

PROMPTS = [request(prompt, attempt_id="a") for prompt in ([5] * 10, [6] * 4)]


def work(door: DoorUnderTest, n: int = 2) -> Generations:
    """Two prompts; choice `i` has `i` + 1 tokens, 2 s apart, after waiting `i` s."""
    work = Generations(TextCall("tiny", attempts(PROMPTS, n), n), door.services, RequestContext("r", None))
    for index, meter in enumerate(work.meters):
        meter.num_tokens = index + 1
        meter.first_s = work.context.arrived_s + 1.0 + index
        meter.last_s = meter.first_s + 2.0 * index
        meter.usage = Usage(cached_tokens=(8, 9, 0, 4)[index], queue_s=float(index), device_s=0.25)
    return work


async def test_a_prompt_counts_once_and_is_as_cached_as_its_first_reader_found_it(door: DoorUnderTest) -> None:
    assert usage_of(work(door)) == {
        "prompt_tokens": 14,
        "completion_tokens": 1 + 2 + 3 + 4,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 8 + 0},
    }


async def test_times_are_milliseconds_of_the_whole_call(door: DoorUnderTest) -> None:
    done = work(door)
    assert times_of(done, done.context.arrived_s + 20.0) == {
        "ttft_ms": pytest.approx(1000.0),
        "tpot_ms": pytest.approx(2000.0),
        "queue_ms": 3000.0,
        "e2e_ms": pytest.approx(20_000.0),
        "device_ms": 1000.0,
        "cost": None,
    }


async def test_without_a_token_there_is_no_time_to_one(door: DoorUnderTest) -> None:
    empty = Generations(TextCall("tiny", (PROMPTS[0],)), door.services, RequestContext("r", None))
    block = times_of(empty, empty.context.arrived_s)
    assert (block["ttft_ms"], block["tpot_ms"], block["queue_ms"]) == (None, None, 0.0)
