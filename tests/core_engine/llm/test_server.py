"""What the engine's loop does about clients that fall silent, and when it is told to go, in any state of an attempt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Path, Pool
from core_engine.costs.meter import ReplicaMeter, Spent
from core_engine.errors import EngineUnavailable
from core_engine.llm import messages as wire
from core_engine.llm.client import RENEWALS, EngineClient
from core_engine.llm.mailbox import Mailbox
from core_engine.llm.scorers import ScorerHost
from core_engine.llm.server import IDLE_POLL_MS, EngineInfo, EngineServer
from tests.core_engine.llm.running import Gate, Served, load_for_tests, running
from tests.core_engine.llm.test_client_and_server import collect, idle, rows, tokens, until
from tests.core_engine.llm.tiny import CONFIG, request, tiny_engine

FAR_S = 3600.0  # no test waits for this
STATES = {"waiting": 0, "prefill": 1, "decode": 12}  # steps of 8 tokens that a prompt of 60 has had


@dataclass
class Mute:
    """A client that sends what a test gives it and renews nothing: the socket of a process that hangs."""

    socket: zmq.Socket[bytes]
    told: list[wire.Event] = field(default_factory=list)

    def send(self, message: wire.ToEngine) -> None:
        self.socket.send(msgspec.msgpack.encode(message))

    def generate(self, asked: GenerateRequest) -> None:
        self.send(
            wire.Generate(
                asked.attempt_id,
                asked.prompt_token_ids,
                asked.sampling,
                asked.deadline.to_wire(),
                asked.pool,
                "local",
                "",
                0,
                Path.ONLINE,
            )
        )

    def score(self, attempt_id: str) -> None:
        asked = rows([[1, 2, 3]], attempt_id=attempt_id, pool=Pool.BULK)
        never = Deadline.never().to_wire()
        self.send(wire.Score(attempt_id, "sum:1", asked.features, 1, never, Pool.BULK, "local", Path.ONLINE))

    def read(self) -> list[wire.Event]:
        """Every event that has come so far."""
        while self.socket.poll(0):
            message = msgspec.msgpack.decode(self.socket.recv(), type=wire.ToClient)
            self.told += message.events if isinstance(message, wire.Frame) else ()
        return self.told


@contextmanager
def mute(served: Served) -> Iterator[Mute]:
    with served.server.context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(served.server.endpoint)
        yield Mute(socket)


@asynccontextmanager
async def small_steps(*, lease_s: float = 30.0, drain_s: float = 30.0) -> AsyncIterator[tuple[EngineClient, Served]]:
    engine = tiny_engine(max_step_tokens=8)
    async with running(engine, lease_s=lease_s, drain_s=drain_s) as (client, served):
        yield client, served


def state_of(served: Served, attempt_id: str) -> str:
    sequence = served.server.attempts._sequences[attempt_id]
    if not sequence.has_started:
        return "waiting"
    return "decode" if sequence.is_decoding else "prefill"


async def brought_to(state: str, served: Served, client: Mute, attempt_id: str) -> None:
    gate = Gate(served, STATES[state])
    client.generate(request(range(60), max_tokens=100, attempt_id=attempt_id))
    await until(lambda: served.server.attempts.owner(attempt_id) is not None and gate.steps == 0)
    assert state_of(served, attempt_id) == state


@contextmanager
def leases_held(served: Served) -> Iterator[None]:
    """No lease runs out in here, however long the test is held up; none of this time counts."""
    leases = served.server._leases
    leases.lapsed = list  # type: ignore[method-assign]
    yield
    del leases.lapsed


@pytest.mark.parametrize("state", STATES)
async def test_a_client_that_hangs_loses_its_sequence_when_its_lease_is_over(state: str) -> None:
    async with small_steps(lease_s=0.3) as (client, served):
        with mute(served) as hung:
            with leases_held(served):
                await brought_to(state, served, hung, "lost")
            await until(lambda: len(served.server.attempts) == 0)
            await idle(served)
            await until(lambda: any(isinstance(event, wire.Failed) for event in hung.read()))
        last = hung.told[-1]
        assert isinstance(last, wire.Failed)
        assert (last.attempt_id, last.code) == ("lost", EngineUnavailable.code)
        assert "the lease ran out: nothing was heard of this client for 0.3 s" in last.message
        assert served.server.snapshot.aborts == {wire.AbortReason.LEASE: 1}
        assert served.facts[-1].outcome == "abort"
        assert client.available, "another client's lease goes on"


async def test_a_client_that_hangs_loses_its_scorer_rows_too() -> None:
    async with running(lease_s=0.3) as (_, served):
        served.server.scorers.run = list  # type: ignore[method-assign]
        with mute(served) as hung:
            with leases_held(served):
                hung.score("lost")
                await until(lambda: served.server.scorers.num_rows == 1)
            await until(lambda: served.server.scorers.num_rows == 0)
            await until(lambda: hung.read())
        assert served.server.snapshot.scoring.finished == {"abort": 1}
        assert served.server.snapshot.aborts == {wire.AbortReason.LEASE: 1}


async def test_a_client_that_waits_in_silence_keeps_its_lease() -> None:
    renewed: list[bytes] = []
    engine = tiny_engine(clock=lambda: len(renewed) * 0.2 / RENEWALS)  # time that passes only as it renews
    async with running(engine, lease_s=0.2) as (client, served):
        gate = Gate(served)
        renew = served.server._leases.renew

        def noted(client: bytes) -> None:
            renewed.append(client)
            renew(client)

        served.server._leases.renew = noted  # type: ignore[method-assign]
        stream = asyncio.create_task(collect(client, request(max_tokens=4)))
        await until(lambda: len(renewed) > 30)  # three leases and more
        gate.open()
        assert len(tokens(await stream)) == 4
        assert served.server.snapshot.aborts == {}


async def test_a_client_that_was_only_slow_is_told_and_works_on() -> None:
    async with running(lease_s=0.3) as (client, served):
        renewing = next(task for task in client._tasks if "_renew_lease" in repr(task))
        renewing.cancel()  # as a process that is stopped for a while
        gate = Gate(served, 3)
        stream = client.generate(request(max_tokens=50))
        with leases_held(served):
            got = [await anext(stream) for _ in range(3)]
        assert len(tokens(got)) == 3
        with pytest.raises(EngineUnavailable, match="the lease ran out"):
            await anext(stream)
        gate.open()
        assert len(tokens(await collect(client, request(max_tokens=5)))) == 5
        await idle(served)


@pytest.mark.parametrize("state", STATES)
async def test_a_client_that_vanishes_loses_its_sequence_in_every_state(state: str) -> None:
    async with small_steps() as (_, served):
        with mute(served) as gone:
            await brought_to(state, served, gone, "lost")
        await until(lambda: served.server.snapshot.aborts == {wire.AbortReason.VANISHED: 1})
        await idle(served)


# -- told to go


async def ended(served: Served) -> None:
    await until(lambda: not served.thread.is_alive())
    assert len(served.server.attempts) == 0
    assert served.engine.scheduler.blocks.num_free == served.engine.scheduler.blocks.total


async def test_a_draining_engine_finishes_its_streams_and_refuses_new_work() -> None:
    async with running() as (client, served):
        gate = Gate(served)
        streams = [asyncio.create_task(collect(client, request([n, 7], max_tokens=240))) for n in range(4)]
        await until(lambda: len(served.server.attempts) == 4)
        gate.steps = 2
        await until(lambda: gate.steps == 0)
        with mute(served) as stranger:
            served.server.drain()
            await until(lambda: client.snapshot is not None and client.snapshot.is_draining)
            assert not client.available
            with pytest.raises(EngineUnavailable, match="is draining"):
                await collect(client, request())
            stranger.generate(request(attempt_id="late"))
            stranger.score("late too")
            stranger.send(wire.LoadScorer("last", "new:1", "file", "good"))
            await until(lambda: len(stranger.read()) == 3)
            for event in stranger.told:
                assert isinstance(event, wire.Failed)
                assert event.code == EngineUnavailable.code
                assert "takes nothing new" in event.message
        gate.open()
        assert [len(tokens(deltas)) for deltas in await asyncio.gather(*streams)] == [240] * 4
        await ended(served)
        assert served.server.snapshot.counters[Pool.INTERACTIVE].refused == {"draining": 1}
        assert served.server.snapshot.scoring.refused == {"draining": 1}
        assert served.server.snapshot.aborts == {}


async def test_an_engine_with_nothing_to_finish_goes_at_once() -> None:
    async with running() as (_, served):
        served.server.drain()
        await ended(served)


async def test_what_does_not_finish_within_the_bound_ends_with_the_reason() -> None:
    async with running(drain_s=0.2) as (client, served):
        gate = Gate(served, 2)
        stream = asyncio.create_task(collect(client, request(max_tokens=200)))
        await until(lambda: gate.steps == 0)
        served.server.drain()
        with pytest.raises(EngineUnavailable, match=r"drained for 0\.2 s and stopped"):
            await stream
        await ended(served)
        assert served.server.snapshot.aborts == {wire.AbortReason.SHUTDOWN: 1}


async def test_a_second_word_does_not_wait_for_the_streams() -> None:
    async with running(drain_s=3600.0) as (client, served):
        gate = Gate(served, 2)
        stream = asyncio.create_task(collect(client, request(max_tokens=200)))
        await until(lambda: gate.steps == 0)
        served.server.drain()
        served.server.drain()
        with pytest.raises(EngineUnavailable, match="the engine was stopped"):
            await stream
        await ended(served)


async def test_aborts_in_every_state_leave_a_draining_engine_that_ends() -> None:
    """Streams abandoned before, during and after their first token, while others finish: nothing is left over."""
    async with running(tiny_engine(max_step_tokens=8)) as (client, served):

        async def abandon(number: int) -> None:
            stream = client.generate(request(range(1 + number % 50), max_tokens=60, pool=list(Pool)[number % 2]))
            for _ in range(number % 4):
                await anext(stream, None)
            await stream.aclose()

        await asyncio.gather(*(abandon(number) for number in range(40)))
        assert len(tokens(await collect(client, request(max_tokens=5)))) == 5
        gate = Gate(served)
        kept = asyncio.create_task(collect(client, request(max_tokens=30)))
        lost = asyncio.gather(*(abandon(number) for number in range(40)), return_exceptions=True)
        await until(lambda: served.engine.has_work)
        served.server.drain()
        gate.open()
        await lost
        assert len(tokens(await kept)) == 30
        await ended(served)


# -- what its snapshots know


@pytest.mark.parametrize("has_mail", [False, True])
def test_a_snapshot_claims_no_mail_that_came_after_the_engine_looked(*, has_mail: bool) -> None:
    class Post(Mailbox):
        """One message is sent as soon as the engine has looked."""

        def __init__(self) -> None:
            self.sent_ns, self.unread = 0, [(b"caller", wire.Renew())]

        def wait(self, timeout_ms: int) -> bool:
            self.sent_ns = time.monotonic_ns()
            return has_mail

        def receive(self) -> Iterator[tuple[bytes, wire.ToEngine]]:
            while self.unread:
                yield self.unread.pop()

        def flush(self, snapshot: wire.Snapshot) -> None: ...

        def lost(self) -> dict[bytes, wire.AbortReason]:
            return {}

    server, post = unserved(Watch()), Post()
    with server._meter.spend(Spent.OVERHEAD):
        server._turn(post)
    assert (server.snapshot.read_ns > post.sent_ns) is (not post.unread)


# -- deadlines


class Watch:
    """The engine's clock in the test's hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def unserved(watch: Watch) -> EngineServer:
    """A server whose loop does not run."""
    meter = ReplicaMeter("engine-0", "local", lambda fact: None)
    info = EngineInfo("tiny", CONFIG.max_positions, CONFIG.vocab_size, "float32", 0.1)
    return EngineServer(tiny_engine(clock=watch), ScorerHost(), info, "inproc://none", load_for_tests, meter)


@given(st.lists(st.floats(1e-6, 0.2), min_size=1, max_size=5))
def test_the_engine_waits_for_mail_to_less_than_a_millisecond_before_the_earliest_deadline(left_s: list[float]) -> None:
    watch = Watch()
    server = unserved(watch)
    for each in left_s:
        server.engine.add(request(deadline=Deadline(watch.now + each, watch)))
    patience_ms = server._patience_ms()
    assert patience_ms <= IDLE_POLL_MS
    if patience_ms < IDLE_POLL_MS:
        assert -1e-6 <= min(left_s) * 1e3 - patience_ms < 1 + 1e-6
    watch.now += 1.0
    assert server._patience_ms() == 0, "a deadline that has passed is not waited for"


def test_without_a_deadline_the_engine_waits_for_mail_alone() -> None:
    server = unserved(Watch())
    server.engine.add(request())
    assert server._patience_ms() == IDLE_POLL_MS


async def test_a_queued_request_expires_at_the_first_step_boundary_after_its_deadline() -> None:
    later_s = 0.0
    engine = tiny_engine(clock=lambda: time.monotonic() + later_s)
    async with running(engine) as (client, served):
        gate = Gate(served)
        seated = [asyncio.create_task(collect(client, request([n], max_tokens=30))) for n in range(7)]
        await until(lambda: len(served.server.attempts) == 7)
        gate.steps = 1
        await until(lambda: gate.steps == 0)
        assert served.engine.scheduler.load(Pool.INTERACTIVE).running == 7  # and bulk's floor: all seats
        with mute(served) as other:
            other.generate(request(deadline=Deadline.after(FAR_S), attempt_id="late"))
            await until(lambda: served.server.attempts.owner("late") is not None)
            later_s = FAR_S
            assert other.read() == []
            gate.steps = 1
            await until(lambda: other.read())
        (event,) = other.told
        assert isinstance(event, wire.Failed)
        assert (event.code, event.message) == ("deadline_exceeded", "the engine dropped the request at its deadline")
        assert served.facts[-1].outcome == FinishReason.DEADLINE
        gate.open()
        assert [len(tokens(deltas)) for deltas in await asyncio.gather(*seated)] == [30] * 7
