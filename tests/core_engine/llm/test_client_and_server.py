"""The client and the engine over a real socket: streams, scores, aborts, deadlines, and losing one another."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import zmq
import zmq.asyncio

from core_engine.contracts import (
    Deadline,
    FinishReason,
    GenerateRequest,
    Pool,
    SamplingParams,
    ScoreRequest,
    TokenDelta,
)
from core_engine.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    HeadraceError,
    InvalidRequest,
    ModelFileError,
    UnknownName,
)
from core_engine.llm import messages as wire
from core_engine.llm.client import EngineClient
from core_engine.llm.engine import SequenceEvent
from core_engine.llm.kv_cache import KvCache
from core_engine.llm.server import EngineServer
from core_engine.llm.step_rows import StepRows
from tests.core_engine.llm.running import PATIENCE_S, Gate, Served, running, serve
from tests.core_engine.llm.tiny import request, run_all, tiny_engine
from tests.deadlines import always_left


async def collect(client: EngineClient, asked: GenerateRequest) -> list[TokenDelta]:
    return [delta async for delta in client.generate(asked)]


async def drain(stream: AsyncGenerator[TokenDelta, None]) -> None:
    async for _ in stream:
        pass


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def rows(
    values: list[list[float]], *, scorer: str = "sum:1", deadline: Deadline | None = None, **more: object
) -> ScoreRequest:
    data = np.array(values, dtype="<f4")
    options = {"attempt_id": f"score-{random.random()}", "num_rows": len(values)} | more
    return ScoreRequest(scorer=scorer, features=data.tobytes(), deadline=deadline or Deadline.never(), **options)  # type: ignore[arg-type]


async def until(holds: Callable[[], object]) -> None:
    """The engine runs in a thread that signals nobody: look until `holds`."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def idle(served: Served) -> None:
    """Wait until the engine holds nothing more, and the turn of its loop that ended the last of it is over."""
    await until(lambda: not served.server.busy and not served.server.attempts._owners)
    ending = served.server.snapshot
    await until(lambda: served.server.snapshot is not ending)
    assert served.engine.scheduler.blocks.num_free == served.engine.scheduler.blocks.total
    assert not served.server.attempts._sequences


async def test_a_stream_has_the_engines_tokens_and_ends_with_reason_and_usage() -> None:
    asked = request([9, 8, 7], max_tokens=12)
    expected = run_all(tiny_engine(), [asked])[asked.attempt_id]
    async with running() as (client, served):
        deltas = await collect(client, asked)
        await idle(served)
    assert tokens(deltas) == expected
    assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + [FinishReason.LENGTH]
    usage = deltas[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.computed_tokens) == (3, 12, 14)
    assert usage.device_s > 0
    (fact,) = served.facts
    assert (fact.attempt_id, fact.outcome, fact.completion_tokens) == (asked.attempt_id, "length", 12)


async def test_many_streams_at_once_each_get_their_own_tokens() -> None:
    asked = [request([i, i + 1], max_tokens=10, pool=pool) for i in range(12) for pool in Pool]
    alone = {a.attempt_id: run_all(tiny_engine(), [a])[a.attempt_id] for a in asked}
    async with running() as (client, served):
        got = await asyncio.gather(*(collect(client, a) for a in asked))
        await idle(served)
    assert {a.attempt_id: tokens(d) for a, d in zip(asked, got, strict=True)} == alone


async def test_scores_come_back_in_order_and_are_batched_together() -> None:
    async with running() as (client, served):
        score, all_sent = served.scorer.score, threading.Event()

        def held(features: np.ndarray) -> np.ndarray:
            assert all_sent.wait(PATIENCE_S)
            return score(features)

        served.scorer.score = held  # type: ignore[method-assign]
        calls = asyncio.gather(*(client.score(rows([[i, 1, 2], [i, 0, 0]])) for i in range(40)))
        await asyncio.sleep(0)  # each runs up to where it waits for the engine
        all_sent.set()
        results = await calls
        await idle(served)
    assert [r.scores for r in results] == [(i + 3.0, float(i)) for i in range(40)]
    assert max(served.scorer.batches) > 2, "nothing was batched"
    assert all(r.usage.batch_size in served.scorer.batches for r in results)
    assert sum(fact.device_s for fact in served.facts) == pytest.approx(sum(r.usage.device_s for r in results))


async def test_closing_a_stream_aborts_it_and_frees_its_blocks() -> None:
    async with running() as (client, served):
        gate = Gate(served, 1)  # or it might be over before it is closed
        stream = client.generate(request(max_tokens=200))
        await anext(stream)
        await stream.aclose()
        await idle(served)
        gate.open()
        assert served.facts[-1].outcome == "abort"
        assert tokens(await collect(client, request(max_tokens=3)))


async def test_random_aborts_in_every_state_leave_an_engine_that_serves() -> None:
    rng = random.Random(1)

    async def abandon(client: EngineClient) -> None:
        stream = client.generate(request(range(rng.randint(1, 60)), max_tokens=60, pool=rng.choice(list(Pool))))
        for _ in range(rng.randint(0, 5)):
            await anext(stream, None)
        await stream.aclose()

    async with running() as (client, served):
        for _ in range(5):
            await asyncio.gather(*(abandon(client) for _ in range(12)))
        await idle(served)
        assert len(tokens(await collect(client, request(max_tokens=5)))) == 5


async def test_a_cancelled_caller_aborts_too() -> None:
    async with running() as (client, served):
        Gate(served)
        task = asyncio.create_task(collect(client, request(max_tokens=240)))
        await until(lambda: served.engine.has_work)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(served)


async def test_the_callers_own_timer_ends_the_call_whatever_the_engine_does() -> None:
    async with running() as (client, served):
        engine_step = served.engine.step
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stuck(between: Callable[[], None]) -> list[SequenceEvent]:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(PATIENCE_S)
            return engine_step(between)

        served.engine.step = stuck  # type: ignore[method-assign, assignment]
        with pytest.raises(DeadlineExceeded, match="within the deadline"):
            await collect(client, request(deadline=always_left(0.2), max_tokens=3))
        release.set()
        served.engine.step = engine_step  # type: ignore[method-assign]
        await idle(served)
        assert served.facts[-1].outcome in ("deadline", "abort")


async def test_bad_requests_are_refused_by_name_and_the_engine_lives() -> None:
    nan = float("nan")
    bad = [
        (request([1], sampling=SamplingParams(temperature=nan)), "temperature"),
        (request([1], sampling=SamplingParams(temperature=-1)), "temperature"),
        (request([1], sampling=SamplingParams(top_p=0)), "top_p"),
        (request([1], sampling=SamplingParams(top_k=-5)), "top_k"),
        (request([1], sampling=SamplingParams(max_tokens=0)), "max_tokens"),
        (request([1], sampling=SamplingParams(stop_token_ids=tuple(range(100)))), "stop_token_ids"),
        (request([-1]), "prompt_token_ids is -1"),
        (request([97]), "prompt_token_ids is 97"),
        (request([]), "no tokens"),
        (request([1] * 250, max_tokens=50), "max_tokens"),
    ]
    async with running() as (client, served):
        for asked, says in bad:
            with pytest.raises(InvalidRequest, match=says):
                await collect(client, asked)
        for asked_rows, says in [
            (rows([[1, 2]]), "8 bytes, expected 12"),
            (rows([[1, 2, 3]], num_rows=0), "num_rows is 0"),
            (rows([[1, 2, 3]], num_rows=10**9), "num_rows"),
        ]:
            with pytest.raises(InvalidRequest, match=says):
                await client.score(asked_rows)
        with pytest.raises(UnknownName, match="it holds sum:1"):
            await client.score(rows([[1, 2, 3]], scorer="nope:1"))
        assert len(tokens(await collect(client, request(max_tokens=4)))) == 4
        await idle(served)


async def test_a_scorer_that_fails_ends_its_own_requests_only() -> None:
    async with running() as (client, served):
        served.scorer.fails = True
        with pytest.raises(HeadraceError, match="sum:1 failed: RuntimeError"):
            await client.score(rows([[1, 2, 3]]))
        served.scorer.fails = False
        assert (await client.score(rows([[1, 2, 3]]))).scores == (6.0,)
        await idle(served)


async def test_a_step_that_fails_ends_what_was_in_it_and_the_engine_lives() -> None:
    async with running() as (client, served):
        run = served.engine.runner.run
        served.engine.runner.run = lambda plan, between: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(HeadraceError, match="step failed: ZeroDivisionError"):
            await collect(client, request())
        served.engine.runner.run = run  # type: ignore[method-assign]
        assert len(tokens(await collect(client, request(max_tokens=4)))) == 4
        await idle(served)


async def test_scorers_are_loaded_on_request_and_a_damaged_file_is_named() -> None:
    async with running() as (client, _):
        with pytest.raises(ModelFileError, match="digest differs"):
            await client.load_scorer("new:1", "some/file", "bad")
        await client.load_scorer("new:1", "some/file", "good")
        await client.load_scorer("new:1", "some/file", "good")
        assert (await client.score(rows([[1, 1, 1]], scorer="new:1"))).scores == (3.0,)


async def test_interactive_rows_do_not_wait_for_bulk_rows_and_expired_ones_are_told() -> None:
    async with running() as (client, served):
        bulk = [client.score(rows([[1, 1, 1]] * 200, pool=Pool.BULK)) for _ in range(6)]
        late = client.score(rows([[1, 2, 3]], deadline=Deadline.after(-1)))
        results = await asyncio.gather(*bulk, late, return_exceptions=True)
        assert isinstance(results[-1], DeadlineExceeded)
        assert max(served.scorer.batches) <= 256 + 1
        await idle(served)


async def test_scorer_rows_are_answered_between_two_layers_and_all_else_waits_for_the_steps_end() -> None:
    async with running() as (client, served):
        decoder, forward = served.engine.runner.decoder, served.engine.runner.decoder.forward
        in_step, sent, scored = threading.Event(), threading.Event(), threading.Event()

        def held(step: StepRows, cache: KvCache, between: Callable[[], None]) -> torch.Tensor:
            """The first layer ends when the row is on its way; the next begins when it was answered."""
            decoder.forward = forward  # type: ignore[method-assign]
            in_step.set()
            assert sent.wait(PATIENCE_S)
            between()
            assert scored.wait(PATIENCE_S), "the row waited for the end of the step"
            return forward(step, cache, between)

        decoder.forward = held  # type: ignore[method-assign, assignment]
        stream = asyncio.create_task(collect(client, request(max_tokens=3)))
        await until(in_step.is_set)
        row, other = client.score(rows([[1, 2, 3]])), client.generate(request(max_tokens=2))
        answer = asyncio.create_task(row)
        late = asyncio.create_task(drain(other))
        await asyncio.sleep(0)  # each runs up to where it waits for the engine
        sent.set()
        assert (await answer).scores == (6.0,)
        scored.set()
        assert len(tokens(await stream)) == 3
        await late
        await idle(served)
        steps = [fact for fact in served.facts if fact.outcome == "length"]
        assert len(steps) == 2


async def test_an_abort_during_a_step_takes_effect_after_it() -> None:
    async with running() as (client, served):
        decoder, forward = served.engine.runner.decoder, served.engine.runner.decoder.forward
        started, release = threading.Event(), threading.Event()

        def held(step: StepRows, cache: KvCache, between: Callable[[], None]) -> torch.Tensor:
            started.set()
            assert release.wait(PATIENCE_S)
            return forward(step, cache, between)

        decoder.forward = held  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(collect(client, request(max_tokens=50)))
        await until(started.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        await idle(served)
        assert served.facts[-1].outcome == "abort"
        decoder.forward = forward  # type: ignore[method-assign]
        assert len(tokens(await collect(client, request(max_tokens=4)))) == 4


async def test_an_attempt_id_in_flight_is_refused_and_the_first_one_is_unharmed() -> None:
    async with running() as (client, served):
        first = client.generate(request(attempt_id="same", max_tokens=30))
        got = [await anext(first)]
        with pytest.raises(InvalidRequest, match="in flight"):
            await collect(client, request(attempt_id="same"))
        got += [delta async for delta in first]
        assert len(tokens(got)) == 30
        await idle(served)


async def test_garbage_on_the_wire_is_ignored_and_the_engine_lives() -> None:
    async with running() as (client, served):
        context = served.server.context
        with context.socket(zmq.DEALER) as stranger:
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(served.server.endpoint)
            rng = random.Random(3)
            whole = msgspec.msgpack.encode(wire.Hello())
            for _ in range(200):
                stranger.send(rng.randbytes(rng.randint(0, 40)))
                stranger.send(whole[: rng.randint(0, len(whole))] + rng.randbytes(3))
            stranger.send_multipart([b"two", b"parts"])
            assert len(tokens(await collect(client, request(max_tokens=5)))) == 5
        await idle(served)


async def test_one_client_cannot_abort_anothers_request() -> None:
    async with running() as (client, served):
        stream = client.generate(request(attempt_id="mine", max_tokens=40))
        first = await anext(stream)
        with served.server.context.socket(zmq.DEALER) as stranger:
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(served.server.endpoint)
            stranger.send(msgspec.msgpack.encode(wire.Abort("mine")))
            rest = [delta async for delta in stream]
        assert len(tokens([first, *rest])) == 40
        await idle(served)


async def test_a_client_that_vanishes_loses_its_own_requests_and_nobody_elses(tmp_path: Path) -> None:
    context = zmq.Context()
    endpoint = f"ipc://{tmp_path}/e"
    with serve(context, endpoint, tiny_engine(num_blocks=400)) as served:
        stays, goes = EngineClient(endpoint), EngineClient(endpoint)
        for client in (stays, goes):
            await client.start()
            await client.wait_available(PATIENCE_S)
        gate = Gate(served)
        kept = stays.generate(request(max_tokens=200))
        lost = goes.generate(request(max_tokens=240, attempt_id="lost"))
        both_begin = asyncio.gather(anext(kept), anext(lost))
        await until(lambda: len(served.server.attempts) == 2)
        gate.steps = 3
        got = [(await both_begin)[0]]
        # as a killed process would: the socket goes, no abort is sent
        goes._dealer.close(linger=0)
        await until(lambda: "lost" not in served.server.attempts._owners)
        gate.open()
        got += [delta async for delta in kept]
        assert len(tokens(got)) == 200
        assert Counter(fact.outcome for fact in served.facts) == {"abort": 1, "length": 1}
        await lost.aclose()
        await goes.close()
        await stays.close()
    context.destroy(linger=0)


async def test_a_restarted_engine_fails_what_was_in_flight_at_once_and_serves_again(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/e"
    client = EngineClient(endpoint, lost_after_s=30)  # so that only the lost connection can tell
    await client.start()
    context = zmq.Context()
    with serve(context, endpoint) as served:
        await client.wait_available(PATIENCE_S)
        Gate(served, 1)
        stream = client.generate(request(max_tokens=250))
        await anext(stream)
    context.destroy(linger=0)
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(drain(stream), PATIENCE_S)
    await until(lambda: client.welcome is None)  # the engine's last words may be read before the end of the connection
    with pytest.raises(EngineUnavailable, match="no engine answers"):
        await collect(client, request())
    context = zmq.Context()
    with serve(context, endpoint):
        await client.wait_available(PATIENCE_S)
        assert len(tokens(await collect(client, request(max_tokens=5)))) == 5
        await client.close()
    context.destroy(linger=0)


async def test_a_long_step_does_not_stop_the_heartbeats() -> None:
    async with running() as (client, served):
        held, step = asyncio.Event(), served.engine.step
        loop = asyncio.get_running_loop()

        def long_step(between: Callable[[], None]) -> list[SequenceEvent]:
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result(PATIENCE_S)
            return step(between)

        served.engine.step = long_step  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(collect(client, request(max_tokens=3)))
        await until(lambda: served.engine.has_work)
        beats, see = 0, client._see

        def counting(snapshot: wire.Snapshot) -> None:
            nonlocal beats
            beats += 1
            see(snapshot)

        client._see = counting  # type: ignore[method-assign]
        await until(lambda: beats >= 10)  # no frame comes from a step that does not end
        assert client.available
        held.set()
        served.engine.step = step  # type: ignore[method-assign]
        assert len(tokens(await task)) == 3


async def test_without_an_engine_every_call_says_so_at_once(tmp_path: Path) -> None:
    client = EngineClient(f"ipc://{tmp_path}/nobody")
    await client.start()
    assert not client.available
    with pytest.raises(EngineUnavailable, match="no engine"):
        await collect(client, request())
    with pytest.raises(EngineUnavailable, match="no engine"):
        await client.score(rows([[1, 2, 3]]))
    with pytest.raises(EngineUnavailable, match=r"after 0\.05 s"):
        await client.wait_available(0.05)
    await client.close()


async def test_every_frame_carries_the_snapshot() -> None:
    async with running() as (client, served):
        await collect(client, request(max_tokens=5))
        await until(lambda: client.snapshot is not None and client.snapshot.step >= 5)
        assert client.snapshot is not None
        assert client.snapshot.total_blocks == served.engine.scheduler.blocks.total
        assert len(client.snapshot.coefficients) == 5
        assert client.snapshot.step_s > 0


async def test_a_heartbeat_that_a_frame_has_overtaken_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[wire.Heartbeat] = []
    newest = EngineServer._heartbeat

    def first_one_again(server: EngineServer) -> wire.Heartbeat:
        sent.append(sent[0] if sent else newest(server))
        return sent[0]

    monkeypatch.setattr(EngineServer, "_heartbeat", first_one_again)
    async with running() as (client, _):
        await collect(client, request([9, 8, 7], max_tokens=12))
        num_before = len(sent)
        while len(sent) < num_before + 4:  # each of them is older than the stream's frames
            await asyncio.sleep(0.002)
            assert client.snapshot is not None
            for snapshot in (client.snapshot, client.totals.snapshot):
                assert snapshot.counters[Pool.INTERACTIVE].generation_tokens == 12
