"""route_risk: its declaration, the flights that it is judged on, and one real answer of the language model."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from core_engine.contracts import (
    EMPTY,
    Deadline,
    FeatureRow,
    FeatureState,
    FeatureValue,
    Prediction,
    PredictRequest,
    Rung,
    Scalar,
)
from core_engine.costs.meter import ReplicaMeter
from core_engine.costs.spool import Spool
from core_engine.errors import ModelFileError
from core_engine.llm.client import EngineClient
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.scorers import Scorer, ScorerHost
from core_engine.llm.server import EngineServer
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.declaration import Artifact, LMScore, Predictor
from core_engine.predictors.inputs import check_inputs
from core_engine.predictors.label_prompt import LabelPrompts
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.prompt import question
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.soundness import check_declaration
from core_engine.scoring.artifact import write_artifact
from core_engine.settings import EngineSettings
from examples.flights.data import FlightData
from examples.flights.predictors import FEATURES, Artifacts, Categories, delay_risk
from examples.flights.route_risk import FACTS, held_out, route_risk
from examples.flights.training import HELD_OUT_FROM
from featurestore.definitions import FeatureView
from headrace.engine import build_engine

CATEGORIES = Categories(carriers=("AA", "UA"), origins=("EWR", "JFK", "LGA"), dests=("LAX", "ORD"))
NOWHERE = Artifact(path="/nowhere", sha256="0" * 64)
ARTIFACTS = Artifacts(NOWHERE, NOWHERE, NOWHERE, prior_fallback=0.24)
INPUTS: dict[str, Scalar] = {
    "carrier": "UA",
    "origin": "JFK",
    "dest": "LAX",
    "scheduled_departure": datetime(2026, 11, 30, 17, 30, tzinfo=timezone(timedelta(hours=-5))),
}
CALM = {"route_daily.late_share": 0.05, "airport_departures.mean_delay": 1.0}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(default_model_path())


@pytest.fixture
def risk() -> Predictor:
    return route_risk(CATEGORIES, ARTIFACTS)


class TestDeclaration:
    def test_it_hangs_together_and_falls_back_to_delay_risks_prior(self, risk: Predictor) -> None:
        check_declaration(risk)
        assert msgspec.json.decode(risk.to_json(), type=Predictor) == risk
        assert risk.ladder == (Rung.MODEL, Rung.PRIOR)
        assert risk.prior == delay_risk(CATEGORIES, ARTIFACTS).prior
        assert risk.label == delay_risk(CATEGORIES, ARTIFACTS).label
        assert risk.budget_ms == 1000

    def test_it_reads_exactly_the_features_that_its_prompt_writes(self, risk: Predictor) -> None:
        assert {use.ref for use in FACTS} == set(CALM)
        assert set(FACTS) <= set(FEATURES)
        _, user = question(risk, INPUTS, CALM)
        assert user["content"] == "17 1 5%"

    @pytest.mark.parametrize("known", [CALM, dict.fromkeys(CALM), {**CALM, "airport_departures.mean_delay": -12.4}])
    def test_all_that_is_constant_comes_first_in_whole_blocks_of_the_prefix_cache(
        self, risk: Predictor, tokenizer: Tokenizer, known: Mapping[str, float | None]
    ) -> None:
        size = EngineSettings().block_size
        asked = LabelPrompts(tokenizer).ask(risk, INPUTS, known)
        assert asked.template_tokens // size == 4
        assert asked.template_tokens % size == 0
        assert len(asked.token_ids) - asked.template_tokens <= 16

    def test_a_flight_of_which_nothing_is_known_can_still_be_asked_about(self, risk: Predictor) -> None:
        _, user = question(risk, INPUTS, dict.fromkeys(CALM))
        assert user["content"].count("unknown") == len(CALM)


class TestHeldOut:
    def test_flights_are_of_the_held_out_months_evenly_and_each_can_be_asked_about(
        self, risk: Predictor, data: FlightData, views: tuple[FeatureView, ...]
    ) -> None:
        sample = held_out(data.flights, views, 60)
        assert len(sample.asked) == len(sample.late) == len(sample.day) == 60
        assert sample.day.min() >= np.datetime64(HELD_OUT_FROM)
        assert {day.astype(date).month for day in sample.day} == {10, 11, 12}
        for inputs, features in sample.asked:
            check_inputs(risk, inputs)
            question(risk, inputs, features)

    def test_what_is_known_is_what_the_features_were_then(
        self, data: FlightData, views: tuple[FeatureView, ...]
    ) -> None:
        sample = held_out(data.flights, views, 200)
        shares = [features["route_daily.late_share"] for _, features in sample.asked]
        assert all(share is None or 0 <= share <= 1 for share in shares)
        assert len(set(shares)) > 50
        delays = [features["airport_departures.mean_delay"] for _, features in sample.asked]
        assert len(set(delays)) > 100

    def test_quality_tells_a_perfect_ranking_from_a_reversed_one(
        self, data: FlightData, views: tuple[FeatureView, ...]
    ) -> None:
        sample = held_out(data.flights, views, 200)
        late = sample.late.astype(float).tolist()
        assert sample.quality_of(late).auc == 1
        assert sample.quality_of([1 - value for value in late]).auc == 0
        assert sample.quality_of([0.5] * 200).auc == 0.5


def no_scorer(path: Path, sha256: str) -> Scorer:
    raise ModelFileError(f"{path}: no scorers here")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[tuple[zmq.Context[zmq.Socket[bytes]], str]]:
    """The real model in an engine of its own, in a thread."""
    engine, info = build_engine(EngineSettings(kv_cache_bytes=64 << 20))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    at = f"inproc://{uuid.uuid4().hex}"
    meter = ReplicaMeter("engine-0", "local", lambda _: None)
    server = EngineServer(engine, ScorerHost(), info, at, no_scorer, meter, context)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.bound.wait(60)
    yield context, at
    server.stop()
    thread.join(60)
    context.destroy(linger=0)


class Known:
    """A feature reader over fixed values."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        assert keys == {"route": "JFK-LAX", "carrier": "UA", "airport": "JFK"}
        return FeatureRow({ref: FeatureValue(self._values[ref], FeatureState.PRESENT) for ref in refs})


async def ask(risk: Predictor, engine: EngineClient, folder: Path, attempt_id: str) -> Prediction:
    metrics = Metrics()
    spool = Spool(folder / "spool", "test", metrics)
    try:
        flow = PredictFlow(
            features=Known(CALM),
            engine=engine,
            rungs=RungCache(),
            spool=spool,
            metrics=metrics,
            feature_cap_s=1.0,
            tokenizer=Tokenizer.from_gguf(default_model_path()),
        )
        return await flow.predict(risk, PredictRequest("route_risk", INPUTS, attempt_id, Deadline.never()))
    finally:
        spool.close()


async def test_the_language_model_answers_through_the_ladder_and_without_it_the_prior(
    endpoint: tuple[zmq.Context[zmq.Socket[bytes]], str], tmp_path: Path
) -> None:
    prior = write_artifact(tmp_path / "prior.json", b'{"UA-17": 0.31}')
    risk = route_risk(CATEGORIES, Artifacts(NOWHERE, NOWHERE, prior, prior_fallback=0.24))
    assert isinstance(risk.model, LMScore)
    context, at = endpoint
    engine = EngineClient(at, context=zmq.asyncio.Context(context), lost_after_s=30.0)
    away = await ask(risk, engine, tmp_path, "first")  # not started: no engine
    assert (away.rung, away.value, away.scores) == (Rung.PRIOR, 0.31, {"late": 0.31})
    await engine.start()
    try:
        await engine.wait_available(60)
        first, again = [await ask(risk, engine, tmp_path, name) for name in ("second", "third")]
    finally:
        await engine.close()
    assert (first.rung, first.reason) == (Rung.MODEL, None)
    assert set(first.scores) == {"late", "in_time"}
    assert sum(first.scores.values()) == pytest.approx(1)
    assert first.value == first.scores["late"]
    assert 0 < first.scores["late"] < 1
    # the same question again: all of its prompt is found but the last token, and the answer stands
    assert again.usage.cached_tokens >= first.usage.prompt_tokens - 16
    assert again.value == pytest.approx(first.value, rel=0.05)
