"""Embeddings, read by the official client: both encodings, every form of input, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from core_engine.contracts import GenerateRequest, HeadResult, Reason, Rung
from core_engine.errors import EngineUnavailable
from tests.core_engine.llm.by_hand import ByHand, head_request
from tests.core_engine.llm.test_heads import LAST, MEAN
from tests.online.conftest import DoorUnderTest, ServedDoor
from tests.online.real_door import RealDoor, real_door

TEXTS = ["The gate", "A plane", "ok"]


@pytest.fixture
async def real(door: DoorUnderTest) -> AsyncIterator[RealDoor]:
    async with real_door(door) as real:
        yield real
        await real.quiet()


@pytest.mark.parametrize(("pooling", "head"), [(None, MEAN), ("mean", MEAN), ("last", LAST)])
@pytest.mark.parametrize("encoding", [openai.omit, "float", "base64"])
async def test_embeddings_are_the_head_s_in_either_encoding(
    real: RealDoor, pooling: str | None, head: Any, encoding: Any
) -> None:
    prompts = [real.services.tokenizer.encode(text) for text in TEXTS]
    by_hand = ByHand().run([head_request(prompt, head, str(i)) for i, prompt in enumerate(prompts)])
    client = real.openai if encoding == "float" else real.lenient  # base64 is not what the client's type says
    reply = await client.embeddings.create(
        model="tiny", input=TEXTS, encoding_format=encoding, extra_body={"pooling": pooling}
    )
    assert [each.index for each in reply.data] == [0, 1, 2]
    for index, each in enumerate(reply.data):
        values = each.embedding if encoding != "base64" else decoded(each.embedding)
        assert values == pytest.approx(by_hand[str(index)], abs=1e-5)
        assert math.hypot(*values) == pytest.approx(1.0, abs=1e-5)
    assert (reply.object, reply.model) == ("list", "tiny")
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (sum(map(len, prompts)),) * 2


def decoded(embedding: Any) -> list[float]:
    """The client decodes base64 only where it has asked for it by itself."""
    data = base64.b64decode(embedding)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


async def test_a_text_and_its_token_ids_have_one_embedding(real: RealDoor) -> None:
    ids = real.services.tokenizer.encode("The gate")
    replies = [
        await real.lenient.embeddings.create(model="tiny", input=each)
        for each in ("The gate", ids, [ids], ["The gate"])
    ]
    first = replies[0].data[0].embedding
    assert all(reply.data[0].embedding == pytest.approx(first, abs=1e-5) for reply in replies)


async def test_many_inputs_come_back_in_their_order(real: RealDoor) -> None:
    texts = [f"gate {number}" for number in range(60)]
    together = (await real.lenient.embeddings.create(model="tiny", input=texts)).data
    assert [each.index for each in together] == list(range(60))
    for number in (0, 31, 59):
        alone = (await real.lenient.embeddings.create(model="tiny", input=texts[number])).data[0]
        assert together[number].embedding == pytest.approx(alone.embedding, abs=1e-5)


async def test_each_input_is_an_attempt_with_a_fact_and_all_are_one_delivery(served: ServedDoor) -> None:
    await served.openai.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    facts = served.door.facts()
    ids = [request.attempt_id for request in served.door.engine.head_requests]
    assert sorted(fact.attempt_id for fact in facts) == sorted(ids)
    assert [each.rpartition(".")[2] for each in sorted(ids)] == ["0", "1", "2"]
    assert len({fact.delivery_key for fact in facts} - {None}) == 1
    assert {fact.rung for fact in facts} == {Rung.MODEL}


async def test_cached_tokens_and_the_headrace_block(served: ServedDoor) -> None:
    reply = await served.openai.embeddings.create(
        model="tiny", input=TEXTS, encoding_format="float", extra_body={"headrace": True}
    )
    extra, usage = reply.model_extra, reply.usage.model_extra
    assert usage is not None
    assert extra is not None
    assert usage["prompt_tokens_details"] == {"cached_tokens": 48}
    assert extra["headrace"]["device_ms"] == pytest.approx(12.0)
    assert extra["headrace"]["ttft_ms"] is None


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"dimensions": 4}, "unsupported_parameter", "dimensions"),
        ({"encoding_format": "int8"}, "invalid_request", "encoding_format"),
        ({"extra_body": {"pooling": "max"}}, "invalid_request", "pooling"),
        ({"input": ""}, "invalid_request", "input"),
        ({"input": ["ok", ""]}, "invalid_request", "input.1"),
        ({"input": "word " * 700}, "context_length_exceeded", "input"),
    ],
)
async def test_what_cannot_be_done_is_the_client_s_bad_request(
    served: ServedDoor, body: dict[str, Any], code: str, field: str
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "ok"} | body
    with pytest.raises(openai.BadRequestError) as caught:
        await served.openai.embeddings.create(**asked)
    assert (caught.value.code, caught.value.param) == (code, field)
    assert served.door.engine.head_requests == []


async def test_only_the_base_model_embeds(served: ServedDoor) -> None:
    with pytest.raises(openai.NotFoundError, match="has a prompt of its own"):
        await served.openai.embeddings.create(model="notice", input="ok")


async def test_the_first_failure_is_the_reply_and_every_attempt_that_was_made_has_its_fact(served: ServedDoor) -> None:
    served.door.engine.error = EngineUnavailable("the engine was lost")
    with pytest.raises(openai.InternalServerError, match="the engine was lost") as caught:
        await served.openai.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    assert caught.value.status_code == 503
    facts = served.door.facts()
    assert len(facts) == len(served.door.engine.head_requests) > 0
    assert {(fact.rung, fact.reason) for fact in facts} == {(Rung.NONE, Reason.ENGINE_UNAVAILABLE)}


async def test_a_client_that_leaves_ends_the_heads_that_wait(served: ServedDoor) -> None:
    engine, started, ended = served.door.engine, asyncio.Event(), asyncio.Event()

    async def stuck(request: GenerateRequest) -> HeadResult:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    engine.head = stuck  # type: ignore[method-assign]
    call = asyncio.create_task(served.http.post("/v1/embeddings", json={"model": "tiny", "input": TEXTS}))
    await started.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await ended.wait()
    while (await served.http.get("/readyz")).json()["in_flight"]:
        pass
    assert served.door.services.state.streams == 0
