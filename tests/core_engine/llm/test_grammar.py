"""JSON schemas as masks, with the real vocabulary: what comes out is accepted, and a bad schema hurts nobody else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.contracts import FinishReason, SamplingParams
from core_engine.errors import EngineRefused, HeadraceError, InvalidRequest, ModelFileError
from core_engine.llm import grammar
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.grammar import Grammars, GrammarState
from core_engine.llm.sampler import Sampler
from core_engine.llm.sequence import Sequence
from core_engine.llm.tokenizer import Tokenizer
from tests.core_engine.llm.tiny import request

FLIGHT = {
    "type": "object",
    "properties": {
        "carrier": {"enum": ["UA", "AA", "B6"]},
        "delay": {"type": "integer", "minimum": -30, "maximum": 600},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["carrier", "delay", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(default_model_path())


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    grammars = Grammars(lambda: tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    yield grammars
    grammars.close()


@pytest.fixture(scope="module")
def noise(tokenizer: Tokenizer) -> torch.Tensor:
    """Logits [100, vocab] of a model that has learnt nothing, but to stop where it may."""
    logits = torch.randn(100, tokenizer.vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, sorted(tokenizer.eos_token_ids)] += 20
    return logits


def asking(schema: object, **dials: Any) -> Sequence:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Sequence(request((1, 2), sampling=SamplingParams(json_schema=text, **dials)), 0.0)


def write(sampler: Sampler, sequence: Sequence, noise: torch.Tensor, eos: frozenset[int], most: int = 120) -> bool:
    """Sample until the end; False if it came by the number of tokens."""
    for step in range(most):
        row = noise[step % len(noise)].clone().unsqueeze(0)
        found = sampler.sample(row, [sequence])
        assert not found.failures, found.failures
        sequence.token_ids.append(found.tokens[sequence.id])
        if sequence.token_ids[-1] in eos:
            return True
    return False


def text_of(sequence: Sequence, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(sequence.token_ids[sequence.num_prompt_tokens :])


# Planes that the model's vocabulary has bytes for; of others it could not write a word
letters = st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF)
scalars = st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(letters, max_size=8)


@st.composite
def bounded(draw: st.DrawFn, kind: str, low: str, high: str, least: int, most: int) -> dict[str, Any]:
    first, second = sorted((draw(st.integers(least, most)), draw(st.integers(least, most))))
    return {"type": kind, low: first, high: second}


leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "number"}, {"type": "integer"}]),
    bounded("integer", "minimum", "maximum", -500, 500),
    bounded("string", "minLength", "maxLength", 0, 6),
    st.lists(scalars, min_size=1, max_size=4).map(lambda values: {"enum": values}),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.tuples(inner, bounded("array", "minItems", "maxItems", 0, 3)).map(lambda p: {**p[1], "items": p[0]})
    properties = st.dictionaries(st.text(letters, min_size=1, max_size=5), inner, max_size=3)
    objects = properties.flatmap(
        lambda known: st.sets(st.sampled_from(sorted(known)) if known else st.nothing()).map(
            lambda required: {
                "type": "object",
                "properties": known,
                "required": sorted(required),
                "additionalProperties": False,
            }
        )
    )
    return arrays | objects


schemas = st.recursive(leaves, containers, max_leaves=4)


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a schema of the kinds above takes `value`, by the words of the JSON Schema specification."""
    if "enum" in schema:
        return any(value == each and type(value) is type(each) for each in schema["enum"])
    match schema["type"]:
        case "boolean" | "null":
            return isinstance(value, bool) if schema["type"] == "boolean" else value is None
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
            return whole and schema.get("minimum", value) <= value <= schema.get("maximum", value)
        case "string":
            return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
        case "array":
            fits = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return fits and all(accepts(schema["items"], each) for each in value)
    known = schema["properties"]
    fits = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(known)
    return fits and all(accepts(known[name], each) for name, each in value.items())


@settings(max_examples=40)
@given(schema=schemas, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 1000))
def test_what_stops_by_itself_is_json_that_the_schema_accepts(
    grammars: Grammars,
    tokenizer: Tokenizer,
    noise: torch.Tensor,
    schema: dict[str, Any],
    temperature: float,
    seed: int,
) -> None:
    sequence = asking(schema, temperature=temperature, seed=seed)
    sampler = Sampler(tokenizer.eos_token_ids, grammars)
    if write(sampler, sequence, noise.roll(seed, dims=0), tokenizer.eos_token_ids):
        text = text_of(sequence, tokenizer)
        assert accepts(schema, json.loads(text)), text


def test_a_constrained_request_ends_and_its_neighbour_is_left_alone(
    grammars: Grammars, tokenizer: Tokenizer, noise: torch.Tensor
) -> None:
    eos = tokenizer.eos_token_ids
    free = Sequence(request((1, 2), sampling=SamplingParams()), 0.0)
    mine, sampler = asking(FLIGHT, temperature=1.0, seed=3), Sampler(eos, grammars)
    for step in range(200):
        rows = noise[step % 100].repeat(2, 1)
        found = sampler.sample(rows, [free, mine]).tokens
        assert found[free.id] == int(noise[step % 100].argmax())
        mine.token_ids.append(found[mine.id])
        if found[mine.id] in eos:
            break
    flight = json.loads(text_of(mine, tokenizer))
    assert set(flight) == {"carrier", "delay", "tags"}
    assert flight["carrier"] in ("UA", "AA", "B6")
    assert -30 <= flight["delay"] <= 600


def test_only_eos_may_follow_a_complete_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    state = grammars.state('{"enum": ["yes"]}')
    completion: list[int] = []
    for piece in tokenizer.encode('"yes"'):
        allowed = state.allowed(completion)
        assert allowed[piece]
        assert not allowed[sorted(tokenizer.eos_token_ids)].any()
        completion.append(piece)
    assert set(np.flatnonzero(state.allowed(completion)).tolist()) == tokenizer.eos_token_ids


def test_control_tokens_and_tokens_that_are_none_are_never_allowed(tokenizer: Tokenizer) -> None:
    wide = Grammars(lambda: tokenizer, tokenizer.vocab_size + 7, tokenizer.eos_token_ids)
    allowed = wide.state('{"type": "string"}').allowed(tokenizer.encode('"'))
    wide.close()
    assert allowed.shape == (tokenizer.vocab_size + 7,)
    assert not allowed[tokenizer.vocab_size :].any()
    assert not allowed[sorted(tokenizer.control)].any()
    assert allowed[tokenizer.encode("hello")].all()


def test_a_sequence_that_was_forgotten_goes_on_where_it_stood(
    grammars: Grammars, tokenizer: Tokenizer, noise: torch.Tensor
) -> None:
    eos = tokenizer.eos_token_ids
    steady, shaken = Sampler(eos, grammars), Sampler(eos, grammars)
    one, two = asking(FLIGHT, temperature=1.0, seed=5), asking(FLIGHT, temperature=1.0, seed=5)
    assert write(steady, one, noise, eos)
    for step in range(len(one.token_ids) - 2):
        if step % 3 == 0:
            shaken.forget(two.id)
        row = noise[step % len(noise)].clone().unsqueeze(0)
        two.token_ids.append(shaken.sample(row, [two]).tokens[two.id])
    assert two.token_ids == one.token_ids


def test_a_request_cut_by_max_tokens_has_the_beginning_of_an_answer(
    grammars: Grammars, tokenizer: Tokenizer, noise: torch.Tensor
) -> None:
    sequence = asking(FLIGHT)
    assert not write(Sampler(tokenizer.eos_token_ids, grammars), sequence, noise, tokenizer.eos_token_ids, most=4)
    text = text_of(sequence, tokenizer)
    assert text.startswith('{"')
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


BAD = {
    "[1": "EOF while parsing",
    "": "EOF while parsing",
    "5": "object",
    '{"type": "strin"}': "strin",
    '{"type": "string", "pattern": "("}': "unclosed group",
    '{"not": {}}': "not",
    '{"not": {}, "x-guidance": {"lenient": true}}': "not",  # no way round what is not supported
    '{"$ref": "http://example.com/x"}': "not present",
    '{"a":' * 2000 + "1" + "}" * 2000: "recursion limit",
    '{}}, "lark_grammar": "start: /x/"': "trailing",
}


@pytest.mark.parametrize(("schema", "says"), BAD.items(), ids=range(len(BAD)))
def test_a_schema_that_cannot_be_compiled_is_an_invalid_request_with_the_compilers_words(
    grammars: Grammars, schema: str, says: str
) -> None:
    sequence = asking(schema)
    with pytest.raises(InvalidRequest, match="json_schema cannot be used") as refused:
        grammars.state(schema)  # waits for the compiler
    assert says in str(refused.value)
    assert refused.value.field == "json_schema"
    assert grammars.is_ready(sequence)
    error = grammars.error(sequence)
    assert error is not None
    assert str(error) == str(refused.value)


def test_a_schema_that_takes_too_much_for_one_step_is_refused_and_its_neighbour_gets_its_token(
    grammars: Grammars, tokenizer: Tokenizer, noise: torch.Tensor
) -> None:
    properties = {f"k{i}": {"type": "string", "pattern": f"[a-z]{{{i + 1},}}"} for i in range(800)}
    huge = asking({"type": "object", "properties": properties, "additionalProperties": False})
    good, sampler = asking({"type": "string", "minLength": 100}), Sampler(tokenizer.eos_token_ids, grammars)
    failures: dict[str, HeadraceError] = {}
    for step in range(5):
        running = [s for s in (huge, good) if s.id not in failures]
        found = sampler.sample(noise[step : step + len(running)].clone(), running)
        failures |= found.failures
        for sequence in running:
            sequence.token_ids += [found.tokens[sequence.id]] if sequence.id in found.tokens else []
    assert list(failures) == [huge.id]
    assert isinstance(failures[huge.id], InvalidRequest)
    assert str(failures[huge.id]).startswith("json_schema cannot be used: ")
    assert len(good.token_ids) == 2 + 5


class Slow:
    """Hands out the tokenizer when it is let: until then every schema is being compiled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.go, self.now, self.calls = tokenizer, threading.Event(), 0.0, 0

    def load(self) -> Tokenizer:
        self.calls += 1
        assert self.go.wait(60)
        return self.tokenizer

    def grammars(self, **options: Any) -> Grammars:
        size, eos = self.tokenizer.vocab_size, self.tokenizer.eos_token_ids
        return Grammars(self.load, size, eos, clock=lambda: self.now, **options)


def test_nothing_is_loaded_before_the_first_schema_and_a_sequence_without_one_never_waits(tokenizer: Tokenizer) -> None:
    slow = Slow(tokenizer)
    grammars = slow.grammars()
    plain = Sequence(request(), 0.0)
    assert grammars.is_ready(plain)
    assert grammars.error(plain) is None
    assert slow.calls == 0
    grammars.close()


def test_a_sequence_is_ready_once_its_schema_is_compiled_and_the_engine_never_waits(tokenizer: Tokenizer) -> None:
    slow = Slow(tokenizer)
    grammars, sequence = slow.grammars(), asking(FLIGHT)
    grammars.submit(sequence.request.sampling.json_schema or "")
    assert not grammars.is_ready(sequence)  # and this thread is here to ask
    assert grammars.error(sequence) is None
    slow.go.set()
    assert isinstance(grammars.state(json.dumps(FLIGHT)), GrammarState)
    assert grammars.is_ready(sequence)
    assert grammars.error(sequence) is None
    grammars.submit('{"type": "null"}')
    grammars.state('{"type": "null"}')
    assert slow.calls == 1
    grammars.close()


def test_a_schema_that_is_not_compiled_in_time_is_refused(tokenizer: Tokenizer) -> None:
    slow = Slow(tokenizer)
    grammars, sequence = slow.grammars(limit_s=2.0), asking(FLIGHT)
    assert not grammars.is_ready(sequence)  # asking is enough to begin
    slow.now = 2.5
    assert grammars.is_ready(sequence)
    assert "not compiled after 2 s" in str(grammars.error(sequence))
    slow.go.set()
    grammars.close()


def test_only_those_that_are_watched_and_refused_are_named_and_only_once(grammars: Grammars) -> None:
    good, bad, ended, other = asking('{"type": "null"}'), asking("[2"), asking("[2"), asking("[2")
    for sequence in (good, bad, ended, Sequence(request(), 0.0)):
        grammars.watch(sequence)
    ended.finish_reason = FinishReason.ABORT
    grammars.state('{"type": "null"}')
    with pytest.raises(InvalidRequest):
        grammars.state("[2")
    assert [(sequence, str(error)) for sequence, error in grammars.refused()] == [(bad, str(grammars.error(other)))]
    assert grammars.refused() == []


def test_a_tokenizer_that_cannot_be_loaded_refuses_every_schema(tokenizer: Tokenizer) -> None:
    def broken() -> Tokenizer:
        raise ModelFileError("model file gone: it cannot be read")

    grammars = Grammars(broken, tokenizer.vocab_size, tokenizer.eos_token_ids)
    with pytest.raises(InvalidRequest, match="model file gone"):
        grammars.state("{}")
    assert "model file gone" in str(grammars.error(asking("{}")))
    grammars.close()


def test_schemas_beyond_the_bound_are_refused_and_the_oldest_compiled_one_makes_room(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "MAX_PENDING", 3)
    monkeypatch.setattr(grammar, "MAX_COMPILED", 4)
    slow = Slow(tokenizer)
    grammars = slow.grammars()
    enums = [f'{{"enum": [{i}]}}' for i in range(6)]
    for schema in (*enums[:3], enums[0]):  # one that is known already counts once
        grammars.submit(schema)
    with pytest.raises(EngineRefused, match="3 JSON schemas wait"):
        grammars.submit(enums[3])
    assert not grammars.is_ready(asking(enums[3]))  # it waits until there is room
    assert enums[3] not in grammars._known
    slow.go.set()
    for schema in enums:
        grammars.state(schema)
    assert len(grammars._known) == 4
    again = asking(enums[0])
    grammars.is_ready(again)  # begun anew
    assert isinstance(grammars.state(enums[0]), GrammarState)
    grammars.close()
