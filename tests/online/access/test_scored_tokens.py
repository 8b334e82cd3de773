"""A prediction that the language model scores, at the door of a tenant with tokens per minute."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from core_engine.contracts import Deadline
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.rungs import RungCache
from core_engine.tenants.quotas import Quota
from online.app import create_app
from tests.core_engine.predictors.doubles import INPUTS
from tests.core_engine.predictors.test_label_prompt import predictor
from tests.online.access.conftest import Guard, Guarded

ASKED = "/v1/predict/asked"
ONE_PROMPT = Quota(tokens_per_minute=60)  # the prompt has a few dozen tokens


@asynccontextmanager
async def scoring(guarded: Guarded, folder: Path, tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    """The same door with a predictor that the language model scores, counted by the gate's quotas."""
    door, declared = guarded.door, predictor(folder=folder, name="asked")
    door.registry.register(declared)
    door.registry.set_alias(declared.name, "live", declared.version)
    await door.services.catalogue.refresh()
    rungs = RungCache()
    await rungs.get(declared, Deadline.never())
    flow = PredictFlow(
        features=door.features,
        engine=door.engine,
        rungs=rungs,
        spool=door.services.spool,
        metrics=guarded.services.metrics,
        feature_cap_s=1.0,
        tokenizer=tokenizer,
        quotas=guarded.services.gate.quotas,
    )
    app = create_app(replace(guarded.services, flow=flow))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as client:
        yield client


async def test_past_its_tokens_it_is_a_429_problem_that_says_when_there_is_room(
    guard: Guard, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    async with guard(default=ONE_PROMPT) as guarded, scoring(guarded, tmp_path, tokenizer) as http:
        key, other = await guarded.key("acme"), await guarded.key("globex")
        answered = await http.post(ASKED, json={"inputs": INPUTS}, headers=key)
        assert (answered.status_code, answered.json()["rung"]) == (200, "model")
        refused = await http.post(ASKED, json={"inputs": INPUTS}, headers=key)
        assert (refused.status_code, refused.headers["content-type"]) == (429, "application/problem+json")
        assert refused.json()["type"] == "urn:headrace:problem:rate_limit_exceeded"
        assert "60 tokens per minute" in refused.json()["detail"]
        assert guarded.count("acme", "tokens") == 1
        assert (await http.post(ASKED, json={"inputs": INPUTS}, headers=other)).status_code == 200
        guarded.clock.now_s += int(refused.headers["retry-after"])
        assert (await http.post(ASKED, json={"inputs": INPUTS}, headers=key)).status_code == 200


async def test_chats_and_scores_spend_the_same_tokens_and_rungs_below_the_model_none(
    guard: Guard, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    async with guard(default=ONE_PROMPT) as guarded, scoring(guarded, tmp_path, tokenizer) as http:
        key = await guarded.key("acme")
        for _ in range(3):
            reply = await http.post(ASKED, json={"inputs": INPUTS, "rungs": ["prior"]}, headers=key)
            assert (reply.status_code, reply.json()["rung"]) == (200, "prior")
        assert (await http.post(ASKED, json={"inputs": INPUTS}, headers=key)).json()["rung"] == "model"
        assert (await guarded.chat(key, max_tokens=16)).status_code == 429
