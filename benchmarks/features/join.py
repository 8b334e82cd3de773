"""A point-in-time join of 1,000,000 events with three histories, against a plain DuckDB ASOF join, pandas and Feast.

Every join runs in a process of its own, by turns, and writes what it found. Ours is first held to brute force on both
clocks, and to plain DuckDB where both clocks are one; then every other answer is held to ours. `rows_wrong` counts the
events with a value that was not known at their instant or not the newest known, and those lost that had a value. Feast
gives no value past the TTL and is compared without those. Its stores finish a tenth of the events, and the file store
takes minutes and 13 GB for it; ours and DuckDB run at that size too. `--quick` leaves Feast out.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.comparison.installation import PeerFailed
from benchmarks.features import feast_peer
from benchmarks.features.join_data import ENTITIES, FEATURES, SPINE, TTL_S, history_path, write_data
from benchmarks.report import Row

CHECKED_EVENTS: Final = 300
COLUMNS: Final = [f"{view}.{feature}" for view in ENTITIES for feature in FEATURES]
SCRIPTS: Final = {"ours": "run_own_join.py", "duckdb": "run_own_join.py"}
FEAST_SCRIPT: Final = "run_feast_join.py"
YARDSTICK: Final = "duckdb"
ONE_TURN: Final = ("feast_file",)


@dataclass(frozen=True, slots=True)
class Size:
    """How many events and how many rows of each history; `turns` of every join, each of `repeats` repetitions."""

    num_events: int
    num_rows: int
    joins: tuple[str, ...]
    turns: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a join said of itself in all its turns, and its answer."""

    seconds: list[float]
    peak_rss_bytes: int
    version: str
    num_lost: int
    answer: pa.Table


def measure(quick: bool) -> tuple[list[Row], dict[str, float]]:
    """Rows and headline. Raises `PeerFailed` if ours or plain DuckDB fails, and `SystemExit` if ours is wrong."""
    peers = feast_peer.why_absent() is None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: list[Row] = []
        for size in sizes(quick, with_peers=peers):
            write_data(folder, size.num_events, size.num_rows)
            check_ours(folder, size)
            rows += measured(folder, size)
    ratio = next(row["over_duckdb"] for row in rows if row["join"] == "ours")
    return rows, {"pit_join_over_duckdb": ratio}


def sizes(quick: bool, *, with_peers: bool) -> Iterator[Size]:
    pandas, feast = (("pandas",), ("feast_duckdb", "feast_file")) if with_peers else ((), ())
    if quick:
        yield Size(200_000, 100_000, ("ours", YARDSTICK, *pandas), turns=1, repeats=3)
        return
    yield Size(1_000_000, 336_000, ("ours", YARDSTICK, *pandas), turns=5, repeats=1)
    if feast:
        yield Size(100_000, 336_000, ("ours", YARDSTICK, *feast), turns=3, repeats=1)


def measured(folder: Path, size: Size) -> list[Row]:
    found: dict[str, list[Found]] = {}
    for turn in range(size.turns):
        for join in size.joins if turn == 0 else (each for each in size.joins if each not in ONE_TURN):
            try:
                found.setdefault(join, []).append(joined(folder, size, join, "late"))
            except PeerFailed as error:
                if join in SCRIPTS:
                    raise
                print(f"note: {join}: {error}", flush=True)
    expected = found["ours"][0].answer
    yardstick = median(second for turn in found[YARDSTICK] for second in turn.seconds)
    return [_row(join, size, turns, expected, yardstick) for join, turns in found.items() if turns]


def joined(folder: Path, size: Size, join: str, history: str) -> Found:
    """One turn. Raises `PeerFailed` with the last lines of a process that fails."""
    result = folder / f"{join}_{history}_found.parquet"
    settings = {
        "join": join,
        "folder": str(folder),
        "views": {view: list(FEATURES) for view in ENTITIES},
        "history": history,
        "ttl_s": TTL_S,
        "num_events": size.num_events,
        "repeats": size.repeats,
        "result": str(result),
    }
    reply = _asked(join, settings)
    return Found(**reply, answer=pq.read_table(result))


def _asked(join: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if join in SCRIPTS:
        return feast_peer.asked(SCRIPTS[join], settings, Path(sys.executable))
    return feast_peer.asked(FEAST_SCRIPT, settings)


def check_ours(folder: Path, size: Size) -> None:
    """Ends the benchmark where ours is not what brute force and plain DuckDB find: it would measure nothing."""
    once = Size(size.num_events, size.num_rows, (), turns=1, repeats=1)
    ours, plain = (joined(folder, once, join, "on_time").answer for join in ("ours", YARDSTICK))
    if not ours.select(COLUMNS).equals(plain):
        sys.exit("the join is wrong: with both clocks one it differs from plain DuckDB")
    found = joined(folder, once, "ours", "late").answer
    spine = pq.read_table(folder / SPINE)
    for view in ENTITIES:
        history = pq.read_table(history_path(folder, view, "late"))
        places = np.linspace(0, size.num_events - 1, CHECKED_EVENTS).astype(int).tolist()
        for place, known in zip(places, _newest_known(history, spine.take(places), view), strict=True):
            row = {name: found[f"{view}.{name}"][place].as_py() for name in FEATURES}
            if row != known:
                sys.exit(f"the join is wrong: event {place}, {view}: found {row}, but {known} was known")


def _newest_known(history: pa.Table, events: pa.Table, view: str) -> Iterator[dict[str, Any]]:
    """By looking at every row: of those of the event's key with both clocks at or before its instant, the newest."""
    keys, event, created = (history[name].to_numpy() for name in (view, "event_time", "created_time"))
    for key, at in zip(events[view].to_pylist(), events["at"].to_numpy(), strict=True):
        visible = np.flatnonzero((keys == key) & (event <= at) & (created <= at))
        if not len(visible):
            yield dict.fromkeys(FEATURES)
            continue
        newest = visible[np.lexsort((visible, created[visible], event[visible]))[-1]]
        yield {name: history[name][newest].as_py() for name in FEATURES}


def _row(join: str, size: Size, turns: list[Found], expected: pa.Table, yardstick: float) -> Row:
    seconds = [second for turn in turns for second in turn.seconds]
    return {
        "join": join,
        "version": turns[0].version,
        "events": size.num_events,
        "history_rows": size.num_rows,
        "seconds": median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "over_duckdb": median(seconds) / yardstick,
        "peak_rss_gb": max(turn.peak_rss_bytes for turn in turns) / 1e9,
        "rows_lost": turns[0].num_lost,
        "rows_wrong": rows_wrong(turns[0].answer, expected, within_ttl=join.startswith("feast")),
    }


def rows_wrong(answer: pa.Table, expected: pa.Table, *, within_ttl: bool) -> int:
    """Events of which `answer` has another value, or none, for some feature; all of them where it lost rows."""
    if answer.num_rows != expected.num_rows:
        return int(expected.num_rows)
    wrong = np.zeros(expected.num_rows, bool)
    for name in COLUMNS:
        known = expected[name].combine_chunks()
        if within_ttl:
            is_stale = pc.equal(expected[f"{name}__state"].combine_chunks(), "stale")
            known = pc.if_else(is_stale, pa.scalar(None, known.type), known)
        wrong |= ~_same(answer[name].combine_chunks().cast(pa.float64()), known.cast(pa.float64()))
    return int(wrong.sum())


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Row by row; NaN, which pandas has for nothing, is null."""
    left, right = (np.asarray(array.to_numpy(zero_copy_only=False)) for array in (one, other))
    return np.asarray((left == right) | (np.isnan(left) & np.isnan(right)))
