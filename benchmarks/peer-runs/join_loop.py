"""The loop of a process that measures one way to join features to events as of their instants.

Started with its settings as one JSON argument: `join` (which way), `folder`, `views` by name with their features,
`history` (which file of each), `ttl_s`, `num_events`, `repeats`, and `result`, the file that its answer is written to.
The last line that it prints tells the seconds of every repetition, the peak of the process's memory, how many events
were lost, and the version.
"""

from __future__ import annotations

import abc
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

WARM_UP_EVENTS = 1_000


class Join(abc.ABC):
    """Its spine is read before the clock starts, histories are read by the join."""

    version: str
    num_lost = 0

    def __init__(self, settings: dict[str, Any]) -> None:
        self.folder = Path(settings["folder"])
        self.views: Mapping[str, list[str]] = settings["views"]
        self.history = settings["history"]
        self.ttl_s = settings["ttl_s"]
        self.spine = pq.read_table(self.folder / "events.parquet").slice(0, settings["num_events"]).combine_chunks()

    def path(self, view: str) -> str:
        return str(self.folder / f"{view}_{self.history}.parquet")

    @property
    def columns(self) -> list[tuple[str, str]]:
        """View and feature of every column of the answer, in order."""
        return [(view, feature) for view, features in self.views.items() for feature in features]

    @abc.abstractmethod
    def run(self, num_events: int) -> Any:
        """The features of the first `num_events` events, as this way gives them."""

    @abc.abstractmethod
    def table(self, joined: Any) -> pa.Table:
        """What `run` gave as a row for each event, in their order, with one column for each of `columns`.

        An event that was lost is a row of nulls, counted in `num_lost`.
        """


def serve(joins: Mapping[str, type[Join]]) -> None:
    settings = json.loads(sys.argv[1])
    join = joins[settings["join"]](settings)
    join.run(WARM_UP_EVENTS)  # libraries are loaded, pools of threads are up
    seconds = []
    for _ in range(settings["repeats"]):
        joined = None
        start = time.perf_counter()
        joined = join.run(settings["num_events"])
        seconds.append(time.perf_counter() - start)
    reply = {"seconds": seconds, "peak_rss_bytes": peak_rss_bytes(), "version": join.version}
    pq.write_table(join.table(joined), settings["result"])
    print(json.dumps(reply | {"num_lost": join.num_lost}), flush=True)


def peak_rss_bytes() -> int:
    """Of this process since it began; `ru_maxrss` would count the process that it was forked from."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
