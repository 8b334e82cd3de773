"""A predictor with real files, and stand-ins for what cannot be driven into a state: the engine, a feature store.

Used by the tests of the ladder, of the HTTP door and of its composition root.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper

from core_engine.contracts import (
    EMPTY,
    Deadline,
    FeatureRow,
    FeatureState,
    FeatureValue,
    FinishReason,
    GenerateRequest,
    HeadResult,
    ReadCost,
    Rung,
    Scalar,
    ScoreRequest,
    ScoreResult,
    TokenDelta,
    Usage,
)
from core_engine.errors import EngineUnavailable, HeadraceError
from core_engine.llm import messages as wire
from core_engine.llm.client import EngineClient
from core_engine.llm.totals import EngineTotals
from core_engine.predictors.declaration import (
    Column,
    ColumnKind,
    EntityUse,
    FeatureUse,
    InputField,
    InputKind,
    LMGenerate,
    Predictor,
    Prior,
    Student,
    TorchScorer,
)
from core_engine.readers import StoredPrediction
from core_engine.scoring.artifact import write_artifact

MODEL_SCORE = 0.75
PRIOR_RATE = 0.25
STUDENT_SCORE = 0.5  # sigmoid(0): what the student says of a row of zeros and absent values
MEAN_DELAY = "route.mean_delay"
INPUTS: dict[str, Any] = {"origin": "JFK", "dest": "LAX", "departure": "2013-11-05T17:30:00-05:00"}


def student_model(num_features: int) -> bytes:
    """An ONNX student: sigmoid(0 * sum of the row), with absent values as zero."""
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, num_features])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, [None, 1])
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])
    nodes = [
        helper.make_node("IsNaN", ["rows"], ["absent"]),
        helper.make_node("Where", ["absent", "zero", "rows"], ["whole"]),
        helper.make_node("Mul", ["whole", "zero"], ["nothing"]),
        helper.make_node("ReduceSum", ["nothing", "axes"], ["sum"], keepdims=1),
        helper.make_node("Sigmoid", ["sum"], ["score"]),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "student", [rows], [score], [zero, axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def delay_predictor(folder: Path, **changes: Any) -> Predictor:
    """A predictor with every rung, two inputs that make a key, and one feature; `changes` replace its fields."""
    scorer = write_artifact(folder / "scorer.safetensors", b"not read here")
    student = write_artifact(folder / "student.onnx", student_model(3))
    prior = write_artifact(folder / "prior.json", msgspec.json.encode({"JFK": PRIOR_RATE}))
    declared: dict[str, Any] = {
        "name": "delay",
        "version": 1,
        "owner": "tests",
        "model": TorchScorer(artifact=scorer),
        "inputs": (
            InputField(name="origin", kind=InputKind.STRING, max_length=4),
            InputField(name="dest", kind=InputKind.STRING, max_length=4),
            InputField(name="departure", kind=InputKind.TIMESTAMP),
            InputField(name="seats", kind=InputKind.INT, required=False, minimum=1, maximum=900),
            InputField(name="price", kind=InputKind.FLOAT, required=False, minimum=0),
            InputField(name="is_charter", kind=InputKind.BOOL, required=False),
        ),
        "entities": (EntityUse(entity="route", fields=("origin", "dest")),),
        "features": (FeatureUse(ref=MEAN_DELAY),),
        "columns": (
            Column(name="origin", kind=ColumnKind.CATEGORY, source="origin", values=("JFK", "LGA")),
            Column(name="hour", kind=ColumnKind.HOUR, source="departure"),
            Column(name="mean_delay", kind=ColumnKind.NUMERIC, source=MEAN_DELAY),
        ),
        "label": "late",
        "student": Student(artifact=student),
        "prior": Prior(artifact=prior, segment=("origin",), fallback=0.1),
        "ladder": (Rung.MODEL, Rung.STUDENT, Rung.PRIOR),
        "budget_ms": 10_000.0,  # so that a slow machine changes no answer; tests of deadlines give their own
    }
    return Predictor(**{**declared, **changes})


def notice_predictor(**changes: Any) -> Predictor:
    """A predictor that writes text."""
    declared: dict[str, Any] = {
        "name": "notice",
        "version": 3,
        "owner": "tests",
        "model": LMGenerate(system_prompt="Be brief.", max_tokens=32),
        "budget_ms": 30_000.0,
    }
    return Predictor(**{**declared, **changes})


class FakeEngine(EngineClient):
    """Says what a test tells it to. `error` ends every call; `tokens` and `fail_after` script a generation.

    `hold` makes a generation wait for it after its first token; `aborted` is set where one is closed before its end.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.is_there = True
        self.error: HeadraceError | None = None
        self.scores: tuple[float, ...] = (MODEL_SCORE,)
        self.score_delay_s = 0.0
        self.tokens = tuple(tokens)
        self.finish_reason = FinishReason.STOP
        self.fail_after: int | None = None
        self.hold: asyncio.Event | None = None
        self.started = asyncio.Event()
        self.aborted = asyncio.Event()
        self.head_values: tuple[float, ...] = (MODEL_SCORE, 1 - MODEL_SCORE)
        self.head_requests: list[GenerateRequest] = []
        self.score_requests: list[ScoreRequest] = []
        self.generate_requests: list[GenerateRequest] = []
        self.loaded: list[str] = []
        self.load_error: HeadraceError | None = None
        self.snapshot = wire.Snapshot(step=7, free_blocks=11, interactive=wire.PoolLoad(waiting=2, running=3))
        self.welcome: wire.Welcome | None = wire.Welcome(wire.PROTOCOL, "first", "tiny", 512, "bfloat16", ())
        self.last_welcome, self.totals = self.welcome, EngineTotals()

    @property
    def available(self) -> bool:
        return self.is_there

    def lose(self) -> None:
        self.is_there, self.welcome, self.error = False, None, EngineUnavailable("the engine was lost")

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        self.score_requests.append(request)
        if self.score_delay_s:
            await asyncio.sleep(self.score_delay_s)
        if self.error is not None:
            raise self.error
        return ScoreResult(self.scores, 0.001, 0.002, Usage(rows=1, batch_size=4, device_s=0.0005))

    async def head(self, request: GenerateRequest) -> HeadResult:
        self.head_requests.append(request)
        if self.error is not None:
            raise self.error
        usage = Usage(prompt_tokens=len(request.prompt_token_ids), cached_tokens=16, device_s=0.004)
        return HeadResult(self.head_values, 0.001, 0.002, usage)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        self.generate_requests.append(request)
        self.started.set()
        is_over = False
        try:
            for index, token in enumerate(self.tokens):
                if self.error is not None and index == (self.fail_after or 0):
                    is_over = True
                    raise self.error
                if index == 1 and self.hold is not None:
                    await self.hold.wait()
                is_over = index + 1 == len(self.tokens)
                yield self._delta(request, token, is_over=is_over)
        finally:
            if not is_over:
                self.aborted.set()

    def _delta(self, request: GenerateRequest, token: int, *, is_over: bool) -> TokenDelta:
        if not is_over:
            return TokenDelta((token,))
        usage = Usage(prompt_tokens=len(request.prompt_token_ids), cached_tokens=1, completion_tokens=len(self.tokens))
        return TokenDelta((token,), self.finish_reason, usage)

    async def load_scorer(self, scorer: str, path: str, sha256: str) -> None:
        if self.load_error is not None:
            raise self.load_error
        self.loaded.append(scorer)

    def scored_vector(self) -> list[float]:
        """The row of the last score request."""
        return [float(value) for value in np.frombuffer(self.score_requests[-1].features, dtype="<f4")]


class FakeFeatures:
    """A `FeatureReader` over a dictionary. `failure` makes it a store that is away; `error` makes it raise."""

    def __init__(self, values: Mapping[str, FeatureValue] | None = None) -> None:
        self.values = dict(values or {MEAN_DELAY: FeatureValue(12.5, FeatureState.PRESENT, 60.0)})
        self.failure: str | None = None
        self.error: HeadraceError | None = None
        self.keys: list[Mapping[str, str]] = []
        self.deadlines: list[Deadline] = []
        self.inputs: list[Mapping[str, Scalar]] = []

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        self.keys.append(keys)
        self.deadlines.append(deadline)
        self.inputs.append(inputs)
        if self.error is not None:
            raise self.error
        if self.failure is not None:
            missing = FeatureValue(None, FeatureState.MISSING)
            return FeatureRow(dict.fromkeys(refs, missing), ReadCost(1, 0, 0, 1), self.failure)
        return FeatureRow({ref: self.values[ref] for ref in refs}, ReadCost(len(keys), len(keys), 40, 1))


class FakePredictions:
    """A `PredictionReader` over a dictionary by entity. `error` makes it raise."""

    def __init__(self, stored: Mapping[str, StoredPrediction] | None = None) -> None:
        self.stored = dict(stored or {})
        self.error: HeadraceError | None = None
        self.asked: list[tuple[str, str]] = []
        self.deadlines: list[Deadline] = []

    async def lookup(self, predictor: str, entity: str, deadline: Deadline) -> StoredPrediction | None:
        self.asked.append((predictor, entity))
        self.deadlines.append(deadline)
        if self.error is not None:
            raise self.error
        return self.stored.get(entity)
