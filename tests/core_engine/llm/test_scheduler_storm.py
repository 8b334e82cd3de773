"""A long random life of a scheduler that is short of everything: pre-emptions, displaced seats and copies do happen."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from core_engine.contracts import Pool
from core_engine.errors import EngineRefused, InvalidRequest
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.scheduling import step
from tests.core_engine.llm.tiny import STEP_TIME, request

POOL = PoolLimits(1, 5, 1.0, max_queued=64, max_queued_tokens=6000, min_kv_share=0.1)


def life(seed: int, seen: Counter[str]) -> None:
    """400 steps with bursts of arrivals, then all that are needed to end; the books are checked after each."""
    rng, now = random.Random(seed), 0.0
    limits = SchedulerLimits(POOL, replace(POOL, max_kv_share=0.8, max_seats=4), 200, rng.choice([4, 16, 64]), 0.015)
    hasher = PrefixHasher(4, "w") if seed % 3 else None
    s = Scheduler(limits, BlockPool(rng.choice([20, 40, 60]), 4), STEP_TIME, hasher)
    for history in s.seating._history.values():  # completions were short: too many are let in
        for _ in range(40 if seed % 2 else 0):
            history.ended(1, 40)
    lengths: dict[str, int] = {}

    def ends(sequence: Sequence) -> bool:
        return sequence.num_completion_tokens + 1 >= lengths[sequence.id]

    everyone: list[Sequence] = []
    for tick in range(6000):
        if tick < 400 and rng.random() < (0.9 if tick % 80 < 10 else 0.1):
            length = rng.randint(1, 50)
            shared = rng.randint(0, length)
            ids = [*range(shared), *([tick] * (length - shared))]
            asked = request(ids, rng.randint(1, 40), rng.choice(list(Pool)), can_end=True)
            try:
                everyone.append(s.add(replace(asked, tenant=rng.choice("ab")), now))
                lengths[everyone[-1].id] = rng.randint(1, 40)
            except (EngineRefused, InvalidRequest):
                seen["refused"] += 1
        elif tick >= 400 and not s.has_work:
            break
        seen["copies"] += len(step(s, now, ends).copies)
        now += rng.random() * 0.05
    assert not s.has_work, "something waits for ever"
    assert s.blocks.num_held == 0
    assert max((q.num_preemptions for q in everyone), default=0) <= 1
    for counters in s.counters.values():
        seen += Counter(preempted=counters.preemptions, displaced=counters.displaced, cached=counters.cached_tokens)
        assert counters.wasted_tokens <= counters.computed_tokens


@pytest.mark.parametrize("first", [0, 8, 16])
def test_everybody_ends_the_books_add_up_and_nobody_is_pre_empted_twice(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 8):
        life(seed, seen)
    assert min(seen[what] for what in ("preempted", "displaced", "copies", "cached")) > 0, f"not all happened: {seen}"
