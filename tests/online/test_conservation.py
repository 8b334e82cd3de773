"""Requests are conserved, from the door to the engine: a storm of ends of every kind through a real, small engine."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Pool, SamplingParams, ScoreRequest
from core_engine.errors import HeadraceError
from core_engine.llm.client import EngineClient
from core_engine.llm.messages import Snapshot
from core_engine.llm.runner import Runner
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_result import StepResult
from online.engine_metrics import EngineCollector
from online.generation import Generations
from online.request_context import RequestContext
from online.services import Services
from online.text_call import TextCall
from online.text_reply import Deltas
from tests.core_engine.llm.running import Served, running
from tests.core_engine.llm.test_client_and_server import until
from tests.core_engine.llm.tiny import request, tiny_engine
from tests.online.conftest import DoorUnderTest

NUM_GENERATIONS, NUM_SCORES = 240, 60


@dataclass
class Storm:
    """A door on a real engine, what it was asked, and every snapshot that it saw."""

    services: Services
    client: EngineClient
    served: Served
    engine_series: CollectorRegistry
    seen: list[Snapshot] = field(default_factory=list)
    contexts: list[RequestContext] = field(default_factory=list)

    def door(self, name: str, label: str) -> dict[str, float]:
        return by_label(self.services.metrics.registry, name, label)

    def engine(self, name: str, label: str) -> dict[str, float]:
        return by_label(self.engine_series, name, label)


def by_label(registry: CollectorRegistry, name: str, label: str) -> dict[str, float]:
    """Values of a series by one label, summed over the others."""
    found: Counter[str] = Counter()
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == name:
                found[sample.labels.get(label, "")] += int(sample.value)
    return dict(found)


def generation(asked: GenerateRequest, services: Services, context: RequestContext) -> Deltas:
    return Generations(TextCall("tiny", (asked,), stream=True), services, context).deltas()


async def generate(storm: Storm, rng: random.Random) -> None:
    """One generation that may be abandoned, too late, refused, or lost to a step that fails."""
    pool, prompt = rng.choice(list(Pool)), [rng.randrange(1, 97) for _ in range(rng.randint(1, 80))]
    sampling = SamplingParams(max_tokens=rng.randint(1, 40), ignore_eos=rng.random() < 0.5)
    never_stops = replace(sampling, ignore_eos=False)  # what nobody can foresee is not refused beforehand
    late = rng.random() < 0.15
    deadline = Deadline.after(rng.uniform(0.02, 0.3)) if late else Deadline.never()
    asked = request(prompt, pool=pool, deadline=deadline, sampling=never_stops if late else sampling)
    context = RequestContext("r", None)
    storm.contexts.append(context)
    num_read = rng.choice([0, 1, 5, 1000, 1000])
    async with aclosing(generation(asked, storm.services, context)) as deltas:
        try:
            for _ in range(num_read):
                if await anext(deltas, None) is None:
                    break
        except HeadraceError:
            pass


async def score(storm: Storm, rng: random.Random, number: int) -> None:
    rows = np.ones((rng.randint(1, 3), 3), dtype="<f4")
    deadline = Deadline.after(-1) if rng.random() < 0.2 else Deadline.never()
    asked = ScoreRequest(f"score-{number}", "sum:1", rows.tobytes(), len(rows), deadline, rng.choice(list(Pool)))
    try:
        await storm.client.score(asked)
    except HeadraceError:
        pass


def failing_at_times(runner: Runner, rng: random.Random) -> None:
    run = runner.run

    def sometimes(plan: StepPlan, between: Callable[[], None]) -> StepResult:
        if rng.random() < 0.02:
            raise ArithmeticError
        return run(plan, between)

    runner.run = sometimes  # type: ignore[method-assign]


@pytest.fixture
async def storm(door: DoorUnderTest) -> AsyncIterator[Storm]:
    async with running(tiny_engine(max_step_tokens=32)) as (client, served):
        series = CollectorRegistry()
        series.register(EngineCollector(client))
        http = door.services.http.model_copy(update={"max_streams": 1000})
        client.on_refused = door.services.metrics.refused
        storm = Storm(replace(door.services, client=client, http=http), client, served, series)
        see = client._see

        def noted(snapshot: Snapshot) -> None:
            storm.seen.append(snapshot)
            see(snapshot)

        client._see = noted  # type: ignore[method-assign]
        yield storm


async def quiet(storm: Storm) -> Snapshot:
    """Wait until the engine holds nothing and has said so, of all that it was sent."""
    await storm.client.load_scorer("sum:1", "it is held", "good")  # comes after every abort on the same socket
    await until(lambda: storm.client.snapshot is not None and is_empty(storm.client.snapshot))
    assert storm.client.snapshot is not None
    assert len(storm.served.server.attempts) == 0
    return storm.client.snapshot


def is_empty(snapshot: Snapshot) -> bool:
    loads = (snapshot.interactive, snapshot.bulk)
    return not any(load.running + load.waiting for load in loads) and snapshot.free_blocks == snapshot.total_blocks


async def test_admitted_is_finished_plus_running_plus_waiting_at_every_snapshot(storm: Storm) -> None:
    rng = random.Random(11)
    failing_at_times(storm.served.engine.runner, rng)
    works = [generate(storm, rng) for _ in range(NUM_GENERATIONS)]
    works += [score(storm, rng, number) for number in range(NUM_SCORES)]
    rng.shuffle(works)
    await asyncio.gather(*works)
    last = await quiet(storm)

    for snapshot in storm.seen:
        for pool, load in ((Pool.INTERACTIVE, snapshot.interactive), (Pool.BULK, snapshot.bulk)):
            counters = snapshot.counters[pool]
            assert counters.admitted == sum(counters.finished.values()) + load.running + load.waiting
    assert len(storm.seen) > 50
    assert last.scoring.admitted == sum(last.scoring.finished.values())
    assert last.scoring.admitted + sum(last.scoring.refused.values()) == NUM_SCORES


async def test_the_door_s_counts_and_the_engine_s_tell_one_story(storm: Storm) -> None:
    rng = random.Random(12)
    failing_at_times(storm.served.engine.runner, rng)
    await asyncio.gather(*(generate(storm, rng) for _ in range(NUM_GENERATIONS)))
    last = await quiet(storm)

    asked_of_door = sum(1 for context in storm.contexts if context.facts)  # the others were closed before they began
    ended = storm.door("headrace_generations_total", "finished_reason")
    assert sum(ended.values()) == asked_of_door
    assert storm.services.state.streams == 0
    assert set(ended) >= {"length", "abort", "error"}, "the storm was too mild"

    finished = storm.engine("headrace_request_success_total", "finished_reason")
    admitted = sum(storm.engine("headrace_requests_admitted_total", "pool").values())
    assert admitted == sum(finished.values())
    assert sum(storm.engine("headrace_num_requests_running", "pool").values()) == 0
    assert sum(storm.engine("headrace_num_requests_waiting", "pool").values()) == 0
    refused = sum(storm.engine("headrace_requests_refused_total", "reason").values())
    refused += sum(storm.door("headrace_admission_refused_total", "pool").values())
    reasons = storm.door("headrace_generations_total", "reason")
    late = ended.get("deadline", 0)  # a caller's own timer may go off first: the engine's word then finds nobody
    assert refused > 0
    assert 0 <= refused - reasons["engine_refused"] <= late
    assert 0 < reasons["model_error"] <= finished["error"]
    steps = [counters.steps for counters in last.counters.values()]
    assert max(steps) <= last.step <= sum(steps)
    assert ended["length"] <= finished["length"], "an answer that the engine did not finish"
    assert ended["abort"] + late >= finished["abort"], "nobody but the callers ended anything by hand"
    assert sum(storm.engine("headrace_engine_aborts_total", "reason").values()) == finished["abort"]
    assert last.aborts.keys() == {"caller"}


async def test_each_first_token_is_one_observation_however_the_stream_ends(storm: Storm) -> None:
    rng = random.Random(13)
    await asyncio.gather(*(generate(storm, rng) for _ in range(NUM_GENERATIONS // 4)))
    await quiet(storm)
    with_tokens = sum(1 for context in storm.contexts if context.facts.get("completion_tokens"))
    registry, labels = storm.services.metrics.registry, {"model_name": "tiny"}
    observed = sum(
        registry.get_sample_value("headrace_time_to_first_token_seconds_count", {**labels, "pool": pool}) or 0
        for pool in Pool
    )
    assert observed == with_tokens > 0


async def test_tokens_from_the_prefix_cache_reach_usage_and_counts(storm: Storm) -> None:
    prompt = [5, 6, 7, 8] * 10
    cached = []
    for _ in range(2):
        deltas = generation(request(prompt, max_tokens=3), storm.services, RequestContext("r", None))
        usages = [each.delta.usage async for each in deltas if each.delta.finish_reason is FinishReason.LENGTH]
        assert usages[0] is not None
        cached.append(usages[0].cached_tokens)
    assert cached[0] == 0
    assert cached[1] > 0
    await quiet(storm)
    assert storm.engine("headrace_prefix_cache_hits_total", "pool") == {"interactive": cached[1], "bulk": 0}
    assert storm.engine("headrace_prefix_cache_queries_total", "pool") == {"interactive": 80, "bulk": 0}
