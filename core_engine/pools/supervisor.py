"""Keeps child processes running: starts them in order, restarts what dies or falls silent, stops all in reverse.

Called by composition roots, from the thread that lives as long as the children (see `lifeline`). It knows neither what
the children are nor what they say: a spec's `ready` and `pulse` tell it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from core_engine.pools.child import ChildSpec
from core_engine.pools.replica import ChildState, ChildStatus, Replica, RestartPolicy


class Supervisor:
    """Children by name, each with a log file `<name>.log` in `log_dir`. Leaving the context stops them all."""

    def __init__(self, log_dir: Path, policy: RestartPolicy | None = None) -> None:
        self._log_dir = log_dir
        self._policy = policy or RestartPolicy()
        self._replicas: dict[str, Replica] = {}
        self._change = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, spec: ChildSpec) -> None:
        """Start a child and keep it running; returns when it is ready.

        Raises:
            ChildFailed: it never got there. Children started before it go on: leave the context, or call `stop`.
        """
        assert spec.name not in self._replicas, f"a child named {spec.name} exists"
        self._log_dir.mkdir(parents=True, exist_ok=True)
        replica = self._replicas[spec.name] = Replica(spec, self._log_dir, self._policy, self._tell)
        await replica.start()

    async def stop(self) -> None:
        """Stop all children, the last started first; returns when every one is reaped."""
        for replica in reversed(self._replicas.values()):
            await replica.stop()

    @property
    def statuses(self) -> tuple[ChildStatus, ...]:
        return tuple(replica.status for replica in self._replicas.values())

    @property
    def pids(self) -> tuple[int, ...]:
        """Of every run of every child so far, dead ones included."""
        return tuple(pid for replica in self._replicas.values() for pid in replica.pids)

    def status(self, name: str) -> ChildStatus:
        return self._replicas[name].status

    async def until(self, name: str, reached: Callable[[ChildStatus], bool]) -> ChildStatus:
        """Wait for a status of a child.

        Raises:
            ChildFailed: the child was given up first.
        """
        replica = self._replicas[name]
        while not reached(replica.status):
            if replica.failure is not None:
                raise replica.failure
            await self._change.wait()
        return replica.status

    async def until_failed(self) -> None:
        """Wait until some child is given up, and raise its `ChildFailed`."""
        while not any(replica.failure for replica in self._replicas.values()):
            await self._change.wait()
        raise next(replica.failure for replica in self._replicas.values() if replica.failure)

    def _tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def is_ready_again(restarts: int) -> Callable[[ChildStatus], bool]:
    """For `until`: ready, after more restarts than `restarts`."""
    return lambda status: status.state is ChildState.READY and status.restarts > restarts
