"""What may be found in the prefix cache, by whom, and when; and that finding it changes no result."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import FinishReason, GenerateRequest, Pool, SamplingParams
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.engine import Engine
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.scheduling import step
from tests.core_engine.llm.tiny import STEP_TIME, limits, request, run_all, tiny_engine

BLOCK = 4
PROMPT = [11, 5, 93, 8, 40, 41, 42, 7, 7, 60, 3, 19, 25]


def scheduler(max_step_tokens: int = 64) -> Scheduler:
    return Scheduler(limits(max_step_tokens), BlockPool(65, BLOCK), STEP_TIME, PrefixHasher(BLOCK, "weights"))


def finish(s: Scheduler, asked: GenerateRequest) -> Sequence:
    """Run a request to its end, alone."""
    sequence = s.add(asked, 0.0)
    while s.has_work:
        step(s)
    return sequence


def names(
    ids: Items[int], weights: str = "w", adapter: str = "", size: int = BLOCK, asked: GenerateRequest | None = None
) -> list[bytes]:
    sequence = Sequence(replace(asked or request(ids), prompt_token_ids=tuple(ids)), 0.0)
    PrefixHasher(size, weights, adapter).extend(sequence, len(ids) // size)
    return sequence.block_hashes


def test_a_name_is_the_same_in_every_process() -> None:
    """The literal value: routers and engines of other processes must come to it too."""
    assert names([1, 2, 3, 4])[0].hex() == "64921bbef808e88abb6751e37c653e74"


def test_everything_that_keys_and_values_depend_on_is_in_the_name() -> None:
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    plain = names(ids)
    others = [
        names(ids, weights="v"),
        names(ids, adapter="a"),
        names([0, *ids[1:]]),
        names(ids, asked=replace(request(ids), tenant="other")),
    ]
    assert all(set(plain).isdisjoint(other) for other in others)
    assert names([*ids[:7], 9])[0] == plain[0]
    assert names([*ids[:7], 9])[1] != plain[1]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "ab", "b"]), st.sampled_from(["", "a", "ab", "b"])), min_size=2))
def test_nothing_can_be_moved_from_one_field_of_a_name_into_the_next(pairs: list[tuple[str, str]]) -> None:
    found = {names([1, 2, 3, 4], weights, adapter)[0] for weights, adapter in pairs}
    assert len(found) == len(set(pairs))


def test_blocks_wholly_inside_a_template_are_shared_by_tenants_and_no_others_are() -> None:
    asked = replace(request(range(12)), predictor="p", version=1, template_tokens=10)
    mine = names(range(12), asked=replace(asked, tenant="a"))
    theirs = names(range(12), asked=replace(asked, tenant="b"))
    assert mine[:2] == theirs[:2]
    assert mine[2] != theirs[2]  # tokens 8..11: two of them are the tenant's own
    for other in (replace(asked, version=2), replace(asked, predictor="q")):
        assert set(names(range(12), asked=other)[:2]).isdisjoint(mine)


def test_a_tenant_cannot_name_itself_into_a_template() -> None:
    template = names(range(4), asked=replace(request(range(4)), predictor="p", version=1, template_tokens=4))
    assert names(range(4), asked=replace(request(range(4)), tenant="p:1")) != template


def test_a_prompt_is_found_after_its_step_and_its_cached_tokens_are_counted() -> None:
    s = scheduler()
    assert finish(s, request(PROMPT, 1)).usage().cached_tokens == 0
    again = finish(s, request([*PROMPT[:9], 1, 1], 1)).usage()
    assert (again.cached_tokens, again.computed_tokens, again.prompt_tokens) == (8, 3, 11)
    assert s.counters[Pool.INTERACTIVE].cached_tokens == 8


def test_a_full_hit_computes_one_token_into_a_copy_of_the_last_block() -> None:
    s = scheduler()
    finish(s, request(PROMPT[:8], 1))
    again = s.add(request(PROMPT[:8], 1), 0.0)
    plan = s.schedule(0.0)
    assert [item.num_tokens for item in plan.scheduled] == [1]
    ((source, copy),) = plan.copies
    assert again.block_table[-1] == copy != source
    assert again.num_cached_tokens == 7
    s.commit(plan, {again.id: 1}, frozenset())


def test_another_tenant_finds_nothing() -> None:
    s = scheduler()
    finish(s, replace(request(PROMPT, 1), tenant="a"))
    assert finish(s, replace(request(PROMPT, 1), tenant="b")).num_cached_tokens == 0


def test_a_failed_step_publishes_nothing() -> None:
    s = scheduler()
    failed = s.add(request(PROMPT, 1), 0.0)
    s.schedule(0.0)
    s.abort(failed, FinishReason.ERROR)
    assert finish(s, request(PROMPT, 1)).num_cached_tokens == 0


def test_prompt_logprobs_never_skip_a_token() -> None:
    s = scheduler()
    finish(s, request(PROMPT, 1))
    asked = request(PROMPT, sampling=SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert finish(s, asked).num_cached_tokens == 0


def test_completions_are_found_by_the_next_turn_of_a_conversation() -> None:
    s = scheduler()
    first = finish(s, request(PROMPT[:6], 8))
    turn = finish(s, request([*first.token_ids, 1, 2, 3], 1))
    assert turn.num_cached_tokens == 12  # of 13 computed ones; the last sampled one never was


def test_a_prompt_whose_beginning_is_being_computed_waits_for_it() -> None:
    s = scheduler()
    asked = [request([*PROMPT[:12], n], 2) for n in range(5)]
    for each in asked:
        s.add(each, 0.0)
    assert [item.sequence.id for item in step(s).scheduled] == [asked[0].attempt_id]
    plan = step(s)
    assert {item.sequence.id for item in plan.scheduled} == {each.attempt_id for each in asked}
    assert [item.num_tokens for item in plan.chunks] == [1] * 4


def test_interactive_does_not_wait_for_bulk() -> None:
    s = scheduler()
    s.add(request(PROMPT, 2, Pool.BULK), 0.0)
    step(s)
    s.add(request([*range(50)], 2, Pool.BULK), 0.0)
    s.schedule(0.0)
    interactive = s.add(request([*range(50)], 2), 0.0)
    assert not s.seating.prefixes.awaits(interactive)


def test_two_that_computed_the_same_block_side_by_side_end_with_one_of_it() -> None:
    s = scheduler(max_step_tokens=8)
    bulk = s.add(request(PROMPT, 9, Pool.BULK), 0.0)
    step(s)
    interactive = s.add(request(PROMPT, 9), 0.0)  # does not wait for bulk to compute tokens 8 to 11
    assert [item.num_tokens for item in step(s).scheduled] == [5, 3]
    step(s)
    assert bulk.num_run_tokens == 13
    assert bulk.block_table[:3] == interactive.block_table[:3]
    assert s.blocks.held == {Pool.INTERACTIVE: 4, Pool.BULK: 1}


def test_who_waited_goes_on_alone_when_the_one_it_waited_for_is_aborted() -> None:
    s = scheduler()
    leader, follower = (s.add(request(PROMPT, 2), 0.0) for _ in range(2))
    s.schedule(0.0)
    s.abort(leader)
    assert [item.sequence.id for item in step(s).scheduled] == [follower.id]


@pytest.mark.parametrize("length", range(1, 14))
@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 64])
def test_cold_and_warm_give_the_same_completion_for_every_length_and_chunk(length: int, chunk: int) -> None:
    engine = tiny_engine(max_step_tokens=chunk)
    prompt, expected = PROMPT[:length], cold(PROMPT[:length])
    for _ in range(3):
        assert completion(engine, prompt) == expected
    assert completion(engine, [*prompt, 4, 4]) == cold([*prompt, 4, 4])


@given(data=st.data())
def test_prompts_that_share_beginnings_complete_as_they_do_alone(data: st.DataObject) -> None:
    prompt = st.integers(1, 13).map(lambda n: PROMPT[:n])
    prompts = data.draw(st.lists(st.tuples(prompt, st.lists(st.integers(3, 9), max_size=5)), min_size=2, max_size=6))
    asked = [request([*head, *tail], 6) for head, tail in prompts]
    engine = tiny_engine(max_step_tokens=data.draw(st.sampled_from([2, 7, 64])), num_blocks=41)
    together = run_all(engine, asked)
    assert all(together[each.attempt_id] == cold(list(each.prompt_token_ids), 6) for each in asked)


def completion(engine: Engine, prompt: list[int], max_tokens: int = 8) -> list[int]:
    return run_all(engine, [request(prompt, max_tokens)]).popitem()[1]


def cold(prompt: list[int], max_tokens: int = 8) -> list[int]:
    return completion(tiny_engine(has_prefix_cache=False), prompt, max_tokens)
