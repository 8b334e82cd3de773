"""The whole way of a real, tiny engine: mixed work -> facts -> spool -> ledger -> an identity that closes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pytest
from sqlalchemy import Engine

from core_engine.contracts import Deadline, Pool, ScoreRequest
from core_engine.costs.facts import RUNNING, DeviceFact, Fact, ReplicaFact
from core_engine.costs.report import Term
from core_engine.errors import HeadraceError
from core_engine.llm.client import EngineClient
from core_engine.llm.scheduler import StepPlan
from core_engine.llm.step_result import StepResult
from tests.core_engine.costs.ledger import reported
from tests.core_engine.llm.running import Served, running
from tests.core_engine.llm.tiny import request


async def generate(client: EngineClient, rng: random.Random, *, abandon: bool = False) -> None:
    asked = request(range(1, rng.randint(2, 40)), rng.randint(1, 40), rng.choice(list(Pool)))
    stream = client.generate(asked)
    for _ in range(rng.randint(1, 5) if abandon else 100):
        if await anext(stream, None) is None:
            break
    await stream.aclose()


async def score(client: EngineClient, rng: random.Random, number: int) -> None:
    rows = rng.randint(1, 20)
    features = np.ones((rows, 3), dtype="<f4").tobytes()
    await client.score(ScoreRequest(f"score-{number}", "sum:1", features, rows, Deadline.never()))


async def mixed_work(client: EngineClient, served: Served) -> None:
    """Generations that end, are abandoned or fail, scores between them and alone, and quiet in between."""
    rng = random.Random(7)
    for turn in range(4):
        works = [generate(client, rng, abandon=n % 4 == 3) for n in range(8)]
        works += [score(client, rng, 100 * turn + n) for n in range(10)]
        await asyncio.gather(*works)
        await asyncio.sleep(0.1)
    served.scorer.fails = True
    with pytest.raises(HeadraceError, match="failed"):
        await score(client, rng, 1000)
    run = served.engine.runner.run

    def fail(plan: StepPlan, between: Callable[[], None]) -> StepResult:
        run(plan, between)
        raise ArithmeticError

    served.engine.runner.run = fail  # type: ignore[method-assign]
    with pytest.raises(HeadraceError, match="step failed"):
        await generate(client, rng)
    served.engine.runner.run = run  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def spooled() -> list[Fact]:
    return asyncio.run(a_life())


async def a_life() -> list[Fact]:
    """Everything that an engine told until it was stopped with a generation in it."""
    async with running() as (client, served):
        await mixed_work(client, served)
        left_running = client.generate(request(max_tokens=200))
        await anext(left_running)
        served.server.stop()
        with suppress(HeadraceError):
            async for _ in left_running:
                pass
    return served.spooled


def test_the_identity_of_a_real_engine_closes(database: Engine, spooled: list[Fact]) -> None:
    made = reported(database, spooled)
    assert made.closes, made
    assert made.left == made.right == sum((line.total for line in made.lines), Decimal(0))
    assert made.unattributed_share <= Decimal("0.005")
    for term in (Term.DEVICE, Term.MEMORY, Term.IDLE, Term.LOADING, Term.OVERHEAD):
        assert made.total.terms[term] > 0, term


def test_every_run_second_is_charged_to_an_attempt_however_it_ended(spooled: list[Fact]) -> None:
    intervals = [fact for fact in spooled if isinstance(fact, ReplicaFact)]
    attempts = [fact for fact in spooled if isinstance(fact, DeviceFact)]
    for told in intervals:
        own = [fact for fact in attempts if fact.interval == told.interval]
        assert sum(fact.interval_device_s for fact in own) == pytest.approx(told.busy_s)
        assert told.charged_s == pytest.approx(told.busy_s)
        held_block_s = sum(fact.interval_kv_block_s for fact in own)
        assert held_block_s + told.free_block_s == pytest.approx(told.total_blocks * told.busy_s)
    outcomes = Counter(fact.outcome for fact in attempts if fact.outcome != RUNNING)
    assert {"length", "abort", "scored", "error", "internal_error"} <= set(outcomes)
    assert min(fact.device_s for fact in attempts if fact.outcome in ("error", "internal_error")) > 0


def test_intervals_of_a_life_join_and_the_last_says_that_it_is(spooled: list[Fact]) -> None:
    intervals = [fact for fact in spooled if isinstance(fact, ReplicaFact)]
    assert len(intervals) > 3
    assert [told.interval for told in intervals] == list(range(len(intervals)))
    assert [told.from_at for told in intervals[1:]] == [told.to_at for told in intervals[:-1]]
    assert [told.is_last for told in intervals] == [False] * (len(intervals) - 1) + [True]
    assert intervals[0].loading_s > 0
    assert intervals[0].busy_s == 0


def test_facts_of_one_attempt_add_up_to_its_totals(spooled: list[Fact]) -> None:
    attempts = [fact for fact in spooled if isinstance(fact, DeviceFact)]
    last = {fact.attempt_id: fact for fact in attempts}
    for attempt_id, final in last.items():
        own = [fact for fact in attempts if fact.attempt_id == attempt_id]
        assert final.outcome != RUNNING, "the server told of its end when it stopped"
        assert sum(fact.interval_device_s for fact in own) == pytest.approx(final.device_s)
        assert sum(fact.interval_kv_block_s for fact in own) == pytest.approx(final.kv_block_s)
        assert len({fact.interval for fact in own}) == len(own), "an interval charges an attempt once"


def test_a_killed_engine_s_work_up_to_its_last_interval_is_charged(database: Engine, spooled: list[Fact]) -> None:
    """What a SIGKILL leaves: everything up to some interval, and nothing of those who ran through it."""
    cut = max(index for index, fact in enumerate(spooled[:-1]) if isinstance(fact, ReplicaFact)) + 1
    made = reported(database, spooled[:cut])
    assert made.closes, made
