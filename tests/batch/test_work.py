"""One row by the ladder and by a real tiny engine; what is retried, what is a bad row, and what the spool is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch.checkpoints import JobStore
from batch.door import Parts, run_job
from batch.errors import ModelFault
from batch.job import JobSpec, resolve
from batch.reader import Row
from batch.runner import Limits
from batch.work import Answer, Scoring, Writing
from core_engine import contracts
from core_engine.contracts import FinishReason, Pool, Reason, Rung
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import Spool, read_spool
from core_engine.errors import EngineRefused, EngineUnavailable, InvalidRequest, StoreUnavailable
from core_engine.llm.client import EngineClient
from core_engine.llm.gguf_vocabulary import byte_level_vocabulary
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.declaration import FeatureUse, LMGenerate, Objective, OnState, Precomputed, Predictor
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.rungs import RungCache
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.predictions import PredictionStore
from tests.batch.conftest import write_lines
from tests.batch.doubles import text_predictor
from tests.core_engine.llm.running import Gate, Served, running
from tests.core_engine.llm.test_client_and_server import until
from tests.core_engine.llm.tiny import CONFIG, EOS
from tests.core_engine.predictors.doubles import (
    INPUTS,
    MEAN_DELAY,
    MODEL_SCORE,
    STUDENT_SCORE,
    FakeEngine,
    FakeFeatures,
    FakePredictions,
    delay_predictor,
)

NIGHTLY = Precomputed(key=("origin", "dest", "departure"), max_age_s=3600.0)
LADDER = (Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR)


async def at_once() -> None:
    """The engine is there."""


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", "batch", Metrics())
    yield spool
    spool.close()


def facts(spool: Spool) -> list[CallerFact]:
    spool.flush()
    return [fact for fact in read_spool(spool.path).facts if isinstance(fact, CallerFact)]


# -- scoring


@dataclass
class Scored:
    work: Scoring
    engine: FakeEngine
    features: FakeFeatures
    predictions: FakePredictions
    spool: Spool


def scoring(spool: Spool, predictor: Predictor) -> Scored:
    engine, features, predictions = FakeEngine(), FakeFeatures(), FakePredictions()
    flow = PredictFlow(
        features=features, engine=engine, rungs=RungCache(), spool=spool, metrics=Metrics(), feature_cap_s=1.0,
        predictions=predictions,
    )  # fmt: skip
    return Scored(Scoring(flow, predictor, at_once), engine, features, predictions, spool)


@pytest.fixture
def scored(tmp_path: Path, spool: Spool) -> Scored:
    predictor = delay_predictor(tmp_path, precomputed=NIGHTLY, ladder=LADDER, objective=Objective.THROUGHPUT)
    return scoring(spool, predictor)


async def test_a_row_is_scored_by_the_ladder_in_the_bulk_pool_by_the_batch_path(scored: Scored) -> None:
    answer = await scored.work.answer(Row(0, INPUTS), "job:0")
    assert answer == Answer(MODEL_SCORE, "JFK-LAX-20131105T223000Z", Rung.MODEL, batch_size=4)
    (request,) = scored.engine.score_requests
    assert (request.pool, request.path) == (Pool.BULK, contracts.Path.BATCH)
    (fact,) = facts(scored.spool)
    assert (fact.path, fact.delivery_key, fact.attempt_id) == (contracts.Path.BATCH, "job:0", request.attempt_id)


async def test_attempts_at_one_unit_differ_and_share_their_delivery(scored: Scored) -> None:
    for _ in range(2):
        await scored.work.answer(Row(0, INPUTS), "job:0")
    first, second = facts(scored.spool)
    assert first.attempt_id != second.attempt_id
    assert first.delivery_key == second.delivery_key


@pytest.mark.parametrize("error", [EngineUnavailable("gone"), EngineRefused("full")])
async def test_a_fallback_that_waiting_would_cure_is_no_result(
    scored: Scored, error: EngineUnavailable | EngineRefused
) -> None:
    scored.engine.error = error
    with pytest.raises(EngineUnavailable, match=str(error)):
        await scored.work.answer(Row(0, INPUTS), "job:0")
    assert scored.predictions.asked == []


async def test_a_store_of_features_that_is_away_is_waited_for(scored: Scored) -> None:
    scored.features.failure = "store_unavailable"
    with pytest.raises(StoreUnavailable, match="features could not be read: store_unavailable"):
        await scored.work.answer(Row(0, INPUTS), "job:0")


async def test_a_model_that_gives_no_score_is_a_fault_of_the_model(scored: Scored) -> None:
    scored.engine.scores = (float("nan"),)
    with pytest.raises(ModelFault, match="one finite score"):
        await scored.work.answer(Row(0, INPUTS), "job:0")


async def test_a_feature_that_sends_the_row_down_the_ladder_is_a_result_of_that_rung(
    tmp_path: Path, spool: Spool
) -> None:
    uses = (FeatureUse(ref=MEAN_DELAY, on_missing=OnState.NEXT_RUNG),)
    scored = scoring(spool, delay_predictor(tmp_path, features=uses, ladder=LADDER, precomputed=NIGHTLY))
    scored.features.values = {MEAN_DELAY: contracts.FeatureValue(None, contracts.FeatureState.MISSING)}
    answer = await scored.work.answer(Row(0, INPUTS), "job:0")
    assert (answer.value, answer.rung, answer.reason) == (STUDENT_SCORE, Rung.STUDENT, Reason.FEATURE_STATE)
    assert scored.predictions.asked == []  # what will be stored never comes from what is stored


async def test_a_row_that_nobody_may_answer_is_a_bad_row(tmp_path: Path, spool: Spool) -> None:
    uses = (FeatureUse(ref=MEAN_DELAY, on_missing=OnState.REFUSE),)
    scored = scoring(spool, delay_predictor(tmp_path, features=uses))
    scored.features.values = {MEAN_DELAY: contracts.FeatureValue(None, contracts.FeatureState.MISSING)}
    with pytest.raises(InvalidRequest, match=f"no rung answered.*{MEAN_DELAY} is missing"):
        await scored.work.answer(Row(0, INPUTS), "job:0")


@pytest.mark.parametrize("change", [{"origin": 7}, {"departure": "yesterday"}, {"nobody": 1}, {"dest": ""}])
async def test_inputs_that_do_not_fit_are_a_bad_row(scored: Scored, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        await scored.work.answer(Row(0, INPUTS | change), "job:0")


# -- writing


TOKENS = ["<s>", "<pad>", "</s>", *map(chr, range(33, 126)), "Ġ"]  # as many as the tiny engine has: ASCII and a space
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def tiny_tokenizer() -> Tokenizer:
    assert len(TOKENS) == CONFIG.vocab_size
    return Tokenizer(byte_level_vocabulary(TOKENS, [], frozenset({0, 1, EOS}), "gpt-2", EOS, TEMPLATE))


def writer(max_tokens: int = 12, **changes: Any) -> Predictor:
    model = LMGenerate(system_prompt="Be brief.", prompt="about {name}", max_tokens=max_tokens)
    return text_predictor(**{"model": model, "objective": Objective.THROUGHPUT, **changes})


@asynccontextmanager
async def writing(spool: Spool, predictor: Predictor) -> AsyncIterator[tuple[Writing, Served, EngineClient]]:
    async with running() as (client, served):
        yield Writing(client, tiny_tokenizer(), spool, predictor, at_once), served, client


async def test_a_text_is_written_greedily_in_the_bulk_pool_and_charged_to_its_predictor(spool: Spool) -> None:
    async with writing(spool, writer()) as (work, served, _):
        first = await work.answer(Row(0, {"name": "jfk"}), "job:0")
        again = await work.answer(Row(0, {"name": "jfk"}), "job:0")
        assert first == again
        assert (first.entity, first.rung, first.batch_size) == ("jfk", Rung.MODEL, 1)
        assert first.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert isinstance(first.value, str)
        assert first.value == first.value.strip() != ""
        told = facts(spool)
        assert [(f.path, f.delivery_key, f.rung) for f in told] == [
            (contracts.Path.BATCH, "job:0", Rung.MODEL)
        ] * 2  # fmt: skip
        device = {fact.attempt_id: fact for fact in served.facts if fact.outcome in ("stop", "length")}
        assert {fact.attempt_id for fact in told} == set(device)
        assert {(fact.pool, fact.predictor) for fact in device.values()} == {(Pool.BULK, writer().name)}


async def test_units_in_flight_share_steps_and_give_the_same_texts_as_alone(spool: Spool) -> None:
    rows = [Row(at, {"name": f"route {at}"}) for at in range(6)]
    async with writing(spool, writer()) as (work, served, _):
        alone = [await work.answer(row, "job") for row in rows]
        gate = Gate(served)
        answers = asyncio.gather(*(work.answer(row, "job") for row in rows))
        await until(lambda: len(served.server.attempts) == len(rows))
        gate.open()
        together = await answers
    assert [answer.value for answer in together] == [answer.value for answer in alone]
    assert max(answer.batch_size for answer in together) > 1


async def test_a_cancelled_unit_is_aborted_and_told(spool: Spool) -> None:
    engine = FakeEngine((40, 41, 42))
    engine.hold = asyncio.Event()
    work = Writing(engine, tiny_tokenizer(), spool, writer(), at_once)
    task = asyncio.create_task(work.answer(Row(0, {"name": "x"}), "job:0"))
    await engine.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.aborted.is_set()
    (fact,) = facts(spool)
    assert (fact.rung, fact.delivered_in_time) == (Rung.NONE, False)


async def test_a_prompt_that_does_not_fit_is_a_bad_row(spool: Spool) -> None:
    model = LMGenerate(system_prompt="x" * 300, prompt="{name}")
    async with writing(spool, writer(model=model)) as (work, _, _):
        with pytest.raises(InvalidRequest, match="over the 192 tokens"):
            await work.answer(Row(0, {"name": "a"}), "job:0")
    (fact,) = facts(spool)
    assert fact.rung is Rung.NONE


async def test_a_lost_engine_is_an_attempt_that_failed_with_its_reason(spool: Spool) -> None:
    engine = FakeEngine((40, 41, 42))
    engine.error, engine.fail_after = EngineUnavailable("the engine was lost"), 1
    work = Writing(engine, tiny_tokenizer(), spool, writer(), at_once)
    with pytest.raises(EngineUnavailable):
        await work.answer(Row(0, {"name": "a"}), "job:0")
    (fact,) = facts(spool)
    assert (fact.rung, fact.reason) == (Rung.NONE, Reason.ENGINE_UNAVAILABLE)


@pytest.mark.parametrize("finish_reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_a_text_that_the_engine_gave_up_is_no_result(spool: Spool, finish_reason: FinishReason) -> None:
    engine = FakeEngine((40, 41))
    engine.finish_reason = finish_reason
    with pytest.raises(EngineUnavailable, match=str(finish_reason)):
        await Writing(engine, tiny_tokenizer(), spool, writer(), at_once).answer(Row(0, {"name": "a"}), "job:0")


async def test_an_empty_text_is_a_fault_of_the_model(spool: Spool) -> None:
    engine = FakeEngine((TOKENS.index("Ġ"),))
    with pytest.raises(ModelFault, match="wrote nothing"):
        await Writing(engine, tiny_tokenizer(), spool, writer(), at_once).answer(Row(0, {"name": "a"}), "job:0")


async def test_a_whole_job_of_texts_runs_batched_on_a_real_engine_and_resumes_to_the_same_bytes(
    tmp_path: Path, spool: Spool, store: JobStore, client: Any
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"name": f"r{at}"} for at in range(12)] + [{"name": 7}])
    spec = JobSpec(predictor="text", input=str(path), output=str(tmp_path / "out"), job="texts")
    job = resolve(spec, writer(), {})
    async with writing(spool, job.predictor) as (work, served, _):
        parts = Parts(store, work, PredictionStore(client, 60.0), OnlinePredictionReader(client), Limits(4))
        cut: list[int] = []

        def cut_short(num_units: int) -> None:
            cut.append(num_units)
            task.cancel()

        task = asyncio.create_task(run_job(parts, job, cut_short))
        with pytest.raises(asyncio.CancelledError):
            await task
        kept = store.num_done(job.id)
        assert 1 <= kept < 13
        report = await run_job(parts, job)
        resumed = (job.output / "results.parquet").read_bytes()
        assert (report.n, report.bad, report.resumed) == (12, 1, kept)
        assert max(map(int, report.batch_sizes)) > 1
        whole = resolve(
            JobSpec(predictor="text", input=str(path), output=str(tmp_path / "2"), job="whole"), writer(), {}
        )
        await run_job(parts, whole)
        assert [unit.value for page in store.pages("texts") for unit in page] == [
            unit.value for page in store.pages("whole") for unit in page
        ]
        await run_job(parts, job)
        assert (job.output / "results.parquet").read_bytes() == resumed
        served.engine.scheduler.blocks.check_integrity([])
