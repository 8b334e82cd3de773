"""Constrained requests in a whole engine: they wait for their compiler alone, and survive what other requests do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from core_engine.contracts import FinishReason, GenerateRequest, Pool, SamplingParams, TokenDelta
from core_engine.errors import InvalidRequest
from core_engine.llm.client import EngineClient
from core_engine.llm.engine import Engine, SequenceEvent
from core_engine.llm.grammar import Grammars
from core_engine.llm.tokenizer import Tokenizer
from tests.core_engine.llm.running import running
from tests.core_engine.llm.tiny import CONFIG, EOS, check, request, run_all, tiny_engine, tiny_tokenizer

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "late": {"type": "boolean"},
            "delay": {"type": "integer", "minimum": 0, "maximum": 600},
            "gate": {"type": "string", "pattern": "^[A-D][0-9]{2}$"},
        },
        "required": ["late", "delay", "gate"],
        "additionalProperties": False,
    }
)
TOKENIZER = tiny_tokenizer()


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(tiny_tokenizer, CONFIG.vocab_size, frozenset({EOS}))
    grammars.state(SCHEMA)  # compiled: no test has to wait for it
    yield grammars
    grammars.close()


def constrained(schema: str = SCHEMA, seed: int = 1, prompt: tuple[int, ...] = (5, 6, 7)) -> GenerateRequest:
    dials = SamplingParams(max_tokens=80, temperature=1.0, seed=seed, json_schema=schema)
    return request(prompt, sampling=dials)


def check_flight(token_ids: list[int]) -> None:
    flight = json.loads(TOKENIZER.decode(token_ids))
    assert list(flight) == ["late", "delay", "gate"]
    assert isinstance(flight["late"], bool)
    assert 0 <= flight["delay"] <= 600
    assert flight["gate"][0] in "ABCD"


def test_many_constrained_requests_in_one_batch_each_keep_to_their_schema(grammars: Grammars) -> None:
    requests = [constrained(seed=seed, prompt=tuple(range(1, 2 + seed * 3))) for seed in range(6)]
    free = request((8, 9), max_tokens=20)
    found = run_all(tiny_engine(grammars=grammars, max_step_tokens=16), [*requests, free])
    for each in requests:
        assert found[each.attempt_id][-1] == EOS
        check_flight(found[each.attempt_id])
    assert found[free.attempt_id] == run_all(tiny_engine(), [free])[free.attempt_id]


def test_pre_emption_changes_no_token_whatever_the_dials(grammars: Grammars) -> None:
    dials = [
        SamplingParams(max_tokens=40, ignore_eos=True),
        SamplingParams(max_tokens=40, temperature=1.0, top_p=0.9, seed=3, ignore_eos=True),
        SamplingParams(max_tokens=40, repetition_penalty=1.3, frequency_penalty=0.4, ignore_eos=True),
        SamplingParams(max_tokens=40, temperature=0.8, min_tokens=30, seed=4),
    ]
    requests = [request((i + 3, 5, 6, 7, 8, 9), sampling=each) for i, each in enumerate(dials)]
    requests += [constrained(seed=7), constrained(seed=8)]
    roomy = tiny_engine(grammars=grammars)
    tight = tiny_engine(grammars=grammars, num_blocks=24, clock=lambda: 0.0)  # pre-emptions follow from step times
    expected = run_all(roomy, requests)
    assert run_all(tight, requests) == expected
    assert tight.scheduler.counters[Pool.INTERACTIVE].preemptions > 0
    assert tight.runner.sampler.num_sequences == 0


class Held:
    """A tokenizer that is loaded when it is let: a compiler that takes its time."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def load(self) -> Tokenizer:
        assert self.go.wait(60)
        return TOKENIZER


def test_a_sequence_whose_schema_is_compiled_holds_nobody_up() -> None:
    held = Held()
    grammars = Grammars(held.load, CONFIG.vocab_size, frozenset({EOS}))
    engine = tiny_engine(grammars=grammars)
    waiting, free = engine.add(constrained()), engine.add(request((8, 9), max_tokens=10))
    while free.finish_reason is None:
        engine.step()
        check(engine)
    assert waiting.num_run_tokens == 0
    assert waiting.finish_reason is None
    engine.abort(waiting)  # in that state, too
    held.go.set()
    grammars.state(SCHEMA)
    assert engine.step() == []
    assert not engine.has_work
    grammars.close()


def drain(engine: Engine) -> list[SequenceEvent]:
    events = []
    while engine.has_work:
        events += engine.step()
        check(engine)
    return events


def test_a_refused_schema_ends_its_request_before_it_costs_anything(grammars: Grammars) -> None:
    engine = tiny_engine(grammars=grammars)
    bad, good = engine.add(constrained('{"type": "strin"}')), engine.add(constrained())
    events = drain(engine)
    (refused,) = [event for event in events if event.sequence is bad]
    assert refused.finish_reason is FinishReason.ERROR
    assert isinstance(refused.failure, InvalidRequest)
    assert "strin" in str(refused.failure)
    assert bad.num_run_tokens == 0
    check_flight(good.token_ids[good.num_prompt_tokens :])


def test_an_engine_without_a_tokenizer_refuses_a_schema_by_name() -> None:
    engine = tiny_engine()
    with pytest.raises(InvalidRequest, match="no tokenizer") as refused:
        engine.add(constrained())
    assert refused.value.field == "json_schema"
    assert not engine.has_work


async def read(client: EngineClient, wanted: GenerateRequest) -> list[TokenDelta]:
    return [delta async for delta in client.generate(wanted)]


async def test_a_client_gets_its_json_or_the_compilers_words(grammars: Grammars) -> None:
    async with running(tiny_engine(grammars=grammars)) as (client, _):
        wanted = constrained()
        bad = replace(wanted, attempt_id="bad", sampling=replace(wanted.sampling, json_schema='{"pattern": "("}'))
        answer, refusal = await asyncio.gather(read(client, wanted), read(client, bad), return_exceptions=True)
    assert isinstance(answer, list)
    assert answer[-1].finish_reason is FinishReason.STOP
    check_flight([token for delta in answer for token in delta.token_ids])
    assert isinstance(refusal, InvalidRequest)
    assert "json_schema cannot be used" in str(refusal)
    assert "unclosed group" in str(refusal)


async def test_log_probabilities_reach_the_client_with_their_tokens() -> None:
    async with running() as (client, _):
        dials = SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2, prompt_logprobs=1)
        deltas = await read(client, request((5, 6, 7), sampling=dials))
    for delta in deltas:
        assert delta.logprobs is not None
        assert tuple(entry.token_id for entry in delta.logprobs) == delta.token_ids
        assert all(len(entry.top) == 2 for entry in delta.logprobs)
    first, *rest = (delta.prompt_logprobs for delta in deltas)
    assert first is not None
    assert first[0] is None
    assert [entry.token_id for entry in first[1:] if entry] == [6, 7]
    assert rest == [None] * 4
