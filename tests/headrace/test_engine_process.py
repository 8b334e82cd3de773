"""The engine as a process, its signals and its supervisor real, its model a toy: told to go, killed, stopped, left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from core_engine.contracts import FinishReason, Pool
from core_engine.errors import EngineUnavailable, HeadraceError
from core_engine.llm.client import EngineClient
from core_engine.llm.messages import AbortReason, Snapshot
from core_engine.pools.child import ChildSpec
from core_engine.pools.heartbeats import HeartbeatListener
from core_engine.pools.replica import RestartPolicy, RestartReason
from core_engine.pools.supervisor import Supervisor, is_ready_again
from core_engine.settings import EngineSettings
from headrace.runtime import socket_folder
from tests.core_engine.llm.running import PATIENCE_S
from tests.core_engine.llm.test_client_and_server import collect, tokens, until
from tests.core_engine.llm.tiny import request

ROOT = Path(__file__).parents[2]
TOY = """
import os
import headrace.engine as process
from core_engine.llm.server import EngineInfo
from core_engine.settings import load_settings
from tests.core_engine.llm.tiny import tiny_engine

def build(settings):
    told = (settings.heartbeat_s, settings.lease_s, settings.drain_s, settings.replica, settings.restarts.model_dump())
    engine, held = tiny_engine(num_blocks=400), os.path.dirname(settings.endpoint.removeprefix("ipc://")) + "/held"
    step = engine.step

    def steps_but_while_held(between=None):
        if os.path.exists(held):
            engine.last_run_s = engine.last_free_block_s = 0.0
            return []
        return step(between)

    engine.step = steps_but_while_held
    return engine, EngineInfo("tiny", 256, 97, "float32", *told)

process.build_engine = build
process.run_engine(load_settings())
"""
CALLER = """
import asyncio, sys
from core_engine.errors import EngineUnavailable
from core_engine.llm.client import EngineClient
from tests.core_engine.llm.tiny import request

async def main():
    client = EngineClient(sys.argv[1])
    await client.start()
    await client.wait_available(60)
    endless = [client.generate(request(max_tokens=240, attempt_id=f"caller-{n}")) for n in range(60)]
    streams = [asyncio.ensure_future(anext(stream)) for stream in endless]
    await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
    print("streaming", flush=True)
    reasons = set()
    for stream, first in zip(endless, streams):
        try:
            await first
            async for _ in stream:
                pass
        except EngineUnavailable as error:
            reasons.add(str(error))
    print(*reasons, flush=True)
    print(len([delta async for delta in client.generate(request(max_tokens=5))]), flush=True)
    await client.close()
asyncio.run(main())
"""


def environment(folder: Path, **engine: object) -> dict[str, str]:
    rest = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    own = {"STATE_DIR": folder, "ENGINE__ENDPOINT": f"ipc://{folder}/e", "ENGINE__HEARTBEAT_S": 0.05}
    own |= {f"ENGINE__{name.upper()}": value for name, value in engine.items()}
    return rest | {f"HEADRACE_{name}": str(value) for name, value in own.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Short enough for a Unix socket."""
    with socket_folder(tmp_path / "run") as folder:
        yield folder


@dataclass
class Running:
    process: Process
    client: EngineClient

    async def end(self) -> int:
        """Wait for the process to end by itself; its exit status."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


@asynccontextmanager
async def running(folder: Path, **engine: object) -> AsyncIterator[Running]:
    environ = environment(folder, **engine)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", TOY, env=environ, cwd=ROOT)
    client = EngineClient(f"ipc://{folder}/e")
    await client.start()
    try:
        await client.wait_available(60)
        yield Running(process, client)
    finally:
        await client.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("nice", [0, 7])
async def test_doors_on_the_same_cores_come_first_by_as_much_as_is_set(folder: Path, nice: int) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    async with running(folder, nice=nice) as engine:  # its main thread, whose value those it starts inherit
        assert os.getpriority(os.PRIO_PROCESS, engine.process.pid) == min(19, own + nice)


async def test_sigterm_lets_streams_finish_and_the_process_ends_well(folder: Path) -> None:
    async with running(folder, drain_s=300) as engine:
        streams = [asyncio.create_task(collect(engine.client, request([n], max_tokens=60))) for n in range(12)]
        await until(lambda: admitted(engine.client) == 12)
        engine.process.send_signal(signal.SIGTERM)
        await until(lambda: not engine.client.available)
        with pytest.raises(EngineUnavailable):
            await collect(engine.client, request())
        for deltas in await asyncio.gather(*streams):
            assert len(tokens(deltas)) == 60
            assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert await engine.end() == 0


async def test_sigterm_ends_within_its_bound_and_every_stream_has_its_end_or_the_reason(folder: Path) -> None:
    async with running(folder, drain_s=0.1) as engine:
        asked = [request([n % 90], max_tokens=240) for n in range(64)]
        streams = [asyncio.create_task(collect(engine.client, each)) for each in asked]
        await until(lambda: engine.client.snapshot is not None and engine.client.snapshot.interactive.running > 0)
        (folder / "held").touch()  # however quick it is, it does not finish them all
        engine.process.send_signal(signal.SIGTERM)
        ends = await asyncio.gather(*streams, return_exceptions=True)
        reasons = {str(end) for end in ends if isinstance(end, BaseException)}
        assert "the engine drained for 0.1 s and stopped" in reasons
        assert all(isinstance(end, list | EngineUnavailable) for end in ends)
        assert await engine.end() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_does_not_wait(folder: Path, second: signal.Signals) -> None:
    async with running(folder, drain_s=3600) as engine:
        streams = [asyncio.create_task(collect(engine.client, request([n], max_tokens=240))) for n in range(64)]
        await until(lambda: engine.client.snapshot is not None and engine.client.snapshot.interactive.running > 0)
        (folder / "held").touch()
        engine.process.send_signal(signal.SIGTERM)
        await until(lambda: not engine.client.available)
        engine.process.send_signal(second)
        assert await engine.end() == 0
        ends = await asyncio.gather(*streams, return_exceptions=True)
        assert any(isinstance(end, EngineUnavailable) for end in ends)


async def test_an_abort_storm_in_every_state_then_one_more_request_then_sigterm(folder: Path) -> None:
    rng = random.Random(5)

    async def abandon(client: EngineClient) -> None:
        pool = rng.choice(list(Pool))
        stream = client.generate(request(range(1, rng.randint(2, 90)), max_tokens=rng.randint(1, 90), pool=pool))
        try:
            for _ in range(rng.randint(0, 6)):
                await anext(stream, None)
        except HeadraceError:
            pass  # the queue has its bounds
        await stream.aclose()

    async with running(folder) as engine:
        await asyncio.gather(*(abandon(engine.client) for _ in range(150)))
        assert len(tokens(await collect(engine.client, request(max_tokens=7)))) == 7
        await until(lambda: engine.client.snapshot and is_empty(engine.client.snapshot))
        assert engine.client.snapshot is not None
        for counters in engine.client.snapshot.counters.values():
            assert counters.admitted == sum(counters.finished.values()) > 0
        engine.process.send_signal(signal.SIGTERM)
        assert await engine.end() == 0


async def test_a_client_process_that_hangs_loses_its_streams_and_works_on_when_it_wakes(folder: Path) -> None:
    async with running(folder, lease_s=0.5) as engine:
        argv = (sys.executable, "-c", CALLER, f"ipc://{folder}/e")
        caller = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=PIPE)
        assert caller.stdout is not None
        assert await caller.stdout.readline() == b"streaming\n"
        (folder / "held").touch()  # its streams do not end by themselves
        caller.send_signal(signal.SIGSTOP)
        await until(lambda: engine.client.snapshot and engine.client.snapshot.aborts.get(AbortReason.LEASE))
        await until(lambda: engine.client.snapshot and not engine.client.snapshot.interactive.running)
        assert engine.client.available
        (folder / "held").unlink()
        caller.send_signal(signal.SIGCONT)
        assert b"the lease ran out: nothing was heard of this client for 0.5 s" in await caller.stdout.readline()
        assert await caller.stdout.readline() == b"5\n"
        assert await caller.wait() == 0


async def test_a_killed_and_a_stopped_engine_are_restarted_and_tell_every_client_why(folder: Path) -> None:
    endpoint, policy = f"ipc://{folder}/e", RestartPolicy(first_s=0.01)
    async with HeartbeatListener(endpoint, 1.0) as heartbeats, Supervisor(folder / "logs", policy) as supervisor:
        spec = ChildSpec(
            "engine",
            (sys.executable, "-c", TOY),
            environment(folder) | {"PYTHONPATH": str(ROOT)},
            heartbeats.ready,
            pulse=heartbeats.pulse,
            restarts_prefix="HEADRACE_ENGINE__RESTARTS__",
        )
        await supervisor.start(spec)
        client = EngineClient(endpoint)
        await client.start()
        await client.wait_available(60)
        assert told(client) == {}
        for restarts, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
            pid = supervisor.status("engine").pid
            assert pid is not None
            os.kill(pid, number)
            await until(lambda: not client.available)
            await supervisor.until("engine", is_ready_again(restarts))
            await client.wait_available(60)
            assert len(tokens(await collect(client, request(max_tokens=5)))) == 5
        assert told(client) == {RestartReason.SIGNAL: 1, RestartReason.SILENT: 1}
        await client.close()


def admitted(client: EngineClient) -> int:
    return client.snapshot.counters[Pool.INTERACTIVE].admitted if client.snapshot else 0


def is_empty(snapshot: Snapshot) -> bool:
    loads = (snapshot.interactive, snapshot.bulk)
    return all(load.running == load.waiting == 0 for load in loads) and snapshot.free_blocks == snapshot.total_blocks


def told(client: EngineClient) -> dict[str, int]:
    assert client.welcome is not None
    assert client.welcome.replica == EngineSettings().replica
    return {reason: count for reason, count in client.welcome.restarts.items() if count}
