"""How fast do events get into windows? The real store against a real Valkey of its own, both of their CPU time counted.

From the fields of an event, as the stream door has them, to the outcome of each, every one new and in time. Events per
CPU second are of client and server together, which are two processes; events per second are what one worker gets that
waits for each delivery. `python -m benchmarks.features.windows` runs this part alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import uvloop
from redis.asyncio import Redis

from benchmarks.features.valkey_server import HOST, valkey
from benchmarks.report import Row, options, publish
from core_engine.settings import RedisSettings
from featurestore.definitions import (
    Aggregate,
    AggregateKind,
    FeatureType,
    FeatureView,
    Field,
    ParquetSource,
    Window,
)
from featurestore.online.connection import connect
from featurestore.windows.batches import WindowEvent
from featurestore.windows.plan import WindowPlan
from featurestore.windows.state import Applied
from featurestore.windows.store import WindowStore

TILE_S, NUM_TILES, GRACE_S, TTL_S = 900, 8, 1800, 3600.0  # as the flights' window
START = datetime.fromisoformat("2026-11-30T00:00:00+00:00")
SPAN = timedelta(hours=6)
SIZES = ((1, 1_000), (1_000, 1_000), (10_000, 1_000), (1_000, 100))  # entities, events of one delivery

FLIGHTS = (
    Aggregate(feature="mean_delay", kind=AggregateKind.MEAN, of="delay"),
    Aggregate(feature="late_share", kind=AggregateKind.MEAN, of="delay", at_least=15),
    Aggregate(feature="flights", kind=AggregateKind.COUNT),
)
EXACT = (
    *FLIGHTS,
    Aggregate(feature="total", kind=AggregateKind.SUM, of="delay"),
    Aggregate(feature="least", kind=AggregateKind.MIN, of="delay"),
    Aggregate(feature="most", kind=AggregateKind.MAX, of="delay"),
    Aggregate(feature="spread", kind=AggregateKind.STDDEV, of="delay"),
    Aggregate(feature="newest", kind=AggregateKind.LAST, of="delay", size=5),
)
SKETCHED = (
    *EXACT,
    Aggregate(feature="planes", kind=AggregateKind.DISTINCT, of="plane"),
    Aggregate(feature="median", kind=AggregateKind.QUANTILE, of="delay", quantile=0.5),
)
HEADLINE = ("count, mean, share", 1_000, 1_000)  # as a rule one event per entity and delivery
WINDOWS = {"count, mean, share": FLIGHTS, "all exact kinds": EXACT, "with both sketches": SKETCHED}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one run of deliveries took: on the clock, and of the CPU on either side."""

    wall_s: float
    client_s: float
    server_s: float


def measure(quick: bool) -> tuple[list[Row], dict[str, float]]:
    """One row per window and size of delivery; the headline is events per CPU second, sketches off."""
    num_events, repeats = (6_000, 1) if quick else (30_000, 3)
    rows = []
    with valkey() as port:
        uvloop.run(_run(port, EXACT, 100, 1_000, 5_000))  # the interpreter is warm
        for name, aggregates in WINDOWS.items():
            for entities, delivery in SIZES:
                runs = [uvloop.run(_run(port, aggregates, entities, delivery, num_events)) for _ in range(repeats)]
                cost = sorted(runs, key=lambda cost: cost.client_s + cost.server_s)[repeats // 2]
                rows.append(_row(name, entities, delivery, num_events, cost))
    [headline] = [row for row in rows if (row["window"], row["entities"], row["delivery"]) == HEADLINE]
    return rows, {"window_events_per_s": float(headline["events / CPU s"])}


def _row(name: str, entities: int, delivery: int, num_events: int, cost: Cost) -> Row:
    return {
        "window": name,
        "entities": entities,
        "delivery": delivery,
        "events": num_events,
        "events / CPU s": num_events / (cost.client_s + cost.server_s),
        "events / s": num_events / cost.wall_s,
        "client us": cost.client_s / num_events * 1e6,
        "server us": cost.server_s / num_events * 1e6,
    }


async def _run(port: int, aggregates: Sequence[Aggregate], entities: int, delivery: int, num_events: int) -> Cost:
    view = window_view(aggregates)
    client = connect(RedisSettings(url=f"redis://{HOST}:{port}"))
    store, plan = WindowStore(client, [view], 86_400.0), WindowPlan(view)
    await client.flushall()
    events = departures(entities, num_events)
    await store.apply([_placed(plan, -1, *events[0])])  # the server has the functions, and the connection is open
    server_s, client_s, wall_s = await _server_s(client), time.process_time(), time.perf_counter()
    for start in range(0, num_events, delivery):
        batch = [_placed(plan, start + i, *each) for i, each in enumerate(events[start : start + delivery])]
        outcomes = await store.apply(batch)
        assert outcomes.count(Applied.APPLIED) == len(batch), "every event is new and in time"
    wall_s, client_s = time.perf_counter() - wall_s, time.process_time() - client_s
    server_s = await _server_s(client) - server_s
    await client.aclose()
    return Cost(wall_s, client_s, server_s)


def window_view(aggregates: Sequence[Aggregate]) -> FeatureView:
    whole = {AggregateKind.COUNT, AggregateKind.DISTINCT}
    schema = tuple(
        Field(
            name=a.feature,
            type=FeatureType.INT64 if a.kind in whole else FeatureType.FLOAT64,
            is_list=a.kind is AggregateKind.LAST,
        )
        for a in aggregates
    )
    none = ParquetSource(path="none")
    window = Window(
        topic="departures", key=("origin",), tile_s=TILE_S, num_tiles=NUM_TILES, grace_s=GRACE_S,
        aggregates=tuple(aggregates), tiles=none,
    )  # fmt: skip
    return FeatureView(
        name="departures", version=1, entity="airport", schema=schema, source=none, ttl_s=TTL_S, owner="benchmarks",
        window=window,
    )  # fmt: skip


def departures(entities: int, count: int) -> list[tuple[datetime, dict[str, Any]]]:
    """Events of `entities` in turn, spread over a quarter of a day: when, and the fields."""
    return [
        (
            START + SPAN * i / count,
            {"origin": f"A{i * 7919 % entities}", "delay": float(i * 31 % 240 - 20), "plane": f"N{i * 17 % 3000}"},
        )
        for i in range(count)
    ]


def _placed(plan: WindowPlan, offset: int, at: datetime, fields: dict[str, Any]) -> WindowEvent:
    """As `streaming.window_effects` makes it."""
    return WindowEvent(plan.view.name, plan.key_of(fields), at, plan.amounts(fields), "departures/0", offset + 1)


async def _server_s(client: Redis) -> float:
    cpu = await client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def main() -> None:
    args = options(__doc__ or "")
    rows, headline = measure(args.quick)
    publish("Events into windows", rows, headline, args.json)


if __name__ == "__main__":
    main()
