"""Reading features online: ours, a bare pipelined read of the same bytes, and Feast, all on one server, in one run.

Two requests: one entity by 10 views of 25 features, 100 entities by 5 views of 50. Ours ends with values, states and
ages. Bare is the Redis library's own pipeline and nothing around it: the same hashes left undecoded (`HMGET`), and one
msgpack blob per row decoded to numbers (`GET`); the headline compares with whichever of the two is faster. Feast ends
with plain values. The client is one process, one request after the other; ours and the bare reads take turns.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import uvloop
from redis.asyncio import Redis

from benchmarks.comparison.installation import PeerFailed
from benchmarks.features import feast_peer
from benchmarks.features.valkey_server import HOST, valkey
from benchmarks.report import Row, options, publish
from core_engine.contracts import Deadline
from core_engine.settings import RedisSettings
from featurestore.definitions import FeatureType, FeatureView, Field, ParquetSource, StoredRow
from featurestore.keys import row_key
from featurestore.online.connection import connect
from featurestore.online.newest_wins import FIELDS
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from headrace.demo.summary import quantile

ENTITY: Final = "entity"
WARM_UP: Final = 10
DAY_S: Final = 86_400.0

Ask = Callable[[Sequence[str]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Workload:
    """A request of `entities` by `views` of `features`, made `calls` times."""

    name: str
    entities: int
    views: int
    features: int
    calls: int

    @property
    def rows(self) -> int:
        return self.entities * self.views

    def declared(self) -> list[FeatureView]:
        schema = tuple(Field(name=f"f{i}", type=FeatureType.FLOAT64) for i in range(self.features))
        return [
            FeatureView(
                name=f"{self.name}_{i}",
                version=1,
                entity=ENTITY,
                schema=schema,
                source=ParquetSource(path="none"),
                ttl_s=DAY_S,
                owner="benchmarks",
            )
            for i in range(self.views)
        ]


def measure(quick: bool) -> tuple[list[Row], dict[str, float]]:
    """The rows of the table and this part's share of the headline; without Feast where it is not installed."""
    calls = (300, 60) if quick else (5_000, 500)
    gc.collect()
    gc.freeze()  # or the modules of this process, not the reads, make the p99: one look at them all takes 0.1 s
    workloads = [Workload("one", 1, 10, 25, calls[0]), Workload("many", 100, 5, 50, calls[1])]
    stored = 200 if quick else 1_000
    with valkey() as port:
        ms = uvloop.run(ours_and_bare(port, workloads, stored))
        version, feast_ms = _feast(port, workloads, stored, 5 if quick else 10)
    rows = [_row(each, way, taken) for each in workloads for way, taken in ms[each.name].items()]
    rows += [_row(each, version, feast_ms[each.name]) for each in workloads if each.name in feast_ms]
    rows.sort(key=lambda row: (row["request"], row["p50 ms"]))
    return rows, headline(ms, feast_ms)


async def ours_and_bare(port: int, workloads: Sequence[Workload], stored: int) -> dict[str, dict[str, list[float]]]:
    client: Any = connect(RedisSettings(url=f"redis://{HOST}:{port}/0"))
    keys, rng = [f"k{i}" for i in range(stored)], random.Random(0)
    ms: dict[str, dict[str, list[float]]] = {}
    for workload in workloads:
        views = workload.declared()
        store = OnlineStore(client, views, DAY_S)
        await fill(client, store, views, keys, rng)
        asks = bare(client, views) | {"ours": ours(OnlineFeatureReader(store, views), views)}
        ms[workload.name] = {name: [] for name in asks}
        for call in range(WARM_UP + workload.calls):
            for name, ask in asks.items():
                taken_ms = await _timed(ask, rng.sample(keys, workload.entities))
                if call >= WARM_UP:
                    ms[workload.name][name].append(taken_ms)
    await client.aclose()
    return ms


async def fill(
    client: Redis, store: OnlineStore, views: Sequence[FeatureView], keys: Sequence[str], rng: random.Random
) -> None:
    """The same values as our rows and as msgpack blobs."""
    now, encode = datetime.now(UTC), msgspec.msgpack.encode
    for view in views:
        values = {key: {field.name: rng.random() for field in view.schema} for key in keys}
        rows = (StoredRow(key=key, event_time=now, created_time=now, values=each) for key, each in values.items())
        await store.write(view, rows)
        await client.mset({_blob_key(view, key): encode(list(each.values())) for key, each in values.items()})


def ours(reader: OnlineFeatureReader, views: Sequence[FeatureView]) -> Ask:
    refs = [f"{view.name}.{field.name}" for view in views for field in view.schema]

    async def ask(keys: Sequence[str]) -> object:
        deadline = Deadline.after(10.0)
        if len(keys) == 1:
            return await reader.read(refs, {ENTITY: keys[0]}, deadline)
        return await reader.read_many(refs, [{ENTITY: key} for key in keys], deadline)

    return ask


def bare(client: Redis, views: Sequence[FeatureView]) -> dict[str, Ask]:
    decode = msgspec.msgpack.Decoder(list[float]).decode

    async def hashes(keys: Sequence[str]) -> object:
        pipeline = client.pipeline(transaction=False)
        for view in views:
            for key in keys:
                pipeline.hmget(row_key(view, key), FIELDS[0], FIELDS[2])
        return await pipeline.execute()

    async def blobs(keys: Sequence[str]) -> object:
        pipeline = client.pipeline(transaction=False)
        for view in views:
            for key in keys:
                pipeline.get(_blob_key(view, key))
        return [decode(blob) for blob in await pipeline.execute()]

    return {"bare HMGET, undecoded": hashes, "bare GET of msgpack": blobs}


def _blob_key(view: FeatureView, key: str) -> str:
    return f"blob:{view.name}:{key}"


async def _timed(ask: Ask, keys: Sequence[str]) -> float:
    start = time.perf_counter()
    await ask(keys)
    return (time.perf_counter() - start) * 1e3


def _feast(
    port: int, workloads: Sequence[Workload], stored: int, fraction: int
) -> tuple[str, Mapping[str, list[float]]]:
    """Its version, and milliseconds by workload; it is asked a part of the calls, because each takes so much longer."""
    absent = feast_peer.why_absent()
    if absent:
        print(f"note: {absent}")
        return "", {}
    settings = {
        "port": port,
        "stored": stored,
        "workloads": [msgspec.to_builtins(each) | {"calls": each.calls // fraction} for each in workloads],
    }
    try:
        reply = feast_peer.asked("run_feast_online.py", settings)
    except PeerFailed as error:
        print(f"note: Feast: {error}")
        return "", {}
    return f"Feast {reply['version']}", reply["ms"]


def _row(workload: Workload, way: str, ms: Sequence[float]) -> Row:
    return {
        "request": f"{workload.entities} x {workload.views} x {workload.features}",
        "way": way,
        "calls": len(ms),
        "p50 ms": quantile(ms, 0.5),
        "p99 ms": quantile(ms, 0.99),
        "rows/s": workload.rows * len(ms) / sum(ms) * 1e3,
    }


def headline(
    ms: Mapping[str, Mapping[str, Sequence[float]]], feast_ms: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    p99 = {name: {way: quantile(taken, 0.99) for way, taken in ways.items()} for name, ways in ms.items()}
    bare = {name: min(value for way, value in ways.items() if way != "ours") for name, ways in p99.items()}
    headline = {
        "read1_p99_over_bare_ms": p99["one"]["ours"] - bare["one"],
        "read100_p99_over_bare": p99["many"]["ours"] / bare["many"],
    }
    for name, title in (("one", "feast_p99_ratio_1"), ("many", "feast_p99_ratio_100")):
        if name in feast_ms:
            headline[title] = quantile(feast_ms[name], 0.99) / p99[name]["ours"]
    return headline


def main() -> None:
    args = options(__doc__ or "")
    rows, headline = measure(args.quick)
    publish("Features read online, one client, loopback", rows, headline, args.json)


if __name__ == "__main__":
    main()
