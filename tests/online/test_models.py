"""The list of models, as the official client reads it."""

from __future__ import annotations

import openai
import pytest

from tests.core_engine.predictors.doubles import notice_predictor
from tests.online.conftest import DoorUnderTest, ServedDoor


async def test_the_base_model_and_the_predictors_that_write_are_listed(served: ServedDoor) -> None:
    models = (await served.openai.models.list()).data
    assert [(model.id, model.owned_by) for model in models] == [("tiny", "headrace"), ("notice", "tests")]
    assert all(model.created > 0 for model in models)


async def test_one_model_by_name(served: ServedDoor) -> None:
    assert (await served.openai.models.retrieve("notice")).owned_by == "tests"
    assert (await served.openai.models.retrieve("tiny")).owned_by == "headrace"


async def test_an_unknown_model_is_the_client_s_not_found(served: ServedDoor) -> None:
    with pytest.raises(openai.NotFoundError, match="known: tiny, notice") as caught:
        await served.openai.models.retrieve("delay")  # a predictor, but not one that writes
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_only_live_versions_are_listed(door: DoorUnderTest) -> None:
    door.registry.register(notice_predictor(name="draft", version=1))
    door.registry.set_alias("draft", "shadow", 1)
    await door.services.catalogue.refresh()
    assert [model["id"] for model in (await door.http.get("/v1/models")).json()["data"]] == ["tiny", "notice"]
