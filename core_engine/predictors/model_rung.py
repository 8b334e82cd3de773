"""The model rung: one question to the engine, by a torch scorer's row or by a prompt to the language model's labels.

An engine that is lost is known by its heartbeats, and asking it fails at once. One that is there and does not answer is
what the breaker is for; each predictor has its own, because one model that hangs says nothing of the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from core_engine.contracts import (
    Deadline,
    GenerateRequest,
    HeadResult,
    Monotonic,
    Path,
    Pool,
    Reason,
    SamplingParams,
    ScoreRequest,
    ScoreResult,
)
from core_engine.errors import DeadlineExceeded, HeadraceError
from core_engine.predictors.climb import Climb, Missed, in_ms, one_score, reason_of
from core_engine.predictors.declaration import LMScore
from core_engine.predictors.label_prompt import LabelPrompts
from core_engine.predictors.model_records import ModelRecord, ModelRecords
from core_engine.tenants.quotas import Quotas

if TYPE_CHECKING:  # pyzmq and tokenizers are the affair of those who build them
    from core_engine.llm.client import EngineClient
    from core_engine.llm.tokenizer import Tokenizer

Result = TypeVar("Result", ScoreResult, HeadResult)


class ModelRung:
    """`tokenizer` None: a predictor that the language model scores has no model rung in this process.

    `guarded`: a breaker stands before the engine. Without one, as in a job that has time, every request asks.
    `quotas`: what tenants may spend of the language model's tokens online; None, as in a job: no limit.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer | None,
        clock: Monotonic,
        *,
        guarded: bool,
        quotas: Quotas | None = None,
    ) -> None:
        self.records = ModelRecords(clock)
        self._guarded = guarded
        self._quotas = quotas
        self._engine = engine
        self._prompts = LabelPrompts(tokenizer) if tokenizer is not None else None
        self._clock = clock

    async def ask(self, climb: Climb) -> float:
        """The model's score of the predictor's label; leaves usage, times and further scores in `climb`.

        Raises:
            Missed: a door at its limit, features that the model may not use, no time, an open breaker, or whatever the
                engine answered instead.
            QuotaExceeded: the tenant has no tokens left for the language model.
        """
        deadline = climb.request.deadline.child(math.inf, climb.reserve_s)
        if climb.shed is not None:
            raise Missed(Reason.OVERLOADED, climb.shed)
        if climb.features.skip_model is not None:
            raise Missed(climb.features.reason, climb.features.skip_model)
        if isinstance(climb.predictor.model, LMScore):
            return await self._ask_language_model(climb, climb.predictor.model, deadline)
        request = _score_request(climb, deadline)
        result = await self._timed(climb, lambda: self._engine.score(request), deadline)
        return one_score(result.scores)

    async def _ask_language_model(self, climb: Climb, model: LMScore, deadline: Deadline) -> float:
        request = self._label_request(climb, deadline)
        with self._spending(request):
            result = await self._timed(climb, lambda: self._engine.head(request), deadline)
        if len(result.values) != len(model.labels):
            raise Missed(Reason.MODEL_ERROR, f"expected {len(model.labels)} probabilities, got {len(result.values)}")
        names = [label.name for label in model.labels]
        scores: Mapping[str, float] = dict(zip(names, result.values, strict=True))
        value = one_score((scores[climb.predictor.label],))
        climb.scores = scores
        return value

    @contextmanager
    def _spending(self, request: GenerateRequest) -> Iterator[None]:
        """The prompt's tokens are the tenant's; a question that was not answered has used none. Nobody asked for a
        shadow's, and what a stream or a job asks is on no tenant's key."""
        quotas, num_tokens = self._quotas, len(request.prompt_token_ids)
        if quotas is None or request.path is not Path.ONLINE:
            yield
            return
        quotas.take_tokens(request.tenant, num_tokens)
        try:
            yield
        except Missed:
            quotas.give_back_tokens(request.tenant, num_tokens)
            raise

    async def _timed(self, climb: Climb, ask: Callable[[], Awaitable[Result]], deadline: Deadline) -> Result:
        """The engine's answer; what it took is the model's time, all but the device's own of it is queue."""
        climb.spent.allowed_model_ms = in_ms(deadline.remaining())
        if deadline.expired:
            raise Missed(Reason.DEADLINE, "no time was left for the model")
        record = self.records.of(climb.predictor)
        if self._guarded and not record.breaker.allow():
            raise Missed(Reason.BREAKER_OPEN, "the model has not answered of late, and is asked again in a moment")
        started_s = self._clock()
        try:
            result = await ask()
        except HeadraceError as error:
            self._failed(climb, record, error, self._clock() - started_s)
            raise Missed(reason_of(error), str(error)) from None
        elapsed_ms, model_ms = (self._clock() - started_s) * 1e3, result.model_s * 1e3
        record.answered(elapsed_ms / 1e3)
        # all that is not the device is queue: transport, the engine's own queue, the step before
        climb.spent.queue_ms += max(0.0, elapsed_ms - model_ms)
        climb.spent.model_ms = model_ms
        climb.usage = result.usage
        return result

    def _failed(self, climb: Climb, record: ModelRecord, error: HeadraceError, elapsed_s: float) -> None:
        climb.spent.model_ms = elapsed_s * 1e3
        if isinstance(error, DeadlineExceeded):
            climb.spent.passed("model")
            record.was_late(elapsed_s)

    def _label_request(self, climb: Climb, deadline: Deadline) -> GenerateRequest:
        if self._prompts is None:
            raise Missed(Reason.NO_RUNG, "no tokenizer is connected")
        predictor, cpu_s = climb.predictor, time.thread_time()
        try:
            asked = self._prompts.ask(predictor, climb.inputs, climb.features.values)
        except HeadraceError as error:
            raise Missed(Reason.MODEL_ERROR, str(error)) from None
        climb.caller_cpu_s += time.thread_time() - cpu_s
        return GenerateRequest(
            attempt_id=climb.request.attempt_id,
            prompt_token_ids=asked.token_ids,
            sampling=SamplingParams(),
            deadline=deadline,
            pool=_pool(climb),
            tenant=climb.request.tenant,
            predictor=predictor.name,
            version=predictor.version,
            path=climb.request.path,
            template_tokens=asked.template_tokens,
            head=asked.head,
            traceparent=climb.request.traceparent,
        )


def _score_request(climb: Climb, deadline: Deadline) -> ScoreRequest:
    return ScoreRequest(
        attempt_id=climb.request.attempt_id,
        scorer=climb.predictor.id,
        features=climb.encode().astype("<f4", copy=False).tobytes(),
        num_rows=1,
        deadline=deadline,
        pool=_pool(climb),
        tenant=climb.request.tenant,
        path=climb.request.path,
        traceparent=climb.request.traceparent,
    )


def _pool(climb: Climb) -> Pool:
    """By the predictor's objective; nobody waits for a shadow."""
    return Pool.BULK if climb.request.path is Path.SHADOW else climb.predictor.pool
