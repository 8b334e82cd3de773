"""The model rung of a predictor that the language model scores: what it asks, what it answers, and when it misses."""

from __future__ import annotations

from typing import Any

import pytest

from core_engine.contracts import Deadline, HeadKind, Pool, Reason, Rung
from core_engine.errors import (
    DeadlineExceeded,
    EngineRefused,
    EngineUnavailable,
    HeadraceError,
    QuotaExceeded,
    UnknownName,
)
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.declaration import FeatureUse, Objective, OnState, Predictor
from core_engine.predictors.inputs import check_inputs
from core_engine.predictors.label_prompt import LabelPrompts
from core_engine.tenants.quotas import Quota, Quotas
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import INPUTS, MEAN_DELAY, MODEL_SCORE, PRIOR_RATE, delay_predictor
from tests.core_engine.predictors.test_label_prompt import LABELS, predictor


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(default_model_path())


@pytest.fixture
def asking(ladder: Ladder, tokenizer: Tokenizer) -> Ladder:
    ladder.tokenizer, ladder.predictor = tokenizer, changed(ladder)
    return ladder


def changed(asking: Ladder, **changes: Any) -> Predictor:
    return predictor(folder=asking.folder, **changes)


async def test_the_value_is_the_declared_labels_probability_and_all_labels_are_scores(asking: Ladder) -> None:
    prediction = await asking.predict()
    assert (prediction.rung, prediction.reason, prediction.value) == (Rung.MODEL, None, MODEL_SCORE)
    assert prediction.scores == {"late": MODEL_SCORE, "in_time": 1 - MODEL_SCORE}
    assert (prediction.usage.cached_tokens, prediction.stages.model_ms) == (16, 2.0)
    assert prediction.usage.caller_cpu_s > 0


async def test_the_positive_label_need_not_be_the_first(asking: Ladder) -> None:
    prediction = await asking.predict(predictor=changed(asking, labels=LABELS[::-1]))
    assert prediction.value == 1 - MODEL_SCORE
    assert prediction.scores == {"in_time": MODEL_SCORE, "late": 1 - MODEL_SCORE}


async def test_the_engine_is_asked_in_the_predictors_name_with_its_template_marked(
    asking: Ladder, tokenizer: Tokenizer
) -> None:
    await asking.predict(predictor=changed(asking, objective=Objective.THROUGHPUT))
    (request,) = asking.engine.head_requests
    assert (request.attempt_id, request.predictor, request.version) == ("attempt", "delay", 1)
    assert request.pool is Pool.BULK
    assert request.head is not None
    assert request.head.kind is HeadKind.SCORE
    written = tokenizer.decode(request.prompt_token_ids)
    assert "A flight from JFK at 17:30, seats unknown, mean delay 12.5." in written
    assert 10 < request.template_tokens < len(request.prompt_token_ids)
    assert "JFK" not in tokenizer.decode(request.prompt_token_ids[: request.template_tokens])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineUnavailable("gone"), Reason.ENGINE_UNAVAILABLE),
        (EngineRefused("full"), Reason.ENGINE_REFUSED),
        (DeadlineExceeded("late"), Reason.DEADLINE),
        (UnknownName("no such"), Reason.MODEL_ERROR),
    ],
)
async def test_whatever_the_engine_refuses_the_prior_answers(
    asking: Ladder, error: HeadraceError, reason: Reason
) -> None:
    asking.engine.error = error
    prediction = await asking.predict()
    assert (prediction.rung, prediction.reason, prediction.value) == (Rung.PRIOR, reason, PRIOR_RATE)
    assert prediction.scores == {"late": PRIOR_RATE}


@pytest.mark.parametrize("values", [(), (0.5,), (0.2, 0.3, 0.5), (float("nan"), 0.5)])
async def test_values_that_are_no_probabilities_of_the_labels_are_a_model_error(
    asking: Ladder, values: tuple[float, ...]
) -> None:
    asking.engine.head_values = values
    prediction = await asking.predict()
    assert (prediction.rung, prediction.reason) == (Rung.PRIOR, Reason.MODEL_ERROR)
    assert prediction.scores == {"late": PRIOR_RATE}


async def test_without_a_tokenizer_there_is_no_model_rung(asking: Ladder) -> None:
    asking.tokenizer = None
    prediction = await asking.predict()
    assert (prediction.rung, prediction.reason) == (Rung.PRIOR, Reason.NO_RUNG)
    assert prediction.detail == "model: no tokenizer is connected"
    assert not asking.engine.head_requests


async def test_a_feature_that_the_prompt_cannot_write_is_a_model_error(asking: Ladder) -> None:
    asking.features.values[MEAN_DELAY] = type(asking.features.values[MEAN_DELAY])(
        "much", asking.features.values[MEAN_DELAY].state
    )
    prediction = await asking.predict()
    assert prediction.reason is Reason.MODEL_ERROR
    assert "cannot be filled in" in (prediction.detail or "")
    assert not asking.engine.head_requests


async def test_features_that_the_model_may_not_use_and_a_spent_budget_are_not_asked_about(asking: Ladder) -> None:
    asking.features.failure = "the store is away"
    strict = changed(asking, features=(FeatureUse(ref=MEAN_DELAY, on_missing=OnState.NEXT_RUNG),))
    assert (await asking.predict(predictor=strict)).reason is Reason.FEATURES_UNAVAILABLE
    assert (await asking.predict(deadline=Deadline(0.0))).reason is Reason.DEADLINE
    assert not asking.engine.head_requests


async def test_a_predictor_with_the_model_rung_only_needs_no_columns(asking: Ladder) -> None:
    bare = changed(asking, ladder=(Rung.MODEL,), prior=None, columns=())
    assert (await asking.predict(predictor=bare)).value == MODEL_SCORE
    asking.engine.error = EngineUnavailable("gone")
    prediction = await asking.predict(predictor=bare)
    assert (prediction.rung, prediction.value, prediction.scores) == (Rung.NONE, None, {})


class TestTokenQuota:
    """What the tenant may spend of the language model, where the door counts it."""

    @pytest.fixture
    def prompt_tokens(self, asking: Ladder, tokenizer: Tokenizer) -> int:
        asked = LabelPrompts(tokenizer).ask(
            asking.predictor, check_inputs(asking.predictor, INPUTS), {MEAN_DELAY: 12.5}
        )
        return len(asked.token_ids)

    @pytest.fixture
    def limited(self, asking: Ladder, prompt_tokens: int) -> Ladder:
        """So many tokens a minute as two prompts have; its clock stands still."""
        asking.quotas = Quotas(Quota(tokens_per_minute=2 * prompt_tokens), clock=lambda: 0.0)
        return asking

    async def test_a_score_spends_its_prompt_and_past_the_quota_it_is_refused_unasked(self, limited: Ladder) -> None:
        assert [(await limited.predict()).rung for _ in range(2)] == [Rung.MODEL] * 2
        with pytest.raises(QuotaExceeded) as refused:
            await limited.predict()
        assert refused.value.quota == "tokens"
        assert refused.value.retry_after_s == pytest.approx(30)
        assert len(limited.engine.head_requests) == 2

    async def test_a_question_that_was_not_answered_has_used_nothing(self, limited: Ladder) -> None:
        limited.engine.error = EngineRefused("full")
        assert [(await limited.predict()).rung for _ in range(5)] == [Rung.PRIOR] * 5
        limited.engine.error = None
        assert [(await limited.predict()).rung for _ in range(2)] == [Rung.MODEL] * 2

    async def test_a_rung_below_the_model_spends_nothing(self, limited: Ladder) -> None:
        assert [(await limited.predict(rungs=(Rung.PRIOR,))).rung for _ in range(5)] == [Rung.PRIOR] * 5

    async def test_a_scorer_of_its_own_spends_nothing(self, limited: Ladder) -> None:
        scored = delay_predictor(limited.folder)
        assert [(await limited.predict(predictor=scored)).rung for _ in range(5)] == [Rung.MODEL] * 5

    async def test_what_a_job_asks_is_on_nobody_s_quota(self, limited: Ladder) -> None:
        assert [(await limited.predict(is_batch=True)).rung for _ in range(5)] == [Rung.MODEL] * 5
