"""Heads over a real socket: results, refusals, linear heads loaded on request, and ends that are not results."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from core_engine.contracts import Head, HeadKind, Normalise, SamplingParams
from core_engine.errors import (
    DeadlineExceeded,
    EngineRefused,
    HeadraceError,
    InvalidRequest,
    ModelFileError,
    UnknownName,
)
from core_engine.llm.linear_head import LinearHead, save_linear_head
from core_engine.llm.step_plan import Scheduled
from core_engine.predictors.declaration import Artifact
from tests.core_engine.llm.by_hand import ByHand, head_request
from tests.core_engine.llm.running import Gate, running
from tests.core_engine.llm.test_client_and_server import until
from tests.core_engine.llm.test_decoder import PROMPT
from tests.core_engine.llm.test_heads import LABELS, LAST, MEAN, score
from tests.core_engine.llm.tiny import CONFIG, request
from tests.deadlines import always_left

close = partial(pytest.approx, abs=1e-5, rel=1e-4)
TOPIC = Head(HeadKind.CLASSIFY, name="topic:1")


def linear_head(folder: Path, hidden_size: int = CONFIG.hidden_size) -> Artifact:
    weight = torch.linspace(-1, 1, 4 * hidden_size).view(4, hidden_size)
    return save_linear_head(folder / f"{hidden_size}.safetensors", LinearHead(weight, torch.zeros(4)))


@pytest.mark.parametrize("head", [score(LABELS, Normalise.LABELS), score(LABELS, Normalise.VOCAB), LAST, MEAN])
async def test_a_head_comes_back_as_a_result_with_its_usage(head: Head) -> None:
    expected = ByHand().run([head_request(PROMPT, head)])["head"]
    async with running() as (client, served):
        result = await client.head(head_request(PROMPT, head))
        assert result.values == close(expected)
        assert result.usage.prompt_tokens == len(PROMPT)
        assert result.usage.completion_tokens == 0
        assert result.usage.device_s > 0
        assert min(result.queue_s, result.model_s) >= 0
    (fact,) = served.facts
    assert (fact.attempt_id, fact.outcome, fact.prompt_tokens) == ("head", "stop", len(PROMPT))
    assert fact.device_s == pytest.approx(result.usage.device_s)


async def test_many_heads_and_streams_side_by_side_are_each_answered() -> None:
    heads = [score(LABELS, Normalise.LABELS), LAST, MEAN, score(LABELS, Normalise.VOCAB)] * 5
    asked = [head_request([*PROMPT, i], head, f"head-{i}") for i, head in enumerate(heads)]
    expected = ByHand(num_blocks=800).run(asked)
    async with running() as (client, _):

        async def write(i: int) -> int:
            return sum([len(delta.token_ids) async for delta in client.generate(request([i, 2, 3], 6))])

        streams = asyncio.gather(*(write(i) for i in range(6)))
        results = await asyncio.gather(*(client.head(each) for each in asked))
        written = await streams
    assert [result.values for result in results] == [close(expected[each.attempt_id]) for each in asked]
    assert written == [6] * 6


class TestLinearHeads:
    async def test_one_that_was_loaded_classifies(self, tmp_path: Path) -> None:
        artifact = linear_head(tmp_path)
        by_hand = ByHand()
        by_hand.runner.heads.load("topic:1", Path(artifact.path), artifact.sha256)
        expected = by_hand.run([head_request(PROMPT, TOPIC)])["head"]
        async with running() as (client, served):
            await client.load_head("topic:1", artifact.path, artifact.sha256)
            await client.load_head("topic:1", "nowhere", artifact.sha256)  # it is held: its file is not read again
            assert served.engine.runner.heads.names == ("topic:1",)
            result = await client.head(head_request(PROMPT, TOPIC))
        assert result.values == close(expected)
        assert sum(result.values) == pytest.approx(1)

    async def test_one_that_is_not_held_is_named_beside_those_that_are(self, tmp_path: Path) -> None:
        artifact = linear_head(tmp_path)
        async with running() as (client, _):
            await client.load_head("other:1", artifact.path, artifact.sha256)
            with pytest.raises(UnknownName, match="holds no head 'topic:1'; it holds other:1"):
                await client.head(head_request(PROMPT, TOPIC))

    async def test_one_of_another_hidden_size_is_refused_and_the_engine_lives_on(self, tmp_path: Path) -> None:
        wrong = linear_head(tmp_path, hidden_size=31)
        async with running() as (client, served):
            with pytest.raises(ModelFileError, match=r"expected weight float32 \[num_classes, 32\]"):
                await client.load_head("topic:1", wrong.path, wrong.sha256)
            with pytest.raises(ModelFileError, match="was declared"):
                await client.load_head("topic:1", wrong.path, "0" * 64)
            assert served.engine.runner.heads.names == ()
            assert len((await client.head(head_request(PROMPT, LAST))).values) == CONFIG.hidden_size


@pytest.mark.parametrize(
    ("head", "field"),
    [
        (score((), Normalise.LABELS), "head.labels"),
        (score(((1,), (97,)), Normalise.LABELS), "head.labels[1]"),
        (score(((1,), (1, 2)), Normalise.LABELS), "head.labels[0]"),
        (score(((1,), (1,)), Normalise.VOCAB), "head.labels[1]"),
    ],
)
async def test_labels_that_cannot_be_scored_are_refused_by_name(head: Head, field: str) -> None:
    async with running() as (client, served):
        with pytest.raises(InvalidRequest) as caught:
            await client.head(head_request(PROMPT, head))
        assert str(caught.value).startswith(f"{field} is ")
        assert not served.engine.has_work


async def test_a_completions_dials_beside_a_head_are_refused() -> None:
    async with running() as (client, _):
        asked = replace(head_request(PROMPT, LAST), sampling=SamplingParams(prompt_logprobs=1))
        with pytest.raises(InvalidRequest, match="prompt_logprobs is 1, expected none beside a head"):
            await client.head(asked)


async def test_a_score_with_more_branches_than_the_queue_holds_is_refused_and_leaves_nothing() -> None:
    labels = tuple((i, j) for i in range(90) for j in (1, 2))
    async with running() as (client, served):
        with pytest.raises(EngineRefused, match="queue is full"):
            await client.head(head_request(PROMPT, score(labels, Normalise.LABELS)))
        assert not served.engine.has_work
        assert len((await client.head(head_request(PROMPT, LAST, "next"))).values) == CONFIG.hidden_size


async def test_a_caller_that_gives_up_aborts_all_sequences_of_its_score() -> None:
    async with running() as (client, served):
        gate = Gate(served)  # no step runs: what is asked waits in the engine
        asked = asyncio.create_task(client.head(head_request(PROMPT, score(LABELS, Normalise.LABELS))))
        await until(lambda: served.engine.has_work)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await until(lambda: not served.engine.has_work)
        gate.open()
        assert len((await client.head(head_request(PROMPT, LAST, "next"))).values) == CONFIG.hidden_size
    assert [(fact.attempt_id, fact.outcome) for fact in served.facts] == [("head", "abort"), ("next", "stop")]


async def test_a_deadline_that_passes_in_the_engine_is_said() -> None:
    async with running() as (client, served):
        Gate(served)  # no step runs
        asked = head_request(PROMPT, score(LABELS, Normalise.LABELS))
        with pytest.raises(DeadlineExceeded):
            await client.head(replace(asked, deadline=always_left(0.05)))


async def test_a_step_that_fails_ends_its_heads_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (client, served):
        run, broken = served.engine.runner.heads.run, ["broken on purpose"]

        def failing(scheduled: list[Scheduled], hidden: torch.Tensor) -> dict[str, tuple[float, ...]]:
            if broken:
                raise RuntimeError(broken.pop())
            return run(scheduled, hidden)

        monkeypatch.setattr(served.engine.runner.heads, "run", failing)
        with pytest.raises(HeadraceError, match="the step failed: RuntimeError"):
            await client.head(head_request(PROMPT, score(LABELS, Normalise.LABELS)))
        assert len((await client.head(head_request(PROMPT, LAST, "next"))).values) == CONFIG.hidden_size
        assert not served.engine._groups
