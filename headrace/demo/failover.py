"""Kills the engine under a client that goes on asking: the student must answer, with its reason, until it is back."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import httpx

from core_engine.pools.supervisor import Supervisor, is_ready_again
from headrace.demo.load import DemoFailed, Reply, ask, reasons
from headrace.demo.summary import Failover, counted
from headrace.flights import Request

PACE_S = 0.02  # between two questions: the restarting engine needs the cores too
LIMIT_S = 60.0


async def kill_engine(supervisor: Supervisor, client: httpx.AsyncClient, flight: Request) -> Failover:
    """SIGKILL the engine and ask until the model rung answers again.

    Raises:
        DemoFailed: an answer that is not 200, one from below the student, or no model rung within `LIMIT_S`.
        ChildFailed: the supervisor gave the engine up.
    """
    before = supervisor.status("engine")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    killed = time.monotonic()
    degraded: list[Reply] = []
    first_degraded_s = 0.0
    while (waited_s := time.monotonic() - killed) < LIMIT_S:
        reply = await ask(client, flight)
        if reply.rung == "model" and degraded:
            break
        if reply.rung != "model":
            first_degraded_s = first_degraded_s or time.monotonic() - killed
            degraded.append(reply)
        await asyncio.sleep(PACE_S)
    else:
        raise DemoFailed(f"no answer from the model rung {waited_s:.0f} s after the engine was killed")
    model_again_s = time.monotonic() - killed
    after = await supervisor.until("engine", is_ready_again(before.restarts))
    check_student(degraded)
    return Failover(
        n=len(degraded),
        rungs=counted(reply.rung for reply in degraded),
        reasons=reasons(degraded),
        first_degraded_ms=first_degraded_s * 1e3,
        model_again_s=model_again_s,
        restarts=after.restarts - before.restarts,
        why=after.last_reason or "",
    )


def check_student(degraded: list[Reply]) -> None:
    """Raises `DemoFailed` unless every reply without the engine came from the student and says why."""
    wrong = [reply for reply in degraded if reply.rung != "student" or reply.reason is None]
    if wrong:
        raise DemoFailed(f"without the engine, {len(wrong)} of {len(degraded)} replies were like {wrong[0]}")
