"""A ledger in a file of its own, spools written by hand, and a price book with round numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from sqlalchemy import Engine, select

from core_engine.contracts import Path as DoorPath
from core_engine.contracts import Pool, ReadCost, Rung
from core_engine.costs.facts import SCHEMA, CallerFact, DeviceFact, Fact, ReplicaFact, SpoolHeader
from core_engine.costs.loader import load_spools
from core_engine.costs.prices import PriceBook, load_price_book
from core_engine.costs.report import CostReport, build
from core_engine.costs.tables import Base
from core_engine.predictors.tables import open_database

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TABLES = [table for table in Base.metadata.sorted_tables if "spool" not in table.name]

PRICES = """
name = "round"
currency = "USD"
[[periods]]
valid_from = 2026-01-01
reads_per_million = 1000000
caller_cpu_hour = 3600
[periods.replicas.local]
hour = 3600
memory_share = 0.25
paid_gap_s = 60
"""  # a second of a replica, a second of caller CPU and a read cost 1 each


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


@contextmanager
def ledger(folder: Path | None = None) -> Iterator[Engine]:
    """An empty ledger: a file in `folder`, or in memory."""
    database = open_database("sqlite://" if folder is None else f"sqlite:///{folder / 'ledger.db'}")
    Base.metadata.create_all(database)
    try:
        yield database
    finally:
        database.dispose()


def price_book(folder: Path, text: str = PRICES, name: str = "prices.toml") -> PriceBook:
    path = folder / name
    path.write_text(text)
    return load_price_book(path)


@cache
def round_prices() -> PriceBook:
    with TemporaryDirectory() as folder:
        return price_book(Path(folder))


def load(database: Engine, facts: Iterable[Fact]) -> None:
    """Empty the ledger, then take `facts` into it by way of a spool."""
    with database.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(table.delete())
    with TemporaryDirectory() as folder:
        write_spool(Path(folder), facts)
        load_spools(database, Path(folder))


def reported(database: Engine, facts: Iterable[Fact], **asked: Any) -> CostReport:
    """The report of a ledger that holds `facts` and nothing else, at round prices unless told otherwise."""
    load(database, facts)
    return build(database, asked.pop("book", None) or round_prices(), **asked)


def spool_bytes(facts: Iterable[Fact], role: str = "engine") -> bytes:
    header = SpoolHeader(schema=SCHEMA, role=role, pid=1, started_at=START, part=0)
    return b"".join(msgspec.json.encode(item) + b"\n" for item in (header, *facts))


def write_spool(folder: Path, facts: Iterable[Fact], name: str = "engine-1-0000.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(spool_bytes(facts))
    return path


def contents(database: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the ledger but for how far the spools are loaded."""
    with database.connect() as connection:
        return {table.name: sorted(map(tuple, connection.execute(select(table))), key=repr) for table in TABLES}


def caller(attempt_id: str = "a", second: float = 1.0, **changes: Any) -> CallerFact:
    told: dict[str, Any] = {
        "attempt_id": attempt_id,
        "delivery_key": None,
        "tenant": "local",
        "path": DoorPath.ONLINE,
        "predictor": "delay",
        "version": 1,
        "rung": Rung.MODEL,
        "reason": None,
        "feature": ReadCost(2, 1, 64, 1, cached=3),
        "caller_cpu_s": 0.25,
        "delivered_in_time": True,
        "arrived_at": at(second - 0.1),
        "answered_at": at(second),
    }
    return CallerFact(**told | changes)


def device(attempt_id: str = "a", device_s: float = 0.5, second: float = 1.0, **changes: Any) -> DeviceFact:
    """An attempt that ran and ended in one interval, unless told otherwise."""
    kv_block_s = changes.pop("kv_block_s", 0.0)
    told: dict[str, Any] = {
        "attempt_id": attempt_id,
        "pool": Pool.INTERACTIVE,
        "replica": "engine-0",
        "incarnation": "first",
        "interval": 1,
        "tenant": "local",
        "path": DoorPath.ONLINE,
        "predictor": "delay",
        "version": 1,
        "outcome": "scored",
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "computed_tokens": 0,
        "completion_tokens": 0,
        "wasted_tokens": 0,
        "rows": 1,
        "batch_size": 1,
        "device_s": device_s,
        "kv_block_s": kv_block_s,
        "interval_device_s": device_s,
        "interval_kv_block_s": kv_block_s,
        "finished_at": at(second),
    }
    return DeviceFact(**told | changes)


def interval(number: int = 1, begin: float = 0.0, end: float = 1.0, **changes: Any) -> ReplicaFact:
    """An interval of [begin, end) seconds after START, all of it idle unless told otherwise."""
    spent = sum(changes.get(name, 0.0) for name in ("busy_s", "loading_s", "overhead_s"))
    told: dict[str, Any] = {
        "replica": "engine-0",
        "incarnation": "first",
        "kind": "local",
        "interval": number,
        "from_at": at(begin),
        "to_at": at(end),
        "is_last": False,
        "loading_s": 0.0,
        "busy_s": 0.0,
        "overhead_s": 0.0,
        "idle_s": end - begin - spent,
        "charged_s": changes.get("busy_s", 0.0),
        "total_blocks": 100,
        "free_block_s": 100 * changes.get("busy_s", 0.0),
        "interactive_seats": 3,
        "bulk_seats": 1,
    }
    return ReplicaFact(**told | changes)
