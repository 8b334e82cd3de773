"""How one row becomes one result: scored by the ladder, or written by the language model. Neither knows of jobs.

A row that can never succeed raises `InvalidRequest`; a platform that cannot do it now raises `Unavailable`, and a
model that failed on it `ModelFault`: the runner tries again.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from batch.errors import ModelFault
from batch.reader import Row
from core_engine.contracts import (
    Deadline,
    FinishReason,
    GenerateRequest,
    Path,
    Prediction,
    PredictRequest,
    ReadCost,
    Reason,
    Rung,
    SamplingParams,
    Usage,
)
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import Spool
from core_engine.errors import EngineUnavailable, HeadraceError, InvalidRequest, StoreUnavailable
from core_engine.llm.client import EngineClient
from core_engine.llm.text import generate_text
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.climb import reason_of
from core_engine.predictors.declaration import LMGenerate, Predictor
from core_engine.predictors.inputs import check_inputs, lookup_key
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.prompt import conversation
from core_engine.predictors.system_prompt import SystemPrompts

Now = Callable[[], datetime]
PASSING = (Reason.ENGINE_UNAVAILABLE, Reason.ENGINE_REFUSED, Reason.DEADLINE)  # reasons that waiting may cure

WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one unit gave. `entity` is None where the predictor declares no key of precomputed predictions."""

    value: float | str
    entity: str | None
    rung: Rung
    reason: Reason | None = None
    finish_reason: str | None = None
    batch_size: int = 0


class Work(Protocol):
    async def ready(self) -> None:
        """Return once the model can be asked. Raises `Unavailable` where it cannot."""
        ...

    async def answer(self, row: Row, delivery_key: str) -> Answer:
        """The result of one row; `delivery_key` groups the attempts at it. Cancelling it aborts what is in flight."""
        ...


class Scoring:
    """Rows through the one ladder, by the batch path: its precomputed rung is not asked."""

    def __init__(self, flow: PredictFlow, predictor: Predictor, ready: Callable[[], Awaitable[None]]) -> None:
        self._flow = flow
        self._predictor = predictor
        self._ready = ready

    async def ready(self) -> None:
        await self._ready()

    async def answer(self, row: Row, delivery_key: str) -> Answer:
        predictor = self._predictor
        inputs = check_inputs(predictor, row.inputs)
        entity = lookup_key(predictor, inputs) if predictor.precomputed else None
        prediction = await self._flow.predict(
            predictor,
            PredictRequest(
                predictor=predictor.name,
                inputs=inputs,
                attempt_id=uuid.uuid4().hex,
                deadline=Deadline.never(),
                path=Path.BATCH,
                delivery_key=delivery_key,
            ),
        )
        value = _whole(prediction)
        return Answer(value, entity, prediction.rung, prediction.reason, None, prediction.usage.batch_size)


def _whole(prediction: Prediction) -> float | str:
    """The value, unless something was away: a night's predictions are not made of fallbacks that waiting would cure."""
    if prediction.feature_failure is not None:
        raise StoreUnavailable(f"features could not be read: {prediction.feature_failure}")
    if prediction.reason in PASSING:
        raise EngineUnavailable(prediction.detail or str(prediction.reason))
    if prediction.reason is Reason.MODEL_ERROR:
        raise ModelFault(prediction.detail or "the model failed")
    if prediction.value is None:
        raise InvalidRequest(f"no rung answered: {prediction.detail}", field="inputs")
    return prediction.value


@dataclass(frozen=True, slots=True)
class Written:
    text: str
    finish_reason: str
    batch_size: int


class Writing:
    """Rows through the language model: the declared prompt, greedy, so that a row repeated is the same request."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        spool: Spool,
        predictor: Predictor,
        ready: Callable[[], Awaitable[None]],
        now: Now = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._system_prompts = SystemPrompts(tokenizer)
        self._spool = spool
        self._predictor = predictor
        self._ready = ready
        self._now = now

    async def ready(self) -> None:
        await self._ready()

    async def answer(self, row: Row, delivery_key: str) -> Answer:
        inputs = check_inputs(self._predictor, row.inputs)
        entity = lookup_key(self._predictor, inputs) if self._predictor.precomputed else None
        prompt = self._tokenizer.apply_chat_template(conversation(self._predictor, inputs))
        written = await self._write(self._request(prompt), delivery_key)
        if not written.text:
            raise ModelFault("the model wrote nothing")
        return Answer(written.text, entity, Rung.MODEL, None, written.finish_reason, written.batch_size)

    def _request(self, prompt: list[int]) -> GenerateRequest:
        model, predictor = self._predictor.model, self._predictor
        assert isinstance(model, LMGenerate)
        return GenerateRequest(
            attempt_id=uuid.uuid4().hex,
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=model.max_tokens),
            deadline=Deadline.never(),
            pool=predictor.pool,
            predictor=predictor.name,
            version=predictor.version,
            path=Path.BATCH,
            template_tokens=self._system_prompts.template_tokens(predictor, prompt),
        )

    async def _write(self, request: GenerateRequest, delivery_key: str) -> Written:
        arrived_at, pieces, failure = self._now(), list[str](), None
        finish_reason: FinishReason | None = None
        usage = Usage()
        try:
            async with aclosing(generate_text(self._client, self._tokenizer, request)) as deltas:
                async for delta in deltas:
                    pieces.append(delta.text)
                    finish_reason, usage = delta.finish_reason, delta.usage or usage
            if finish_reason not in WHOLE:
                raise EngineUnavailable(f"the engine ended the request: {finish_reason}")
        except HeadraceError as error:
            failure = reason_of(error)
            raise
        finally:
            self._spool.write(_fact(request, delivery_key, finish_reason, failure, arrived_at, self._now()))
        return Written("".join(pieces).strip(), str(finish_reason), usage.batch_size)


def _fact(
    request: GenerateRequest,
    delivery_key: str,
    finish_reason: FinishReason | None,
    failure: Reason | None,
    arrived_at: datetime,
    answered_at: datetime,
) -> CallerFact:
    """The caller's part of one attempt: written however it ended, also where it was cancelled."""
    return CallerFact(
        attempt_id=request.attempt_id,
        delivery_key=delivery_key,
        tenant=request.tenant,
        path=request.path,
        predictor=request.predictor,
        version=request.version,
        rung=Rung.MODEL if finish_reason in WHOLE else Rung.NONE,
        reason=failure,
        feature=ReadCost(),
        caller_cpu_s=0.0,
        delivered_in_time=finish_reason in WHOLE,
        arrived_at=arrived_at,
        answered_at=answered_at,
    )
