"""Heads through the whole engine: the prefix cache, chunks, pre-emption, ends of every kind, and what is charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Head, HeadKind, Normalise, Pool, Pooling
from core_engine.errors import HeadraceError
from core_engine.llm.engine import Engine, SequenceEvent
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_result import StepResult
from tests.core_engine.llm import test_decoder
from tests.core_engine.llm.by_hand import BLOCK_SIZE, ByHand, head_request
from tests.core_engine.llm.label_sets import Labels, label_sets
from tests.core_engine.llm.test_decoder import PROMPT
from tests.core_engine.llm.test_heads import LABELS, LAST, MEAN, expected_scores, nothing_is_kept, score
from tests.core_engine.llm.tiny import check, request, tiny_engine

llama = test_decoder.reference  # its fixture, under a name of this file
close = partial(pytest.approx, abs=1e-5, rel=1e-4)
BRANCHES = 2  # of LABELS, over labels: by 40 to 40-7, and to 7


def drain(engine: Engine) -> dict[str, SequenceEvent]:
    """Run to the end; the last event of every attempt, of which heads have exactly one."""
    events: dict[str, SequenceEvent] = {}
    while engine.has_work:
        for event in engine.step():
            assert event.sequence.id not in events or event.sequence.request.head is None
            events[event.sequence.id] = event
        check(engine)
    assert not engine._groups
    assert nothing_is_kept(engine.runner.heads)
    return events


def answers(engine: Engine, asked: Sequence[GenerateRequest]) -> dict[str, SequenceEvent]:
    """The last events of `asked`, and of whatever else is in the engine."""
    for each in asked:
        engine.add(each)
    return drain(engine)


def values(engine: Engine, asked: Sequence[GenerateRequest]) -> list[tuple[float, ...]]:
    events = answers(engine, asked)
    found = [events[each.attempt_id] for each in asked]
    assert all(event.finish_reason is FinishReason.STOP for event in found)
    return [event.values or () for event in found]


@pytest.mark.parametrize("normalise", Normalise)
@pytest.mark.parametrize("max_step_tokens", [*range(1, BLOCK_SIZE + 2), 64])
def test_scores_are_transformers_in_chunks_of_any_size_cold_and_warm(
    llama: LlamaForCausalLM, max_step_tokens: int, normalise: Normalise
) -> None:
    expected = expected_scores(llama, PROMPT, LABELS, normalise)
    engine = tiny_engine(block_size=BLOCK_SIZE, max_step_tokens=max_step_tokens)
    for attempt in ("cold", "warm", "warm again"):
        assert values(engine, [head_request(PROMPT, score(LABELS, normalise), attempt)]) == [close(expected)]


@given(
    st.sampled_from(Normalise).flatmap(lambda n: st.tuples(st.just(n), label_sets(n))),
    st.lists(st.integers(0, 96), min_size=1, max_size=14),
    st.integers(1, 20),
    st.booleans(),
)
def test_scores_among_neighbours_are_those_of_a_run_of_their_own(
    case: tuple[Normalise, Labels], prompt: list[int], max_step_tokens: int, has_prefix_cache: bool
) -> None:
    normalise, labels = case
    asked = [head_request(prompt, score(labels, normalise), "one"), head_request(prompt, LAST, "two")]
    asked += [head_request([*prompt, 5], MEAN, "three"), head_request(prompt[::-1], score(labels, normalise), "four")]
    engine = tiny_engine(block_size=BLOCK_SIZE, max_step_tokens=max_step_tokens, has_prefix_cache=has_prefix_cache)
    writers = [engine.add(request(prompt, 8)), engine.add(request(prompt[:3], 8, Pool.BULK))]
    found = values(engine, asked)
    alone = ByHand(num_blocks=400).run(asked)
    assert found == [close(alone[each.attempt_id]) for each in asked]
    assert all(writer.num_completion_tokens == 8 for writer in writers)


def test_branches_share_the_prompt_through_the_prefix_cache() -> None:
    prompt = [*range(40)]
    engine = tiny_engine(block_size=BLOCK_SIZE)
    lead = engine.add(head_request(prompt, score(LABELS, Normalise.LABELS)))
    assert len(engine.sequences_of(lead)) == BRANCHES
    usage = drain(engine)["head"].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (40, 0, 0)
    # the prompt once, and of each other branch its path and at most what is no whole block of the prompt
    assert usage.computed_tokens <= 40 + BRANCHES * (2 + BLOCK_SIZE)
    again = engine.add(head_request(prompt, score(LABELS, Normalise.LABELS), "again"))
    drain(engine)
    assert again.usage().cached_tokens >= 40 - BLOCK_SIZE


def test_a_mean_computes_every_token_and_a_last_state_only_what_is_not_cached() -> None:
    engine = tiny_engine(block_size=BLOCK_SIZE)
    computed = {}
    for attempt, head in (("mean", MEAN), ("mean again", MEAN), ("last", LAST)):
        engine.add(head_request(PROMPT, head, attempt))
        usage = drain(engine)[attempt].usage
        assert usage is not None
        computed[attempt] = (usage.cached_tokens, usage.computed_tokens)
    assert computed == {"mean": (0, 13), "mean again": (0, 13), "last": (12, 1)}


def test_a_head_ends_in_the_step_of_its_last_prompt_token_beside_decode_rows_and_holds_nothing_after_it() -> None:
    engine = tiny_engine(clock=lambda: 0.0)
    writer = engine.add(request([1, 2, 3], 20))
    engine.step()
    held = engine.scheduler.blocks.num_held
    engine.add(head_request(PROMPT, LAST))
    (event,) = [event for event in engine.step() if event.sequence is not writer]
    assert event.values is not None
    assert (event.token_ids, event.finish_reason) == ((), FinishReason.STOP)
    assert writer.num_completion_tokens == 2
    assert engine.scheduler.blocks.num_held == held
    check(engine)


@pytest.mark.parametrize("which", range(BRANCHES))
@pytest.mark.parametrize("num_steps", range(4))
def test_aborting_any_of_a_scores_sequences_ends_them_all(num_steps: int, which: int) -> None:
    engine = tiny_engine(max_step_tokens=6, clock=lambda: 0.0)  # how long steps take decides how many it has
    lead = engine.add(head_request(PROMPT, score(LABELS, Normalise.LABELS)))
    other = engine.add(head_request(PROMPT[::-1], score(LABELS, Normalise.LABELS), "other"))
    members = list(engine.sequences_of(lead))
    for _ in range(num_steps):
        engine.step()
    engine.abort(members[which])
    assert lead.finish_reason is FinishReason.ABORT
    assert {s.id for s in engine.scheduler.sequences()} <= {s.id for s in engine.sequences_of(other)}
    engine.abort(lead)  # once more changes nothing
    assert set(drain(engine)) == {"other"}


def test_a_deadline_ends_the_attempt_once() -> None:
    now = [0.0]
    engine = tiny_engine(max_step_tokens=6, clock=lambda: now[0])
    asked = head_request(PROMPT, score(LABELS, Normalise.LABELS))
    lead = engine.add(replace(asked, deadline=Deadline(1.0, lambda: now[0])))
    engine.step()
    now[0] = 2.0
    (event,) = engine.step()
    assert event.sequence is lead
    assert (event.finish_reason, event.values) == (FinishReason.DEADLINE, None)
    assert not engine.has_work
    assert not engine._groups
    check(engine)


def test_a_sequence_that_fails_ends_its_score_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    lead = engine.add(head_request(PROMPT, score(LABELS, Normalise.LABELS)))
    run, broken = engine.runner.run, HeadraceError("broken on purpose")

    def failing(plan: StepPlan, between: Callable[[], None]) -> StepResult:
        result = run(plan, between)
        result.failures["head/1"] = broken
        return result

    monkeypatch.setattr(engine.runner, "run", failing)
    events = [event for event in _steps(engine) if event.sequence.request.head is not None]
    assert [event.sequence for event in events] == [lead]
    assert (events[0].finish_reason, events[0].failure) == (FinishReason.ERROR, broken)
    assert not engine.has_work


def _steps(engine: Engine) -> list[SequenceEvent]:
    events = []
    while engine.has_work:
        events += engine.step()
        check(engine)
    return events


def test_what_all_sequences_of_a_score_have_used_is_charged_to_its_attempt() -> None:
    ticks = iter(range(1_000_000))
    engine = tiny_engine(max_step_tokens=8, clock=lambda: next(ticks) / 1000)
    engine.add(head_request(PROMPT, score(LABELS, Normalise.LABELS)))
    engine.add(head_request([3, 1], Head(HeadKind.EMBED, pooling=Pooling.LAST), "other"))
    spent, events = 0.0, dict[str, SequenceEvent]()
    while engine.has_work:
        events |= {event.sequence.id: event for event in engine.step()}
        spent += engine.last_run_s
    assert sum(event.usage.device_s for event in events.values() if event.usage) == pytest.approx(spent)


def test_heads_that_lose_their_blocks_midway_give_the_same() -> None:
    prompt, heads = [*range(24)], (score(LABELS, Normalise.VOCAB), MEAN)
    asked = [replace(head_request(prompt, head, f"{i}"), pool=Pool.BULK) for i, head in enumerate(heads)]
    expected = ByHand().run(asked)
    num_preemptions = 0
    for num_blocks in range(14, 19):
        for max_step_tokens in (3, 5, 7):
            engine = tiny_engine(
                num_blocks=num_blocks, block_size=BLOCK_SIZE, max_step_tokens=max_step_tokens, clock=lambda: 0.0
            )
            members = [s for each in asked for s in engine.sequences_of(engine.add(each))]
            for _ in range(4):
                engine.step()
            events = answers(engine, [request([50 + i] * 12, 12) for i in range(4)])
            num_preemptions += sum(s.num_preemptions for s in members)
            assert {i: events[i].values for i in expected} == {i: close(expected[i]) for i in expected}
    assert num_preemptions > 0
