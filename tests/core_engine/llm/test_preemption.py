"""Who gives way when blocks run out, and that it is nobody's end: bulk first, then what wastes least, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_engine.contracts import FinishReason, Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.preemption import choose_victim
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.scheduling import run, step
from tests.core_engine.llm.tiny import STEP_TIME, limits, request, run_all, tiny_engine

BLOCK = 4
POOL = PoolLimits(0, 8, 1.0, 64, 4096)


def holding(blocks: BlockPool, num_computed: int, pool: Pool = Pool.INTERACTIVE) -> Sequence:
    made = Sequence(request(range(num_computed + 1), 50, pool), 0.0)
    made.num_computed_tokens = num_computed
    made.block_table = [blocks.take(pool) for _ in range(blocks.blocks_for(num_computed))]
    return made


def test_bulk_goes_first_then_the_one_whose_recomputing_is_cheapest() -> None:
    blocks = BlockPool(100, BLOCK)
    long, short = holding(blocks, 80), holding(blocks, 9)
    bulk = holding(blocks, 120, Pool.BULK)
    assert choose_victim([long, short, bulk], blocks, STEP_TIME, 1) is bulk
    assert choose_victim([long, short], blocks, STEP_TIME, 1) is short


def test_one_that_frees_as_much_as_is_needed_is_worth_its_price() -> None:
    blocks = BlockPool(100, BLOCK)
    tiny, enough = holding(blocks, 4), holding(blocks, 36)  # 1 block at 4 tokens; 9 blocks at 36, four tokens each
    assert choose_victim([tiny, enough], blocks, STEP_TIME, 1) is tiny
    per_block = replace(STEP_TIME, a=0.0, e=0.0)
    assert choose_victim([tiny, enough], blocks, per_block, 9) in (tiny, enough)
    dear = holding(blocks, 5)  # 2 blocks for 5 tokens: 2.5 a block
    assert choose_victim([tiny, enough, dear], blocks, per_block, 2) is dear


def test_blocks_that_others_hold_free_nothing() -> None:
    blocks = BlockPool(100, BLOCK)
    first = holding(blocks, 8)
    for block in first.block_table:
        blocks.share(block, Pool.INTERACTIVE)
    assert choose_victim([first], blocks, STEP_TIME, 1) is None


def test_the_protected_are_never_chosen() -> None:
    blocks = BlockPool(100, BLOCK)
    sequence = holding(blocks, 8)
    sequence.is_protected = True
    assert choose_victim([sequence], blocks, STEP_TIME, 1) is None


def short_of_blocks(num_blocks: int) -> Scheduler:
    within = SchedulerLimits(POOL, POOL, 256, 64, 0.015)
    return Scheduler(within, BlockPool(num_blocks, BLOCK), STEP_TIME, PrefixHasher(BLOCK, "w"))


def surprise(s: Scheduler, count: int, length: int) -> list[Sequence]:
    """Sequences that get much longer than those before them: the forecast lets too many in."""
    for n in range(40):
        s.add(request([90, n], max_tokens=40, can_end=True), 0.0)
    run(s, ends=lambda q: q.num_completion_tokens == 2)
    sequences = [s.add(request([n] * 6, max_tokens=length), 0.0) for n in range(count)]
    run(s)
    return sequences


@pytest.mark.parametrize("num_blocks", [16, 24, 32])
def test_when_more_come_than_fit_each_is_pre_empted_at_most_once_and_all_finish(num_blocks: int) -> None:
    s = short_of_blocks(num_blocks)
    sequences = surprise(s, 8, 40)
    assert all(q.finish_reason is FinishReason.LENGTH for q in sequences)
    assert sum(q.num_preemptions for q in sequences) > 0, "nothing was short: this test shows nothing"
    assert max(q.num_preemptions for q in sequences) == 1
    assert s.counters[Pool.INTERACTIVE].preemptions == sum(q.num_preemptions for q in sequences)
    wasted = [q.usage().wasted_tokens for q in sequences]
    assert sum(wasted) == s.counters[Pool.INTERACTIVE].wasted_tokens > 0
    assert all((w > 0) <= (q.num_preemptions > 0) for w, q in zip(wasted, sequences, strict=True))


def test_what_was_pre_empted_says_what_it_would_have_said() -> None:
    prompts = [[n + 3, 5, 7, n + 3, 11, 60] for n in range(8)]
    asked = [request(p, max_tokens=40) for p in prompts]
    alone = {a.attempt_id: run_all(tiny_engine(), [a])[a.attempt_id] for a in asked}
    engine = tiny_engine(num_blocks=24, clock=lambda: 0.0)  # what is pre-empted follows from step times
    for history in engine.scheduler.seating._history.values():
        for _ in range(40):
            history.ended(2, 40)
    assert run_all(engine, asked) == alone
    assert engine.scheduler.counters[Pool.INTERACTIVE].preemptions > 0


def test_an_arriving_interactive_sequence_displaces_a_bulk_seat_and_has_its_token_within_two_steps() -> None:
    s = Scheduler(limits(), BlockPool(400, BLOCK), STEP_TIME)
    bulk = [s.add(request([n] * 5, 100, Pool.BULK), 0.0) for n in range(8)]
    for _ in range(3):
        step(s)
    first = [s.add(request([n] * 5, 200), 0.0) for n in range(7)]
    for _ in range(2):
        step(s)
    assert all(q.num_completion_tokens for q in first)
    assert len(s.running[Pool.BULK]) == s.limits.bulk.min_seats
    displaced = [q for q in bulk if not q.has_seat and q.block_table]
    assert len(displaced) == s.counters[Pool.BULK].displaced == 5
    for q in first:
        s.abort(q)
    run(s)
    assert all(q.finish_reason is FinishReason.LENGTH and q.wasted_tokens == 0 for q in bulk), "a seat costs no token"


def test_bulk_gives_blocks_to_an_interactive_prompt_down_to_its_floor() -> None:
    bulk = replace(POOL, min_kv_share=0.3)
    s = Scheduler(SchedulerLimits(POOL, bulk, 256, 64, 0.015), BlockPool(25, BLOCK), STEP_TIME)
    waiting = [s.add(request([n] * 15, 9, Pool.BULK), 0.0) for n in range(3)]
    step(s)
    assert s.blocks.held[Pool.BULK] == 12
    prompt = s.add(request([50] * 60, 2), 0.0)
    step(s)
    assert prompt.has_seat
    assert s.counters[Pool.BULK].preemptions == 1
    assert s.blocks.held[Pool.BULK] >= 7
    run(s)
    assert {q.finish_reason for q in [prompt, *waiting]} == {FinishReason.LENGTH}
