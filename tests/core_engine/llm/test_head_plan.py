"""The sequences of a head, and what they give together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import FinishReason, Head, HeadKind, Normalise, Pool, Pooling, SamplingParams, Usage
from core_engine.errors import EngineRefused, InvalidRequest, UnknownName
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.head_group import HeadGroup
from core_engine.llm.head_plan import BranchHead, HeadPlan, check_head
from core_engine.llm.scheduler import Scheduler
from tests.core_engine.llm.by_hand import head_request
from tests.core_engine.llm.label_sets import Labels, label_sets
from tests.core_engine.llm.tiny import STEP_TIME, limits

PROMPT = (1, 2, 3, 4, 5)
FOUR: Labels = ((1, 1), (1, 2), (2, 1), (2, 2))  # two branches
OTHERS = (Head(HeadKind.CLASSIFY, name="a:1"), Head(HeadKind.EMBED), Head(HeadKind.EMBED, pooling=Pooling.MEAN))


def score(labels: Labels, normalise: Normalise = Normalise.LABELS) -> Head:
    return Head(HeadKind.SCORE, labels=labels, normalise=normalise)


def scheduler() -> Scheduler:
    return Scheduler(limits(), BlockPool(65, 4), STEP_TIME)


@pytest.mark.parametrize("head", OTHERS)
def test_what_takes_one_sequence_is_the_request_itself_and_its_values(head: Head) -> None:
    plan = HeadPlan(head_request(PROMPT, head))
    assert plan.requests == (plan.request,)
    assert plan.collect("head", (0.5, 0.25)) == (0.5, 0.25)


@given(st.sampled_from(Normalise).flatmap(lambda n: st.tuples(st.just(n), label_sets(n))))
def test_every_sequence_is_the_prompt_and_a_path_to_its_last_choice(case: tuple[Normalise, Labels]) -> None:
    normalise, labels = case
    plan = HeadPlan(head_request(PROMPT, score(labels, normalise)))
    ids = [part.attempt_id for part in plan.requests]
    assert ids == ["head", *(f"head/{k}" for k in range(1, len(ids)))]
    for part in plan.requests:
        prompt, head = part.prompt_token_ids, part.head
        assert isinstance(head, BranchHead)
        positions = [choice.position for choice in head.choices]
        assert prompt[: len(PROMPT)] == PROMPT
        assert positions == sorted(set(positions))
        assert len(PROMPT) - 1 <= positions[0]
        assert positions[-1] == len(prompt) - 1
        assert head.normalise is normalise
        for choice in head.choices:
            path = prompt[len(PROMPT) : choice.position + 1]
            assert set(choice.token_ids) == {
                label[len(path)] for label in labels if label[: len(path)] == path and len(label) > len(path)
            }


@given(st.permutations(range(2)))
def test_values_come_with_the_last_sequence_whatever_their_order(order: list[int]) -> None:
    plan = HeadPlan(head_request(PROMPT, score(FOUR)))
    values = {"head": (-1.0, -2.0, -0.5, -0.75), "head/1": (-0.25, -3.0)}  # the root and 1, then 2
    first, last = (plan.requests[k].attempt_id for k in order)
    assert plan.collect(first, values[first]) is None
    found = plan.collect(last, values[last])
    e = pytest.approx
    assert found == e([2.718281828**power for power in (-1.5, -1.75, -2.25, -5.0)])


def test_a_branch_never_goes_over_the_wire_and_a_head_does_as_it_is() -> None:
    head = score(FOUR, Normalise.VOCAB)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(head), type=Head) == head


class TestCheck:
    def refused(self, head: Head, **sampling: Any) -> InvalidRequest:
        asked = head_request(PROMPT, head)
        asked = type(asked)(asked.attempt_id, PROMPT, SamplingParams(**sampling), asked.deadline, head=head)
        with pytest.raises(InvalidRequest) as caught:
            check_head(asked, 97, ("b:2", "a:1"))
        return caught.value

    def test_heads_that_can_be_run_pass(self) -> None:
        for head in (*OTHERS, score(FOUR), score(((1, 2), (1,)), Normalise.VOCAB)):
            check_head(head_request(PROMPT, head), 97, ("a:1",))

    def test_an_unknown_linear_head_is_named_beside_those_that_are_held(self) -> None:
        error = self.refused(Head(HeadKind.CLASSIFY, name="c:3"))
        assert isinstance(error, UnknownName)
        assert str(error) == "this engine holds no head 'c:3'; it holds a:1, b:2"

    def test_labels_are_checked(self) -> None:
        assert self.refused(score(((1,), (97,)))).field == "head.labels[1]"

    @pytest.mark.parametrize(
        ("field", "value"), [("logprobs", 0), ("prompt_logprobs", 3), ("json_schema", '{"type": "object"}')]
    )
    def test_what_describes_a_completion_is_refused_beside_a_head(self, field: str, value: object) -> None:
        error = self.refused(Head(HeadKind.EMBED), **{field: value})
        assert (error.field, error.value) == (field, value)


class TestGroup:
    def test_each_sequence_needs_what_lies_from_its_first_choice_on(self) -> None:
        group = HeadGroup(HeadPlan(head_request(PROMPT, score(FOUR))), scheduler(), 0.0)
        assert [s.first_output for s in group.sequences] == [len(PROMPT) - 1, len(PROMPT)]
        assert [s.token_ids for s in group.sequences] == [[*PROMPT, 1], [*PROMPT, 2]]
        assert group.lead.id == "head"
        assert all(s.max_completion_tokens == 0 for s in group.sequences)

    def test_a_queue_that_takes_only_some_of_the_sequences_takes_none(self) -> None:
        full = scheduler()
        while full.load(Pool.INTERACTIVE).waiting < 63:
            full.add(head_request(PROMPT, OTHERS[1], str(full.load(Pool.INTERACTIVE).waiting)), 0.0)
        with pytest.raises(EngineRefused):
            HeadGroup(HeadPlan(head_request(PROMPT, score(FOUR))), full, 0.0)
        assert full.load(Pool.INTERACTIVE).waiting == 63

    def test_in_the_end_the_lead_tells_what_all_have_used_and_counts_the_prompt_once(self) -> None:
        group = HeadGroup(HeadPlan(head_request(PROMPT, score(FOUR))), scheduler(), 0.0)
        for sequence, cached, seconds, batch in zip(group.sequences, (2, 4), (0.5, 0.25), (3, 7), strict=True):
            sequence.last_step, sequence.num_cached_tokens = 1, cached
            sequence.num_computed_tokens = cached
            sequence.advance(len(sequence.token_ids) - cached)
            sequence.first_scheduled_s = 10 - seconds
            sequence.device_s, sequence.kv_block_s, sequence.largest_batch = seconds, 2 * seconds, batch
        group.end(FinishReason.STOP)
        usage = group.lead.usage()
        assert (usage.prompt_tokens, usage.cached_tokens, usage.computed_tokens) == (5, 2, 4 + 2)
        assert (usage.device_s, usage.kv_block_s, usage.batch_size) == (0.75, 1.5, 7)
        assert (usage.completion_tokens, group.lead.finish_reason) == (0, FinishReason.STOP)
        assert group.lead.first_scheduled_s == 9.5

    def test_what_ends_before_it_has_started_has_used_nothing(self) -> None:
        group = HeadGroup(HeadPlan(head_request(PROMPT, score(FOUR))), scheduler(), 0.0)
        group.end(FinishReason.ABORT)
        assert group.lead.usage() == Usage(prompt_tokens=len(PROMPT))
