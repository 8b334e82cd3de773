"""Shadow traffic: scored for nobody, compared, and dropped rather than in the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec
import pytest
from structlog.testing import capture_logs

from core_engine.contracts import Deadline, Path, Pool, Prediction, PredictRequest, Rung, ScoreRequest, ScoreResult
from core_engine.costs.facts import CallerFact, ComparisonFact
from core_engine.errors import EngineUnavailable
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.declaration import InputField, InputKind
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.registry import Registry
from core_engine.predictors.shadow import ShadowTraffic, decides_differently
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import INPUTS, MODEL_SCORE, FakeEngine, delay_predictor

SHADOW_SCORE = 0.625


class TwoVersions(FakeEngine):
    """Version 2's scorer says something else; `scored` is set when it was asked, and it waits for `let_go`."""

    def __init__(self) -> None:
        super().__init__()
        self.scored = asyncio.Event()
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.shadow_error: Exception | None = None

    async def score(self, request: ScoreRequest) -> ScoreResult:
        result = await super().score(request)
        if request.scorer != "delay:2":
            return result
        self.scored.set()
        await self.let_go.wait()
        if self.shadow_error is not None:
            raise self.shadow_error
        return replace(result, scores=(SHADOW_SCORE,))


@dataclass
class Shadowed:
    ladder: Ladder
    engine: TwoVersions
    registry: Registry
    catalogue: Catalogue
    flow: PredictFlow
    traffic: ShadowTraffic
    is_near_limit: bool = False

    async def answered(self, attempt_id: str = "live") -> Prediction:
        """A request that live answers, offered to the shadow as a door does."""
        request = PredictRequest("delay", INPUTS, attempt_id, Deadline.never(), tenant="acme", delivery_key="order")
        prediction = await self.flow.predict(self.catalogue.resolve("delay"), request)
        self.traffic.offer(request, prediction)
        return prediction

    def count(self, outcome: str) -> float:
        labels = {"predictor": "delay", "version": "2", "outcome": outcome}
        return self.ladder.sample("headrace_shadow_requests_total", **labels) or 0.0

    def compared(self) -> list[ComparisonFact]:
        return [fact for fact in self.ladder.facts() if isinstance(fact, ComparisonFact)]

    async def until(self, outcome: str, count: int = 1) -> None:
        """All that was offered is worked off, so many of it with this outcome."""
        await asyncio.wait_for(self.traffic._waiting.join(), 60)
        assert self.count(outcome) == count


@pytest.fixture
async def shadowed(ladder: Ladder, registry: Registry) -> Shadowed:
    """Version 1 is live, version 2 its shadow; nothing works off what is offered yet."""
    engine = ladder.engine = TwoVersions()
    for version in (1, 2):
        registry.register(delay_predictor(ladder.folder, version=version, threshold=0.7))
    registry.set_alias("delay", "live", 1)
    registry.set_alias("delay", "shadow", 2)
    catalogue = Catalogue(registry)
    await catalogue.refresh()
    flow = PredictFlow(
        features=ladder.features,
        engine=engine,
        rungs=ladder.rungs,
        spool=ladder.spool,
        metrics=ladder.metrics,
        feature_cap_s=1.0,
    )
    traffic = ShadowTraffic(
        flow=flow,
        catalogue=catalogue,
        spool=ladder.spool,
        metrics=ladder.metrics,
        is_near_limit=lambda: made.is_near_limit,
        max_waiting=2,
    )
    made = Shadowed(ladder, engine, registry, catalogue, flow, traffic)
    for version in (1, 2):
        await ladder.rungs.get(registry.resolve("delay", version=version), Deadline.never())
    return made


@asynccontextmanager
async def working(shadowed: Shadowed) -> AsyncIterator[None]:
    task = asyncio.create_task(shadowed.traffic.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_answer_of_live_is_scored_again_and_compared(shadowed: Shadowed) -> None:
    async with working(shadowed):
        prediction = await shadowed.answered()
        await shadowed.until("compared")
    assert (prediction.version, prediction.value) == (1, MODEL_SCORE)
    (fact,) = shadowed.compared()
    assert (fact.predictor, fact.version, fact.shadow_version) == ("delay", 1, 2)
    assert (fact.difference, fact.disagrees) == (SHADOW_SCORE - MODEL_SCORE, True)
    sample = shadowed.ladder.sample
    labels = {"predictor": "delay", "version": "2"}
    assert sample("headrace_shadow_absolute_difference_count", **labels) == 1
    assert sample("headrace_shadow_absolute_difference_sum", **labels) == 0.125
    assert sample("headrace_shadow_absolute_difference_bucket", le="0.1", **labels) == 0
    assert sample("headrace_shadow_absolute_difference_bucket", le="0.2", **labels) == 1
    assert sample("headrace_shadow_disagreements_total", **labels) == 1


async def test_its_cost_is_a_fact_of_the_path_shadow_that_delivers_nothing(shadowed: Shadowed) -> None:
    async with working(shadowed):
        await shadowed.answered()
        await shadowed.until("compared")
    live, shadow = [fact for fact in shadowed.ladder.facts() if isinstance(fact, CallerFact)]
    assert (live.path, live.version, live.delivered_in_time) == (Path.ONLINE, 1, True)
    assert (shadow.path, shadow.version, shadow.delivered_in_time) == (Path.SHADOW, 2, False)
    assert (shadow.tenant, shadow.delivery_key) == ("acme", None)
    assert shadow.attempt_id not in ("", live.attempt_id)
    assert shadow.attempt_id == shadowed.compared()[0].attempt_id
    request = shadowed.engine.score_requests[-1]
    assert (request.scorer, request.path, request.pool) == ("delay:2", Path.SHADOW, Pool.BULK)
    answers = [
        shadowed.ladder.sample("headrace_predictions_total", predictor="delay", version=v, rung="model", reason="")
        for v in ("1", "2")
    ]
    assert answers == [1, None]


async def test_nothing_is_worked_off_while_an_answer_is_offered(shadowed: Shadowed) -> None:
    await shadowed.answered()
    assert [request.scorer for request in shadowed.engine.score_requests] == ["delay:1"]
    async with working(shadowed):
        await shadowed.until("compared")


async def test_a_full_queue_drops_and_counts(shadowed: Shadowed) -> None:
    for _ in range(5):
        await shadowed.answered()
    assert shadowed.count("queue_full") == 3
    async with working(shadowed):
        await shadowed.until("compared", 2)


async def test_one_is_scored_at_a_time(shadowed: Shadowed) -> None:
    shadowed.engine.let_go.clear()
    async with working(shadowed):
        for _ in range(2):
            await shadowed.answered()
        await asyncio.wait_for(shadowed.engine.scored.wait(), 60)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [request.scorer for request in shadowed.engine.score_requests].count("delay:2") == 1
        shadowed.engine.let_go.set()
        await shadowed.until("compared", 2)


async def test_near_its_limit_a_door_drops_what_is_offered_and_what_waits(shadowed: Shadowed) -> None:
    await shadowed.answered()
    shadowed.is_near_limit = True
    await shadowed.answered()
    assert shadowed.count("near_limit") == 1
    async with working(shadowed):
        await shadowed.until("near_limit", 2)
    assert shadowed.compared() == []


async def test_an_answer_of_a_lower_rung_is_not_compared(shadowed: Shadowed) -> None:
    shadowed.engine.error = EngineUnavailable("away")
    assert (await shadowed.answered()).rung is Rung.STUDENT
    assert shadowed.count("live_degraded") == 1


async def test_a_shadow_without_its_model_is_not_compared_and_uses_no_other_rung(shadowed: Shadowed) -> None:
    shadowed.engine.shadow_error = EngineUnavailable("away")
    async with working(shadowed):
        await shadowed.answered()
        await shadowed.until("not_scored")
    assert shadowed.compared() == []
    shadow = shadowed.ladder.facts()[-1]
    assert isinstance(shadow, CallerFact)
    assert (shadow.path, shadow.rung) == (Path.SHADOW, Rung.NONE)


async def test_inputs_that_the_shadow_does_not_take_are_counted(shadowed: Shadowed) -> None:
    gate = InputField(name="gate", kind=InputKind.STRING)
    shadowed.registry.register(
        delay_predictor(shadowed.ladder.folder, version=3, inputs=(*shadowed.ladder.predictor.inputs, gate))
    )
    shadowed.registry.set_alias("delay", "shadow", 3)
    await shadowed.catalogue.refresh()
    async with working(shadowed):
        await shadowed.answered()
        await asyncio.wait_for(shadowed.traffic._waiting.join(), 60)
    labels = {"predictor": "delay", "version": "3", "outcome": "refused"}
    assert shadowed.ladder.sample("headrace_shadow_requests_total", **labels) == 1


async def test_one_that_fails_is_logged_and_does_not_end_the_rest(shadowed: Shadowed) -> None:
    shadowed.engine.shadow_error = RuntimeError("a bug")
    with capture_logs() as logs:
        async with working(shadowed):
            await shadowed.answered()
            await shadowed.until("failed")
            shadowed.engine.shadow_error = None
            await shadowed.answered()
            await shadowed.until("compared")
    assert [line["event"] for line in logs] == ["shadow_failed"]


async def test_without_a_shadow_or_for_another_version_than_live_nothing_is_done(shadowed: Shadowed) -> None:
    request = PredictRequest("delay", INPUTS, "canary", Deadline.never())
    prediction = await shadowed.flow.predict(shadowed.registry.resolve("delay", version=2), request)
    shadowed.traffic.offer(request, prediction)
    shadowed.registry.remove_alias("delay", "shadow")
    await shadowed.catalogue.refresh()
    await shadowed.answered()
    assert shadowed.traffic._waiting.empty()


@pytest.mark.parametrize(
    ("live", "shadow", "differs"),
    [
        ((0.5, 0.5), (0.5, 0.9), False),
        ((0.5, 0.49), (0.5, 0.5), True),
        ((0.5, 0.6), (0.7, 0.6), True),
        ((0.5, 0.6), (0.7, 0.8), False),
        ((None, 0.6), (0.7, 0.8), None),
        ((0.5, 0.6), (None, 0.1), None),
    ],
)
def test_each_version_decides_by_its_own_threshold(
    ladder: Ladder, live: tuple[float | None, float], shadow: tuple[float | None, float], differs: bool | None
) -> None:
    one, other = (msgspec.structs.replace(ladder.predictor, threshold=of[0]) for of in (live, shadow))
    assert decides_differently(one, live[1], other, shadow[1]) is differs
