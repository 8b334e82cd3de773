"""A whole engine that speculates, short of everything: its requests get what they get without, in fewer steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.contracts import FinishReason, GenerateRequest, Pool, SamplingParams, TokenLogprob
from core_engine.llm.engine import Engine
from core_engine.llm.grammar import Grammars
from core_engine.llm.speculation.prompt_lookup import PromptLookup
from core_engine.llm.speculation.proposer import Proposer
from tests.core_engine.llm.scheduling import check
from tests.core_engine.llm.speculating import Oracle, speculate
from tests.core_engine.llm.tiny import CONFIG, EOS, request, tiny_engine, tiny_tokenizer

dials = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 0.0, 0.8]),
    top_p=st.sampled_from([1.0, 0.9]),
    seed=st.integers(0, 9),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), tuple(range(3, 30))]),
    min_tokens=st.sampled_from([0, 4]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    logprobs=st.sampled_from([None, 2]),
)
prompts = st.lists(st.integers(3, 9), min_size=1, max_size=30)
jobs = st.lists(st.tuples(prompts, dials, st.sampled_from(Pool)), min_size=1, max_size=6)


def run(engine: Engine, requests: Sequence[GenerateRequest]) -> tuple[dict[str, list[int]], dict[str, list[object]]]:
    """By attempt id the tokens, and log-probabilities with the reason of the end; the books are checked each step."""
    tokens: dict[str, list[int]] = {each.attempt_id: [] for each in requests}
    told: dict[str, list[object]] = {each.attempt_id: [] for each in requests}
    for each in requests:
        engine.add(each)
    for _ in range(2000):
        if not engine.has_work:
            return tokens, told
        for event in engine.step():
            name = event.sequence.id
            tokens[name] += event.token_ids
            assert event.logprobs is None or len(event.logprobs) == len(event.token_ids)
            told[name] += [rounded(entry) for entry in event.logprobs or ()]
            if event.finish_reason is not None:
                assert event.usage is not None
                assert event.usage.completion_tokens == len(tokens[name])
                told[name].append(event.finish_reason)
        check(engine.scheduler)
    raise AssertionError("not finished after 2000 steps")


def rounded(entry: TokenLogprob) -> tuple[object, ...]:
    return entry.token_id, entry.rank, pytest.approx(entry.logprob, abs=1e-4), tuple(token for token, _ in entry.top)


@settings(max_examples=40)
@given(
    asked=jobs,
    num_blocks=st.integers(22, 65),
    max_step_tokens=st.sampled_from([8, 64]),
    max_tokens=st.integers(1, 9),
    wrong_every=st.sampled_from([0, 2, 5]),
    caches=st.booleans(),
    is_lookup=st.booleans(),
)
def test_every_request_gets_what_it_gets_without(
    asked: list[tuple[list[int], SamplingParams, Pool]],
    num_blocks: int,
    max_step_tokens: int,
    max_tokens: int,
    wrong_every: int,
    caches: bool,
    is_lookup: bool,
) -> None:
    requests = [request(prompt, pool=pool, sampling=own) for prompt, own, pool in asked]
    tokens, told = run(tiny_engine(), requests)
    engine = tiny_engine(num_blocks=num_blocks, max_step_tokens=max_step_tokens, has_prefix_cache=caches)
    lookup = PromptLookup(engine.runner.sampler.num_allowed)
    speculation = speculate(engine, lookup if is_lookup else Oracle(tokens, wrong_every), max_tokens)
    assert run(engine, requests) == (tokens, told)
    assert lookup.num_sequences == speculation.acceptance.num_sequences == 0
    assert engine.scheduler.blocks.num_held == 0
    for counters in engine.scheduler.counters.values():
        assert counters.accepted_tokens <= counters.draft_tokens <= max_tokens * counters.drafts


def many(num_requests: int = 6, max_tokens: int = 40, **options: object) -> list[GenerateRequest]:
    rng = random.Random(0)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [
        request([rng.randrange(3, 90) for _ in range(4 + 3 * n)], sampling=replace(sampling, **options))  # type: ignore[arg-type]
        for n in range(num_requests)
    ]


def with_oracle(requests: Sequence[GenerateRequest], wrong_every: int = 0, **options: int) -> Engine:
    engine = tiny_engine(**options)  # type: ignore[arg-type]
    speculate(engine, Oracle(run(tiny_engine(), requests)[0], wrong_every))
    return engine


def test_right_drafts_make_fewer_steps_and_wrong_ones_no_more() -> None:
    requests = many()
    plain = tiny_engine()
    run(plain, requests)
    right, wrong = with_oracle(requests), with_oracle(requests, wrong_every=1)
    run(right, requests)
    run(wrong, requests)
    assert right.scheduler.num_steps < plain.scheduler.num_steps / 3
    assert wrong.scheduler.num_steps == plain.scheduler.num_steps
    assert wrong.scheduler.counters[Pool.INTERACTIVE].accepted_tokens == 0


def test_every_row_is_counted_once_and_rejected_ones_are_not_called_wasted() -> None:
    requests = many()
    engine = with_oracle(requests, wrong_every=3)
    run(engine, requests)
    counters = engine.scheduler.counters[Pool.INTERACTIVE]
    rejected = counters.draft_tokens - counters.accepted_tokens
    assert rejected > 0 < counters.accepted_tokens
    assert counters.wasted_tokens == 0
    once = sum(len(each.prompt_token_ids) + each.sampling.max_tokens - 1 for each in requests)
    assert counters.computed_tokens + counters.cached_tokens == once + rejected
    assert counters.generation_tokens == sum(each.sampling.max_tokens for each in requests)


def test_a_pool_that_is_too_small_pre_empts_and_the_tokens_stay_the_same() -> None:
    requests = [replace(each, pool=pool) for each in many(8, 40) for pool in (random.Random(1).choice(list(Pool)),)]
    expected, _ = run(tiny_engine(), requests)
    engine = with_oracle(requests, wrong_every=4, num_blocks=30)
    for history in engine.scheduler.seating._history.values():
        for _ in range(40):  # completions were short: too many are let in
            history.ended(1, 40)
    assert run(engine, requests)[0] == expected
    assert sum(counters.preemptions for counters in engine.scheduler.counters.values()) > 0
    assert sum(counters.accepted_tokens for counters in engine.scheduler.counters.values()) > 0


def test_only_tokens_that_were_accepted_are_found_by_others() -> None:
    """Rejected drafts filled whole blocks; a request that goes on from the true tokens gets what it gets alone."""
    first = many(1, 40)
    completion = run(tiny_engine(), first)[0][first[0].attempt_id]
    engine = tiny_engine()
    speculate(engine, Oracle({first[0].attempt_id: completion}, wrong_every=6), max_tokens=9)
    run(engine, first)
    again = request((*first[0].prompt_token_ids, *completion), 12)
    expected = run(tiny_engine(has_prefix_cache=False), [again])[0]
    assert run(engine, [again])[0] == expected
    assert engine.scheduler.counters[Pool.INTERACTIVE].cached_tokens > 0


def test_a_stop_token_within_a_draft_ends_the_sequence_there() -> None:
    ask = many(1)[0]
    completion = run(tiny_engine(), [ask])[0][ask.attempt_id]
    stop = completion[9]
    at = completion.index(stop)
    ask = replace(ask, sampling=replace(ask.sampling, stop_token_ids=(stop,)))
    engine = tiny_engine()
    speculate(engine, Oracle({ask.attempt_id: completion}), max_tokens=9)
    tokens, told = run(engine, [ask])
    assert tokens[ask.attempt_id] == completion[: at + 1]
    assert told[ask.attempt_id] == [FinishReason.STOP]


def test_an_abort_between_steps_gives_everything_back() -> None:
    requests = many()
    engine = with_oracle(requests, wrong_every=3)
    sequences = [engine.add(each) for each in requests]
    for sequence in sequences:
        engine.step()
        engine.abort(sequence)
        check(engine.scheduler)
    assert not engine.has_work
    assert engine.scheduler.blocks.num_held == 0
    assert engine.runner.sampler.num_sequences == engine.scheduler.speculation.acceptance.num_sequences == 0  # type: ignore[union-attr]


def test_device_seconds_of_all_sequences_add_up_with_drafts_too() -> None:
    requests = many()
    engine = with_oracle(requests, wrong_every=3)
    sequences = [engine.add(each) for each in requests]
    spent = 0.0
    while engine.has_work:
        engine.step()
        spent += engine.last_run_s
    assert sum(sequence.device_s for sequence in sequences) == pytest.approx(spent)


SCHEMA = json.dumps({"type": "array", "items": {"enum": ["late", "on time", 17]}, "minItems": 3, "maxItems": 5})


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(tiny_tokenizer, CONFIG.vocab_size, frozenset({EOS}))
    grammars.state(SCHEMA)  # compiled: no test has to wait for it
    yield grammars
    grammars.close()


PROPOSERS: list[Callable[[Engine, dict[str, list[int]]], Proposer]] = [
    lambda engine, _: PromptLookup(engine.runner.sampler.num_allowed),
    lambda _, completions: Oracle(completions, 7),
]


@pytest.mark.parametrize("proposer", PROPOSERS, ids=["prompt_lookup", "oracle"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_comes_out_the_same_and_complete(
    grammars: Grammars, temperature: float, proposer: Callable[[Engine, dict[str, list[int]]], Proposer]
) -> None:
    sampling = SamplingParams(max_tokens=90, temperature=temperature, json_schema=SCHEMA, logprobs=1)
    requests = [request((5, 6, n), sampling=replace(sampling, seed=n)) for n in range(5)]
    tokens, told = run(tiny_engine(grammars=grammars), requests)
    engine = tiny_engine(grammars=grammars)
    speculate(engine, proposer(engine, tokens))
    assert run(engine, requests) == (tokens, told)
    assert engine.scheduler.counters[Pool.INTERACTIVE].accepted_tokens > 10
    for completion in tokens.values():
        assert len(json.loads(tiny_tokenizer().decode(completion))) >= 3
