"""The engine's series on a door: the last snapshot's values, and counts that never fall."""

from __future__ import annotations

import pytest

from core_engine.contracts import Pool
from core_engine.llm.messages import PROTOCOL, AbortReason, Counters, PoolLoad, Snapshot, Welcome
from online.engine_metrics import COUNTS
from tests.online.conftest import DoorUnderTest


def told(door: DoorUnderTest, snapshot: Snapshot, incarnation: str = "first") -> None:
    """What the client notes when a frame comes."""
    door.engine.snapshot = snapshot
    door.engine.totals.see(incarnation, snapshot)


def counted(**counts: object) -> Snapshot:
    return Snapshot(counters={Pool.INTERACTIVE: Counters(**counts)})  # type: ignore[arg-type]


async def test_metrics_are_prometheus_text_with_the_engine_s_last_snapshot(door: DoorUnderTest) -> None:
    load = PoolLoad(waiting=2, waiting_tokens=30, running=3)
    told(door, Snapshot(interactive=load, free_blocks=25, total_blocks=100, step_s=0.25, predicted_step_s=0.125))
    reply = await door.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    lines = reply.text.splitlines()
    for line in (
        "headrace_engine_up 1.0",
        "headrace_engine_draining 0.0",
        'headrace_num_requests_waiting{pool="interactive"} 2.0',
        'headrace_num_requests_running{pool="interactive"} 3.0',
        'headrace_num_requests_running{pool="bulk"} 0.0',
        'headrace_num_tokens_waiting{pool="interactive"} 30.0',
        "headrace_kv_cache_usage_perc 0.75",
        "headrace_engine_last_step_seconds 0.25",
        "headrace_engine_last_predicted_step_seconds 0.125",
    ):
        assert line in lines


async def test_every_count_of_the_engine_has_its_series(door: DoorUnderTest) -> None:
    numbers = {field: number for number, field in enumerate(COUNTS, start=1)}
    told(door, counted(**numbers))
    for field, (name, _) in COUNTS.items():
        assert door.sample(f"headrace_{name}_total", pool="interactive") == numbers[field], field
        assert door.sample(f"headrace_{name}_total", pool="bulk") == 0
    assert door.sample("headrace_prefix_cache_queries_total", pool="interactive") == numbers["prompt_tokens"]
    rest = set(Counters.__struct_fields__) - set(COUNTS)
    assert rest == {"finished", "refused"}, "a count that no series shows"


async def test_ends_refusals_and_aborts_come_by_reason(door: DoorUnderTest) -> None:
    scoring = Counters(admitted=5, finished={"scored": 4}, refused={"engine_refused": 1})
    counters = {Pool.BULK: Counters(finished={"length": 3, "abort": 2}, refused={"queue_full": 7})}
    told(door, Snapshot(counters=counters, scoring=scoring, aborts={AbortReason.LEASE: 6}))
    assert door.sample("headrace_request_success_total", pool="bulk", finished_reason="length") == 3
    assert door.sample("headrace_request_success_total", pool="bulk", finished_reason="abort") == 2
    assert door.sample("headrace_requests_refused_total", pool="bulk", reason="queue_full") == 7
    assert door.sample("headrace_scoring_requests_admitted_total") == 5
    assert door.sample("headrace_scoring_requests_finished_total", outcome="scored") == 4
    assert door.sample("headrace_scoring_requests_refused_total", reason="engine_refused") == 1
    assert door.sample("headrace_engine_aborts_total", reason="lease") == 6


async def test_what_the_door_s_own_client_refused_is_told_apart(door: DoorUnderTest) -> None:
    for _ in range(3):
        door.services.metrics.refused(Pool.BULK)
    assert door.sample("headrace_admission_refused_total", pool="bulk") == 3
    assert door.sample("headrace_admission_refused_total", pool="interactive") == 0


async def test_counts_go_on_over_a_restart_of_the_engine(door: DoorUnderTest) -> None:
    told(door, counted(generation_tokens=100, finished={"length": 3}))
    told(door, counted(generation_tokens=0), incarnation="second")
    assert door.sample("headrace_generation_tokens_total", pool="interactive") == 100
    told(door, counted(generation_tokens=7, finished={"length": 1, "stop": 1}), incarnation="second")
    assert door.sample("headrace_generation_tokens_total", pool="interactive") == 107
    assert door.sample("headrace_request_success_total", pool="interactive", finished_reason="length") == 4
    assert door.sample("headrace_request_success_total", pool="interactive", finished_reason="stop") == 1


async def test_a_lost_engine_is_down_and_its_last_values_stay(door: DoorUnderTest) -> None:
    told(door, Snapshot(interactive=PoolLoad(running=3)))
    door.engine.lose()
    assert door.sample("headrace_engine_up") == 0
    assert door.sample("headrace_num_requests_running", pool="interactive") == 3
    labels = {"replica": "", "incarnation": "first", "model_name": "tiny", "dtype": "bfloat16"}
    assert door.sample("headrace_engine_info", **labels) == 1


async def test_restarts_are_told_with_what_caused_them(door: DoorUnderTest) -> None:
    restarts = {"silent": 2, "exit": 0}
    welcome = Welcome(PROTOCOL, "fourth", "tiny", 512, "bfloat16", (), replica="engine-0", restarts=restarts)
    door.engine.welcome = door.engine.last_welcome = welcome
    assert door.sample("headrace_engine_restarts_total", replica="engine-0", reason="silent") == 2
    assert door.sample("headrace_engine_restarts_total", replica="engine-0", reason="exit") == 0


@pytest.mark.parametrize("draining", [True, False])
async def test_a_draining_engine_says_so(door: DoorUnderTest, draining: bool) -> None:
    told(door, Snapshot(is_draining=draining))
    assert door.sample("headrace_engine_draining") == draining


async def test_before_any_engine_was_heard_there_is_only_its_absence(door: DoorUnderTest) -> None:
    door.engine.lose()
    door.engine.snapshot = door.engine.last_welcome = None
    text = (await door.http.get("/metrics")).text
    assert "headrace_engine_up 0.0" in text
    assert "headrace_num_requests_running" not in text
    assert "headrace_engine_info" not in text
