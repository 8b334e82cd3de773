"""Chat completions, read by the official client: whole, streamed, refused, lost, and abandoned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from core_engine.contracts import FinishReason, GenerateRequest, Reason, Rung, TokenDelta
from core_engine.costs.facts import CallerFact
from core_engine.errors import DeadlineExceeded, EngineRefused, EngineUnavailable, HeadraceError
from core_engine.llm.tokenizer import Tokenizer
from online.openai_bodies import ChatBody
from tests.online.conftest import TEXT, DoorUnderTest, ServedDoor

MESSAGES: Any = [{"role": "user", "content": "Say something."}]


async def stream(served: ServedDoor, **options: Any) -> list[ChatCompletionChunk]:
    chunks = await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, **options)
    return [chunk async for chunk in chunks]


def generations(door: DoorUnderTest, finished_reason: str, reason: str = "") -> float | None:
    labels = {"model_name": "tiny", "pool": "interactive", "finished_reason": finished_reason, "reason": reason}
    return door.sample("headrace_generations_total", **labels)


def lines(text: str) -> list[Any]:
    """The data of every event; the end mark stays text."""
    assert text.endswith("\n\n")
    events = [event.removeprefix("data: ") for event in text.removesuffix("\n\n").split("\n\n")]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


# -- whole


async def test_a_whole_completion(served: ServedDoor) -> None:
    completion = await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, seed=5)

    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    usage = completion.usage
    assert usage is not None
    num_tokens = len(served.door.engine.tokens)
    assert usage.completion_tokens == num_tokens
    assert usage.total_tokens == usage.prompt_tokens + num_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 1
    assert completion.id.startswith("chatcmpl-")
    (request,) = served.door.engine.generate_requests
    assert (request.sampling.temperature, request.sampling.seed) == (0.0, 5)
    assert completion.id == f"chatcmpl-{request.attempt_id}"


async def test_a_predictor_is_a_model_with_its_own_prompt_version_and_budget(served: ServedDoor) -> None:
    await served.openai.chat.completions.create(model="notice", messages=MESSAGES)
    (request,) = served.door.engine.generate_requests
    assert (request.predictor, request.version, request.sampling.max_tokens) == ("notice", 3, 32)
    assert 0 < request.deadline.remaining() <= 30
    assert "Be brief." in served.door.services.tokenizer.decode(request.prompt_token_ids)


async def test_a_length_limit_is_the_finish_reason(served: ServedDoor) -> None:
    served.door.engine.finish_reason = FinishReason.LENGTH
    completion = await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9)
    assert completion.choices[0].finish_reason == "length"


async def test_a_stop_string_ends_the_text_before_it_and_aborts_the_rest(served: ServedDoor) -> None:
    completion = await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, stop=" min")
    assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == ("Délai: 15", "stop")
    await served.door.engine.aborted.wait()


# -- streamed


async def test_a_stream_is_role_content_finish_reason_each_in_its_own_chunk(served: ServedDoor) -> None:
    chunks = await stream(served)
    first, *content, last = [chunk.choices[0] for chunk in chunks]

    assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
    assert "".join(choice.delta.content or "" for choice in content) == TEXT
    assert all(choice.finish_reason is None and choice.delta.role is None for choice in content)
    assert (last.delta.content, last.delta.role, last.finish_reason) == (None, None, "stop")
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_usage_comes_in_a_chunk_without_choices_when_it_is_asked_for(served: ServedDoor) -> None:
    *chunks, last = await stream(served, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(served.door.engine.tokens)
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == 1
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)


async def test_the_bytes_of_a_stream(door: DoorUnderTest) -> None:
    reply = await door.chat(stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    events = lines(reply.text)
    assert events[-1] == "[DONE]"
    for chunk in events[:-1]:
        assert {"id", "object", "created", "model", "choices", "usage"} == set(chunk)
        assert chunk["object"] == "chat.completion.chunk"
        for choice in chunk["choices"]:
            assert {"index", "delta", "logprobs", "finish_reason"} == set(choice)
    assert "usage" not in lines((await door.chat(stream=True)).text)[0]


async def test_one_token_makes_a_whole_stream(served: ServedDoor, tokenizer: Tokenizer) -> None:
    served.door.engine.tokens = tuple(tokenizer.encode("ok"))
    assert len(served.door.engine.tokens) == 1
    chunks = await stream(served)
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices] == [None, None, "stop"]


async def test_a_token_reaches_the_client_before_the_next_exists(served: ServedDoor) -> None:
    served.door.engine.hold = asyncio.Event()
    chunks = await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    assert (await anext(chunks)).choices[0].delta.role == "assistant"
    assert (await anext(chunks)).choices[0].delta.content == TEXT[0]
    served.door.engine.hold.set()
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == TEXT[1:]


# -- refused and lost


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [(EngineUnavailable("lost"), 503), (EngineRefused("full"), 503), (DeadlineExceeded("late"), 504)],
)
async def test_before_the_first_token_every_refusal_is_a_plain_error(
    served: ServedDoor, error: HeadraceError, status: int, streamed: bool
) -> None:
    served.door.engine.error = error
    with pytest.raises(openai.APIStatusError) as caught:
        await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, stream=streamed)
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (status, error.code, "server_error")
    assert (caught.value.response.headers.get("retry-after") == "1") == (status == 503)


@pytest.mark.parametrize("streamed", [False, True])
async def test_without_an_engine_it_is_503(served: ServedDoor, streamed: bool) -> None:
    served.door.engine.lose()
    with pytest.raises(openai.InternalServerError, match="no engine answers") as caught:
        await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, stream=streamed)
    assert caught.value.status_code == 503


async def test_lost_in_mid_stream_is_an_error_event_and_no_invented_finish(served: ServedDoor) -> None:
    served.door.engine.error, served.door.engine.fail_after = EngineUnavailable("the engine was lost"), 3
    with pytest.raises(openai.APIError, match="the engine was lost"):
        await stream(served)
    raw = (await served.door.chat(stream=True)).text
    assert "[DONE]" not in raw
    *chunks, error = lines(raw)
    assert error["error"]["code"] == "engine_unavailable"
    assert len(chunks) > 1
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


async def test_a_completion_that_is_lost_in_mid_stream_ends_like_a_chat(door: DoorUnderTest) -> None:
    door.engine.error, door.engine.fail_after = EngineUnavailable("the engine was lost"), 3
    body = {"model": "tiny", "prompt": "ok", "stream": True, "stream_options": {"include_usage": True}}
    *chunks, error = lines((await door.http.post("/v1/completions", json=body)).text)
    assert error["error"]["code"] == "engine_unavailable"
    assert len(chunks) == 3
    for chunk in chunks:
        assert (chunk["object"], chunk["usage"]) == ("text_completion", None)
        assert [choice["finish_reason"] for choice in chunk["choices"]] == [None]


@pytest.mark.parametrize("streamed", [False, True])
async def test_one_choice_that_fails_ends_the_others(door: DoorUnderTest, streamed: bool) -> None:
    first_waits = asyncio.Event()

    async def second_fails(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        try:
            if request.attempt_id.endswith(".1"):
                await first_waits.wait()
                raise EngineUnavailable("the second was lost")
            first_waits.set()
            await asyncio.Event().wait()
            yield TokenDelta(())
        finally:
            if request.attempt_id.endswith(".0"):
                door.engine.aborted.set()

    door.engine.generate = second_fails  # type: ignore[method-assign]
    reply = await door.chat(n=2, stream=streamed)
    assert (reply.status_code, reply.json()["error"]["message"]) == (503, "the second was lost")
    assert door.engine.aborted.is_set()
    assert door.services.state.streams == 0
    assert (generations(door, "abort"), generations(door, "error", Reason.ENGINE_UNAVAILABLE)) == (1, 1)


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_what_the_engine_gave_up_is_an_error_and_no_finish(door: DoorUnderTest, reason: FinishReason) -> None:
    door.engine.finish_reason = reason
    assert (await door.chat()).status_code == 503
    events = lines((await door.chat(stream=True)).text)
    assert events[-1]["error"]["code"] == "engine_unavailable"


async def test_lost_in_the_middle_of_a_whole_completion_is_503(door: DoorUnderTest) -> None:
    door.engine.error, door.engine.fail_after = EngineUnavailable("the engine was lost"), 3
    reply = await door.chat()
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "the engine was lost"


async def test_an_engine_that_ends_without_a_word_is_503(door: DoorUnderTest) -> None:
    door.engine.tokens = ()
    assert (await door.chat()).status_code == 503
    assert (await door.chat(stream=True)).status_code == 503


async def test_over_the_context_is_the_client_s_bad_request(served: ServedDoor) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=512)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert served.door.engine.generate_requests == []


async def test_an_unknown_model_is_not_found(served: ServedDoor) -> None:
    with pytest.raises(openai.NotFoundError, match="known: tiny, notice"):
        await served.openai.chat.completions.create(model="gpt-9", messages=MESSAGES)


async def test_an_unsupported_field_is_named(served: ServedDoor) -> None:
    with pytest.raises(openai.BadRequestError, match="reasoning_effort = 'low' is not supported") as caught:
        await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, reasoning_effort="low")
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "reasoning_effort")


async def test_more_generations_than_the_door_takes_are_refused_at_once(served: ServedDoor) -> None:
    served.door.engine.hold = asyncio.Event()
    open_streams = [
        await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) for _ in range(2)
    ]
    with pytest.raises(openai.InternalServerError, match="2 generations are open"):
        await stream(served)
    served.door.engine.hold.set()
    for chunks in open_streams:
        assert [chunk async for chunk in chunks]
    assert served.door.services.state.streams == 0
    assert await stream(served)


async def test_more_choices_than_the_door_could_ever_take_are_the_client_s_bad_request(served: ServedDoor) -> None:
    with pytest.raises(openai.BadRequestError, match="n = 3: expected at most 2 choices") as caught:
        await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, n=3)
    assert caught.value.param == "n"


async def test_choices_are_let_in_together_or_not_at_all(served: ServedDoor) -> None:
    served.door.engine.hold = asyncio.Event()
    held = await served.openai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.InternalServerError, match="1 generations are open"):
        await stream(served, n=2)
    assert len(served.door.engine.generate_requests) == 1
    served.door.engine.hold.set()
    assert [chunk async for chunk in held]
    assert len({chunk.choices[0].index for chunk in await stream(served, n=2)}) == 2


# -- abandoned


@pytest.mark.parametrize("num_read", [0, 1, 2])
async def test_a_client_that_drops_a_stream_aborts_the_generation(served: ServedDoor, num_read: int) -> None:
    engine = served.door.engine
    engine.hold = asyncio.Event()
    body = {"model": "tiny", "messages": MESSAGES, "stream": True}
    async with served.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        events = reply.aiter_text()
        for _ in range(num_read):
            await anext(events)
    await engine.aborted.wait()
    await settled(served)
    assert generations(served.door, "abort") == 1
    counted = served.door.sample("headrace_http_requests_total", route="/v1/chat/completions", status="499")
    assert counted == 1
    (fact,) = served.door.facts()
    assert isinstance(fact, CallerFact)
    assert (fact.rung, fact.delivered_in_time) == (Rung.NONE, False)


async def test_a_client_that_drops_a_whole_completion_aborts_it_too(served: ServedDoor) -> None:
    engine = served.door.engine
    engine.hold = asyncio.Event()
    body = {"model": "tiny", "messages": MESSAGES}
    call = asyncio.create_task(served.http.post("/v1/chat/completions", json=body))
    await engine.started.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await engine.aborted.wait()
    await settled(served)
    assert served.door.services.state.streams == 0


async def test_a_client_that_drops_before_the_first_token_aborts_as_well(served: ServedDoor) -> None:
    engine = served.door.engine
    started = asyncio.Event()

    async def stuck(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        try:
            started.set()
            await asyncio.Event().wait()
            yield TokenDelta(())
        finally:
            engine.aborted.set()

    engine.generate = stuck  # type: ignore[method-assign]
    body = {"model": "tiny", "messages": MESSAGES, "stream": True}
    call = asyncio.create_task(served.http.post("/v1/chat/completions", json=body))
    await started.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await engine.aborted.wait()
    await settled(served)
    assert served.door.services.state.streams == 0


async def settled(served: ServedDoor) -> None:
    """Wait until every other request has left the door."""
    while (await served.http.get("/readyz")).json()["in_flight"]:
        pass


# -- accounts


async def test_latencies_tokens_and_outcomes_are_counted(door: DoorUnderTest) -> None:
    await door.chat(stream=True)
    labels = {"model_name": "tiny", "pool": "interactive"}
    num_tokens = len(door.engine.tokens)
    assert door.sample("headrace_time_to_first_token_seconds_count", **labels) == 1
    assert door.sample("headrace_inter_token_latency_seconds_count", **labels) == num_tokens - 1
    assert door.sample("headrace_e2e_request_latency_seconds_count", **labels) == 1
    assert door.sample("headrace_tokens_total", **labels, kind="completion") == num_tokens
    assert door.sample("headrace_tokens_total", **labels, kind="cached") == 1
    assert generations(door, "stop") == 1


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (EngineRefused("full"), "error", Reason.ENGINE_REFUSED),
        (DeadlineExceeded("late"), "deadline", Reason.DEADLINE),
    ],
)
async def test_what_was_not_answered_is_counted_and_told_the_ledger(
    door: DoorUnderTest, error: HeadraceError, outcome: str, reason: Reason
) -> None:
    door.engine.error = error
    await door.chat()
    assert generations(door, outcome, reason) == 1
    (fact,) = door.facts()
    assert isinstance(fact, CallerFact)
    assert (fact.rung, fact.reason, fact.delivered_in_time) == (Rung.NONE, reason, False)


async def test_an_answered_chat_is_one_fact_with_its_delivery_key(door: DoorUnderTest) -> None:
    body = {"model": "notice", "messages": MESSAGES}
    await door.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k1"})
    (fact,) = door.facts()
    assert isinstance(fact, CallerFact)
    assert (fact.predictor, fact.version, fact.rung, fact.reason) == ("notice", 3, Rung.MODEL, None)
    assert (fact.delivery_key, fact.delivered_in_time) == ("k1", True)


async def test_choices_are_attempts_of_their_own_and_one_delivery(door: DoorUnderTest) -> None:
    reply = (await door.chat(n=2)).json()
    facts = door.facts()
    attempt_id = reply["id"].removeprefix("chatcmpl-")
    assert sorted(fact.attempt_id for fact in facts) == [f"{attempt_id}.0", f"{attempt_id}.1"]
    assert [request.attempt_id for request in door.engine.generate_requests] == [f"{attempt_id}.0", f"{attempt_id}.1"]
    assert {fact.delivery_key for fact in facts} == {attempt_id}
    assert {fact.rung for fact in facts} == {Rung.MODEL}
    assert generations(door, "stop") == 2


async def test_several_choices_are_of_the_delivery_that_the_client_named(door: DoorUnderTest) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "n": 2}
    await door.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k1"})
    assert [fact.delivery_key for fact in door.facts()] == ["k1", "k1"]


# -- anything


bodies = st.dictionaries(
    st.sampled_from([*ChatBody.model_fields, "tools"]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.lists(st.dictionaries(st.sampled_from(["role", "content"]), st.text(max_size=4) | st.none()), max_size=2),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(bodies)
async def test_no_body_is_a_5xx(door: DoorUnderTest, body: dict[str, Any]) -> None:
    reply = await door.chat(**body)
    assert reply.status_code in (200, 400, 404)
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert error["message"]
        assert error["code"]
