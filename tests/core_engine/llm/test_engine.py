"""One engine over many steps: what it charges, what it counts, and sampling that is a request's own."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from core_engine.contracts import Deadline, FinishReason, Pool, SamplingParams
from core_engine.llm.engine import Engine
from tests.core_engine.llm.tiny import check, request, run_all, tiny_engine


class Ticking:
    """A clock that moves on by a fixed amount each time it is read."""

    def __init__(self, tick_s: float = 0.001) -> None:
        self.now, self.tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


def drain(engine: Engine) -> Counter[str]:
    reasons: Counter[str] = Counter()
    while engine.has_work:
        for event in engine.step():
            if event.finish_reason is not None:
                reasons[event.finish_reason] += 1
        check(engine)
    return reasons


def test_device_seconds_of_all_sequences_add_up_to_the_time_of_all_runs() -> None:
    engine = tiny_engine(max_step_tokens=16, clock=Ticking())
    sequences = [engine.add(request(range(1, n + 2), 6, pool)) for n in range(6) for pool in Pool]
    spent = 0.0
    while engine.has_work:
        engine.step()
        spent += engine.last_run_s
    assert sum(s.device_s for s in sequences) == pytest.approx(spent)
    assert all(s.device_s > 0 and s.kv_block_s > 0 for s in sequences)
    used = [s.usage() for s in sequences]
    assert all(u.computed_tokens + u.cached_tokens == u.prompt_tokens + 5 for u in used)


def test_a_longer_context_is_charged_more_than_a_shorter_one_beside_it() -> None:
    engine = tiny_engine(num_blocks=100, max_step_tokens=256, clock=Ticking())
    short, long = engine.add(request([1], 20)), engine.add(request([1] * 150, 20))
    drain(engine)
    assert long.device_s > short.device_s > 0


def test_every_admitted_request_ends_exactly_once_by_one_reason() -> None:
    rng, clock = random.Random(5), Ticking()
    engine = tiny_engine(max_step_tokens=12, clock=clock)
    admitted, ended = [], Counter[str]()
    for _ in range(60):
        deadline = Deadline(clock.now + 0.05, lambda: clock.now) if rng.random() < 0.3 else None
        asked = request(range(1, rng.randint(2, 30)), rng.randint(1, 12), rng.choice(list(Pool)), deadline)
        admitted.append(engine.add(asked))
        victim = rng.choice(admitted)
        if rng.random() < 0.2 and victim.finish_reason is None:
            engine.abort(victim)
            ended["abort"] += 1
        for event in engine.step():
            ended[event.finish_reason or "token"] += 1
        check(engine)
    ended += drain(engine)
    del ended["token"]
    assert sum(ended.values()) == len(admitted)
    assert set(ended) == {FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.ABORT}
    assert engine.runner.sampler.num_sequences == 0


def test_eos_and_stop_ids_end_a_generation_and_ignore_eos_does_not() -> None:
    free = run_all(tiny_engine(), [request([5, 6], 30)]).popitem()[1]
    stop = free[4]
    stopped = SamplingParams(max_tokens=30, ignore_eos=True, stop_token_ids=(stop,))
    assert run_all(tiny_engine(), [request([5, 6], sampling=stopped)]).popitem()[1] == free[: free.index(stop) + 1]
    engine = tiny_engine()
    engine.eos_token_ids = frozenset({stop})
    eos = SamplingParams(max_tokens=30)
    assert run_all(engine, [request([5, 6], sampling=eos)]).popitem()[1] == free[: free.index(stop) + 1]


@pytest.mark.parametrize("num_neighbours", [0, 3, 7])
def test_a_seeded_sample_does_not_depend_on_neighbours_or_chunking(num_neighbours: int) -> None:
    own = SamplingParams(max_tokens=15, temperature=1.0, top_p=0.9, seed=42, ignore_eos=True)
    alone = run_all(tiny_engine(), [request([3, 1, 4], sampling=own)]).popitem()[1]
    other = SamplingParams(max_tokens=15, temperature=1.3, seed=7, ignore_eos=True)
    crowd = [request([9, i], sampling=other) for i in range(num_neighbours)]
    mine = request([3, 1, 4], sampling=own)
    assert run_all(tiny_engine(max_step_tokens=9), [*crowd, mine])[mine.attempt_id] == alone


def test_the_snapshot_tells_load_and_the_model_of_the_step() -> None:
    engine = tiny_engine(max_step_tokens=8, clock=Ticking())
    engine.add(request(range(30)))
    engine.add(request(range(5), pool=Pool.BULK))
    engine.step()
    snapshot = engine.snapshot(scoring_rows=3)
    assert (snapshot.interactive.running, snapshot.interactive.waiting) == (1, 0)
    assert (snapshot.bulk.running, snapshot.bulk.waiting, snapshot.bulk.waiting_tokens) == (0, 1, 5)
    assert (snapshot.step, snapshot.scoring_rows) == (1, 3)
    assert snapshot.total_blocks - snapshot.free_blocks == 2
    assert snapshot.predicted_step_s == pytest.approx(0.010 + 8 * 0.0005 + 36e-8)
    assert snapshot.step_s > 0


def test_aborting_twice_or_after_the_end_changes_nothing() -> None:
    engine = tiny_engine()
    sequence = engine.add(request([1, 2], 2))
    drain(engine)
    engine.abort(sequence)
    engine.abort(sequence)
    assert sequence.finish_reason is FinishReason.LENGTH
    check(engine)
