"""The worker on a broker that does as it is told: effects once under rebalance, crash, slow scoring and poison."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from core_engine.contracts import Path
from core_engine.errors import BrokerUnavailable
from core_engine.metrics import Metrics
from core_engine.settings import RedisSettings
from featurestore.keys import progress_key
from featurestore.online.connection import connect
from streaming.events import DeadLetter, PredictionMessage
from streaming.offsets import Partition
from tests.featurestore.rows import PROPERTY
from tests.featurestore.valkey import Valkey
from tests.featurestore.windows.oracle import at, window_view
from tests.streaming.fake_broker import LETTERS, OUTPUT, TOPIC, FakeBroker, FakeFlow, FakeTransport
from tests.streaming.working import event, make_worker, until, window_total, working

P, Q = Partition(TOPIC, 0), Partition(TOPIC, 1)
POISON = (b"not json", b'{"event_id": "x"}', event(5, origin=...), event(5, delay="five"), event(5, delay=5000.0))


def effects(broker: FakeBroker) -> Counter[bytes]:
    return Counter(broker.keys(OUTPUT))


async def test_an_event_is_scored_published_under_its_coordinates_and_in_its_window(client: Redis) -> None:
    broker, view, flow = FakeBroker(), window_view(), FakeFlow()
    broker.logs[P] += [(b"JFK", event(7, seconds=1)), (b"JFK", event(20, seconds=2))]
    transport = FakeTransport(broker)
    transport.assign([P])
    metrics = Metrics()
    async with working(make_worker(transport, client, view, flow, metrics=metrics)) as task:
        await until(lambda: len(broker.published[OUTPUT]) == 2)
    report = task.result()
    await transport.close()
    assert broker.committed == {P: 2}
    message = msgspec.json.decode(dict(broker.published[OUTPUT])[b"departures/0/1/arrival"], type=PredictionMessage)
    assert (message.event_id, message.value, message.source.offset, message.rung) == ("e20", 20.0, 1, "model")
    assert await window_total(client, view, at(10)) == [13.5, 0.5, 2, 27.0]
    assert (report.n, report.batch_sizes, report.rungs, report.windows) == (2, {1: 2}, {"model": 2}, {"applied": 2})
    assert report.p50_ms is not None
    assert report.p99_ms is not None
    assert report.p50_ms <= report.p99_ms == report.max_ms
    assert metrics.registry.get_sample_value("headrace_stream_events_total", {"topic": TOPIC, "outcome": "scored"}) == 2


async def test_usage_says_stream_and_groups_attempts_by_the_effect(client: Redis) -> None:
    broker, flow = FakeBroker(), FakeFlow()
    broker.logs[P].append((b"k", event(7)))
    transport = FakeTransport(broker)
    transport.assign([P])
    async with working(make_worker(transport, client, window_view(), flow)):
        await until(lambda: broker.published[OUTPUT])
        transport.lose([P])
        transport.assign([P])
        await until(lambda: len(broker.published[OUTPUT]) == 2)
    first, second = flow.requests
    assert first.path is Path.STREAM
    assert first.delivery_key == second.delivery_key == "departures/0/0/arrival"
    assert first.attempt_id != second.attempt_id
    assert set(first.inputs) == {"origin", "delay"}, "what the predictor does not declare stays in the event"
    assert effects(broker) == {b"departures/0/0/arrival": 2}, "one key"


@pytest.mark.parametrize("poison", POISON, ids=range(len(POISON)))
async def test_a_bad_event_leaves_a_letter_and_the_next_is_scored(client: Redis, poison: bytes) -> None:
    broker, view = FakeBroker(), window_view()
    broker.logs[P] += [(b"k", event(1)), (b"k", poison), (b"k", event(2))]
    transport = FakeTransport(broker)
    transport.assign([P])
    async with working(make_worker(transport, client, view, FakeFlow())) as task:
        await until(lambda: len(broker.published[OUTPUT]) == 2)
    await transport.close()
    [(key, letter)] = broker.published[LETTERS]
    held = msgspec.json.decode(letter, type=DeadLetter)
    assert key == b"departures/0/1"
    assert (held.source.partition, held.source.offset, held.value, held.key) == (0, 1, poison, b"k")
    assert held.reason in ("malformed", "invalid")
    assert held.detail
    assert broker.committed == {P: 3}
    assert await window_total(client, view, at(10)) == [1.5, 0.0, 2, 3.0], "it is in no window"
    assert sum(task.result().dead_letters.values()) == 1


async def test_a_fault_of_our_own_buries_the_event_and_the_worker_lives(client: Redis) -> None:
    broker = FakeBroker()
    broker.logs[P] += [(b"k", event(number)) for number in (1, 2, 3)]
    transport = FakeTransport(broker)
    transport.assign([P])
    async with working(make_worker(transport, client, window_view(), FakeFlow(breaks=frozenset({2.0})))):
        await until(lambda: len(broker.published[OUTPUT]) == 2 and broker.published[LETTERS])
    await transport.close()
    assert msgspec.json.decode(broker.published[LETTERS][0][1], type=DeadLetter).reason == "failed"
    assert broker.committed == {P: 3}


async def test_a_late_event_is_scored_and_put_aside(client: Redis) -> None:
    broker, view = FakeBroker(), window_view()
    broker.logs[P] += [(b"k", event(1, seconds=100)), (b"k", event(2, seconds=65)), (b"k", event(4, seconds=80))]
    transport = FakeTransport(broker)
    transport.assign([P])
    async with working(make_worker(transport, client, view, FakeFlow())) as task:
        await until(lambda: len(broker.published[OUTPUT]) == 3)
    letters = [msgspec.json.decode(letter, type=DeadLetter) for _, letter in broker.published[LETTERS]]
    assert [(letter.reason, letter.source.offset) for letter in letters] == [("late", 1)]
    assert task.result().windows == {"applied": 2, "late": 1}
    assert await window_total(client, view, at(100)) == [2.5, 0.0, 2, 5.0]


async def test_an_output_that_is_not_taken_stops_the_worker_and_nothing_is_committed_past_it(client: Redis) -> None:
    broker = FakeBroker()
    broker.logs[P] += [(b"k", event(1)), (b"k", event(2))]
    broker.refused.add(OUTPUT)
    transport = FakeTransport(broker)
    transport.assign([P])
    worker = make_worker(transport, client, window_view(), FakeFlow())
    with pytest.raises(BrokerUnavailable, match="topic predictions took no record"):
        await worker.run(asyncio.Event())
    await transport.close()
    assert broker.committed.get(P, 0) == 0


async def test_a_letter_that_is_not_taken_stops_it_too(client: Redis) -> None:
    broker = FakeBroker()
    broker.logs[P] += [(b"k", event(1)), (b"k", b"poison"), (b"k", event(2))]
    broker.refused.add(LETTERS)
    transport = FakeTransport(broker, chunk=1)
    transport.assign([P])
    with pytest.raises(BrokerUnavailable, match=LETTERS):
        await make_worker(transport, client, window_view(), FakeFlow()).run(asyncio.Event())
    await transport.close()
    assert broker.committed.get(P, 0) <= 1


async def test_events_of_one_key_are_scored_in_order_and_keys_beside_each_other(client: Redis) -> None:
    broker, flow = FakeBroker(), FakeFlow()
    broker.logs[P] += [(key, event(number)) for number, key in enumerate((b"a", b"a", b"a", b"b"))]
    flow.held = asyncio.Event()
    transport = FakeTransport(broker, chunk=4)
    transport.assign([P])
    async with working(make_worker(transport, client, window_view(), flow)):
        await until(lambda: len(flow.requests) == 2)
        assert {request.inputs["delay"] for request in flow.requests} == {0.0, 3.0}
        flow.held.set()
    assert [r.inputs["delay"] for r in flow.requests if r.inputs["delay"] != 3.0] == [0.0, 1.0, 2.0]


async def test_work_of_a_partition_that_was_taken_away_is_not_begun(client: Redis) -> None:
    broker, flow = FakeBroker(), FakeFlow()
    broker.logs[P] += [(b"k", event(number)) for number in range(3)]
    flow.held = asyncio.Event()
    transport = FakeTransport(broker)
    transport.assign([P])
    async with working(make_worker(transport, client, window_view(), flow)) as task:
        await until(lambda: flow.requests)
        transport.revoke([P])
        flow.held.set()
        await until(lambda: broker.published[OUTPUT])
    assert len(flow.requests) == 1, "the one that ran was let run"
    assert task.result().fenced == 2
    assert broker.committed.get(P, 0) == 0


async def test_nothing_is_lost_while_the_store_is_away(own_server: Valkey) -> None:
    client = connect(RedisSettings(url=own_server.url))
    broker, view = FakeBroker(), window_view()
    transport = FakeTransport(broker)
    transport.assign([P])
    async with working(make_worker(transport, client, view, FakeFlow())):
        own_server.kill()
        broker.logs[P] += [(b"k", event(number)) for number in (1, 2)]
        transport.wake()
        for _ in range(50):
            await asyncio.sleep(0)
        assert broker.published[OUTPUT] == []
        own_server.start()
        await until(lambda: len(broker.published[OUTPUT]) == 2)
    assert await window_total(client, view, at(10)) == [1.5, 0.0, 2, 3.0]
    await client.aclose()


async def test_a_stop_while_the_store_is_away_commits_nothing(own_server: Valkey) -> None:
    client = connect(RedisSettings(url=own_server.url))
    own_server.kill()
    broker = FakeBroker()
    broker.logs[P].append((b"k", event(1)))
    transport = FakeTransport(broker)
    transport.assign([P])
    async with working(make_worker(transport, client, window_view(), FakeFlow())):
        for _ in range(20):
            await asyncio.sleep(0)
    await transport.close()
    assert broker.committed.get(P, 0) == 0
    await client.aclose()


async def test_it_stops_by_itself_when_nothing_comes(client: Redis) -> None:
    broker = FakeBroker()
    broker.logs[P] += [(b"k", event(number)) for number in range(5)]
    transport = FakeTransport(broker)
    transport.assign([P])
    report = await make_worker(transport, client, window_view(), FakeFlow()).run(asyncio.Event(), 0.05)
    assert report.n == 5


async def test_a_read_partition_advances_the_window_to_its_instant(client: Redis) -> None:
    broker, view = FakeBroker(), window_view()
    broker.logs[P].append((b"k", event(8, seconds=1)))
    transport = FakeTransport(broker)
    transport.at = at(25)
    transport.assign([P, Q])
    async with working(make_worker(transport, client, view, FakeFlow())):
        await until(lambda: len(transport._told) == 2)
    for source in ("departures/0", "departures/1"):
        assert int(await client.hget(progress_key(view), source) or 0) == round(at(25).timestamp() * 1e6)


GOOD = st.integers(0, 99).map(lambda number: event(number, seconds=number % 9 + 0.5))
LOG = st.lists(st.one_of(GOOD, GOOD, GOOD, st.sampled_from(POISON)), max_size=12)
TROUBLE = st.lists(
    st.tuples(st.sampled_from(["rebalance", "lose", "crash", "commit", "share"]), st.integers(1, 60)), max_size=8
)


@PROPERTY
@given(logs=st.tuples(LOG, LOG), trouble=TROUBLE, chunk=st.integers(1, 5), turns=st.integers(0, 6))
async def test_effects_once_under_any_trouble(
    redis_url: str, logs: tuple[list[bytes], list[bytes]], trouble: list[tuple[str, int]], chunk: int, turns: int
) -> None:
    """Whatever happens in whatever order, in the end every good event has one effect and every bad one its letter."""
    client = connect(RedisSettings(url=redis_url))
    broker, view, flow = FakeBroker(), window_view(), FakeFlow(turns)
    for partition, log in zip((P, Q), logs, strict=True):
        broker.logs[partition] = [(b"k%d" % (i % 3), value) for i, value in enumerate(log)]
    try:
        members = [await _member(broker, client, view, flow, chunk)]
        members[0][0].assign([P, Q])
        for what, num_turns in trouble:
            for _ in range(num_turns):
                await asyncio.sleep(0)
            await _trouble(what, members, broker, client, view, flow, chunk)
        await until(lambda: _is_done(broker, logs))
        await _stop(members)
    finally:
        await client.aclose()
    good = {(p, i): v for p, log in zip((P, Q), logs, strict=True) for i, v in enumerate(log) if v not in POISON}
    assert set(effects(broker)) == {f"{p.name}/{i}/arrival".encode() for p, i in good}
    bad = {
        f"{p.name}/{i}".encode() for p, log in zip((P, Q), logs, strict=True) for i, v in enumerate(log) if v in POISON
    }
    assert set(broker.keys(LETTERS)) == bad
    assert {p: n for p, n in broker.committed.items() if n} == {
        p: len(log) for p, log in zip((P, Q), logs, strict=True) if log
    }
    for partition in (P, Q):
        offsets = [offset for p, offset in broker.commits if p == partition]
        assert offsets == sorted(offsets), "a commit never goes back"
    client = connect(RedisSettings(url=redis_url))
    try:
        total = await window_total(client, view, at(10))
    finally:
        await client.aclose()
    delays = [msgspec.json.decode(value)["delay"] for value in good.values()]
    counted = None if total is None else total[2:]
    assert counted == ([len(delays), sum(delays)] if good else None), "each once in the window"


Member = tuple[FakeTransport, asyncio.Task[object], asyncio.Event]


async def _member(broker: FakeBroker, client: Redis, view: object, flow: FakeFlow, chunk: int) -> Member:
    transport, stop = FakeTransport(broker, chunk), asyncio.Event()
    worker = make_worker(transport, client, view, flow, drain_s=0.0)  # type: ignore[arg-type]
    return transport, asyncio.create_task(worker.run(stop)), stop


async def _trouble(
    what: str, members: list[Member], broker: FakeBroker, client: Redis, view: object, flow: FakeFlow, chunk: int
) -> None:
    """One of the things that happen to a group. Its last member always ends up with all that nobody else has."""
    transport, task, _ = members[-1]
    match what:
        case "commit":
            transport.commit()
        case "rebalance":
            transport.revoke([P, Q])
            transport.assign([P, Q])
        case "lose":
            transport.lose([P, Q])
            transport.assign([P, Q])
        case "crash":
            transport.dead = True
            task.cancel()
            members.append(await _member(broker, client, view, flow, chunk))
            members[-1][0].assign([P, Q])
        case "share":  # another member takes over; the old one goes on with what it has in hand
            transport.revoke([P, Q])
            members.append(await _member(broker, client, view, flow, chunk))
            members[-1][0].assign([P, Q])


def _is_done(broker: FakeBroker, logs: tuple[list[bytes], list[bytes]]) -> bool:
    wanted = sum(len(log) for log in logs)
    return len(set(broker.keys(OUTPUT))) + len(set(broker.keys(LETTERS))) == wanted


async def _stop(members: list[Member]) -> None:
    """The last one has everything in hand: let it finish, then all leave."""
    transport, _, _ = members[-1]
    await until(lambda: transport._offsets.num_outstanding == 0 and not _unread(transport))
    for transport, task, stop in members:
        stop.set()
        transport.wake()
        await asyncio.gather(task, return_exceptions=True)
        await transport.close()


def _unread(transport: FakeTransport) -> bool:
    return any(position < len(transport._broker.logs[p]) for p, position in transport._position.items())
