"""However a spool is read - in any pieces, twice, after a crash, while it is written - the ledger is the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, select

from core_engine.costs import loader
from core_engine.costs.facts import RUNNING, Fact, SpoolHeader
from core_engine.costs.loader import load_spools
from core_engine.costs.spool import Spool
from core_engine.costs.tables import LedgerAttempt, LedgerCharge, LedgerInterval, SpoolFault, SpoolPosition
from core_engine.metrics import Metrics
from tests.core_engine.costs.days import Day, days
from tests.core_engine.costs.ledger import (
    START,
    caller,
    contents,
    device,
    interval,
    ledger,
    load,
    spool_bytes,
    write_spool,
)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Engine]:
    with ledger(tmp_path) as database:
        yield database


def only(database: Engine, table: type[Any]) -> Any:
    with database.connect() as connection:
        return connection.execute(select(table)).one()


def attempt(database: Engine, attempt_id: str = "a") -> Any:
    with database.connect() as connection:
        return connection.execute(select(LedgerAttempt).where(LedgerAttempt.attempt_id == attempt_id)).one()


def in_one_go(database: Engine, facts: list[Fact]) -> dict[str, list[tuple[Any, ...]]]:
    load(database, facts)
    return contents(database)


def emptied(database: Engine) -> None:
    load(database, [])


@settings(max_examples=25, deadline=None)
@given(day=days(), chunk_bytes=st.integers(1, 3000), times=st.integers(1, 3))
def test_any_chunking_and_any_number_of_loads_give_the_same_ledger(
    database: Engine, day: Day, chunk_bytes: int, times: int
) -> None:
    expected = in_one_go(database, day.told)
    emptied(database)
    with TemporaryDirectory() as folder:
        write_spool(Path(folder), day.told, "other-name.jsonl")
        taken = [load_spools(database, Path(folder), chunk_bytes=chunk_bytes).facts for _ in range(times)]
    assert contents(database) == expected
    assert taken == [len(day.told)] + [0] * (times - 1)


@settings(max_examples=25, deadline=None)
@given(day=days(), data=st.data())
def test_a_file_that_grows_by_any_bytes_is_taken_line_by_line(database: Engine, day: Day, data: st.DataObject) -> None:
    expected = in_one_go(database, day.told)
    emptied(database)
    whole = spool_bytes(day.told)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "grows.jsonl"
        for cut in [*cuts, len(whole)]:
            path.write_bytes(whole[:cut])
            loaded = load_spools(database, Path(folder), chunk_bytes=700)
            assert loaded.bad_lines == 0
            assert bool(loaded.unfinished) == (cut > 0 and whole[cut - 1 : cut] != b"\n")
    assert contents(database) == expected


@settings(max_examples=25, deadline=None)
@given(day=days(), crash_at=st.integers(0, 12))
def test_a_crash_in_any_statement_leaves_nothing_half_and_the_next_load_finishes(
    database: Engine, day: Day, crash_at: int
) -> None:
    expected = in_one_go(database, day.told)
    emptied(database)
    statements = 0

    def crash(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal statements
        if statement.startswith("INSERT"):
            statements += 1
            if statements > crash_at:
                raise MemoryError

    with TemporaryDirectory() as folder:
        write_spool(Path(folder), day.told, "crashes.jsonl")
        event.listen(database, "before_cursor_execute", crash)
        try:
            load_spools(database, Path(folder), chunk_bytes=900)
        except MemoryError:
            pass
        finally:
            event.remove(database, "before_cursor_execute", crash)
        load_spools(database, Path(folder), chunk_bytes=900)
    assert contents(database) == expected


@settings(max_examples=15, deadline=None)
@given(day=days(), rng=st.randoms(use_true_random=False))
def test_facts_that_come_again_in_any_order_change_nothing(database: Engine, day: Day, rng: Any) -> None:
    expected = in_one_go(database, day.told)
    again = list(day.told)
    rng.shuffle(again)
    with TemporaryDirectory() as folder:
        write_spool(Path(folder), again, "again.jsonl")
        load_spools(database, Path(folder), chunk_bytes=500)
    assert contents(database) == expected


def test_both_sides_of_an_attempt_meet_in_one_row_whichever_comes_first(tmp_path: Path, fresh: Engine) -> None:
    write_spool(tmp_path / "spool", [device("a", predictor="told by device"), device("b")], "1.jsonl")
    write_spool(tmp_path / "spool", [caller("a", predictor="told by caller"), caller("c")], "2.jsonl")
    load_spools(fresh, tmp_path / "spool")
    write_spool(tmp_path / "spool", [device("c", predictor="told by device"), caller("b")], "3.jsonl")
    load_spools(fresh, tmp_path / "spool")
    a, b, c = (attempt(fresh, name) for name in "abc")
    assert (a.predictor, c.predictor) == ("told by caller", "delay")
    for row in (a, b, c):
        assert (row.reads, row.caller_cpu_s, row.outcome, row.rows) == (2, 0.25, "scored", 1)
        assert (row.read_hits, row.read_bytes, row.read_round_trips, row.read_cached) == (1, 64, 1, 3)


def test_a_side_that_never_comes_is_null_and_the_row_is_there(tmp_path: Path, fresh: Engine) -> None:
    write_spool(tmp_path / "spool", [caller("asked"), device("ran")])
    load_spools(fresh, tmp_path / "spool")
    assert (attempt(fresh, "asked").outcome, attempt(fresh, "asked").finished_at) == (None, None)
    assert (attempt(fresh, "ran").rung, attempt(fresh, "ran").answered_at) == (None, None)


def test_an_attempt_that_ended_does_not_run_again_because_its_spool_is_loaded_again(
    tmp_path: Path, fresh: Engine
) -> None:
    facts = [device(outcome=RUNNING, interval=1, second=1.0), device(outcome="length", interval=2, second=2.0)]
    write_spool(tmp_path / "one", facts)
    load_spools(fresh, tmp_path / "one")
    write_spool(tmp_path / "two", facts[:1], "renamed.jsonl")
    load_spools(fresh, tmp_path / "two")
    assert attempt(fresh).outcome == "length"
    with fresh.connect() as connection:
        assert len(connection.execute(select(LedgerCharge)).all()) == 2


def test_a_line_that_is_no_fact_is_kept_as_a_fault_with_its_place(tmp_path: Path, fresh: Engine) -> None:
    path = tmp_path / "spool" / "damaged.jsonl"
    write_spool(path.parent, [device("before")], path.name)
    place = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"type":"unheard of"}\n\xff\xfe\n' + msgspec.json.encode(device("after")) + b"\n")
    loaded = load_spools(fresh, path.parent)
    assert (loaded.facts, loaded.bad_lines, loaded.unfinished) == (2, 2, ())
    assert load_spools(fresh, path.parent).bad_lines == 0, "counted once"
    with fresh.connect() as connection:
        faults = connection.execute(select(SpoolFault.file, SpoolFault.offset).order_by(SpoolFault.offset)).all()
    assert faults[0] == ("damaged.jsonl", place)
    assert len(faults) == 2
    assert attempt(fresh, "after")


def test_a_torn_last_line_is_left_for_next_time(tmp_path: Path, fresh: Engine) -> None:
    path, line = tmp_path / "spool" / "torn.jsonl", msgspec.json.encode(interval()) + b"\n"
    write_spool(path.parent, [], path.name)
    with path.open("ab") as file:
        file.write(line[:50])
    assert load_spools(fresh, path.parent).unfinished == ("torn.jsonl",)
    with path.open("ab") as file:
        file.write(line[50:])
    assert load_spools(fresh, path.parent).facts == 1
    assert only(fresh, LedgerInterval).wall_s == 1.0
    assert only(fresh, SpoolPosition).offset == path.stat().st_size


def test_another_release_s_file_is_left_out_whole_and_named(tmp_path: Path, fresh: Engine) -> None:
    header = SpoolHeader(schema=1, role="door", pid=1, started_at=START, part=0)
    (tmp_path / "spool").mkdir()
    lines = [msgspec.json.encode(header), msgspec.json.encode(caller())]
    (tmp_path / "spool" / "old.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    loaded = load_spools(fresh, tmp_path / "spool")
    assert (loaded.facts, loaded.bad_lines, loaded.foreign) == (0, 0, ("old.jsonl",))
    assert not any(contents(fresh).values())


def test_no_folder_and_an_empty_file_are_nothing(tmp_path: Path, fresh: Engine) -> None:
    assert load_spools(fresh, tmp_path / "nowhere") == loader.Loaded()
    (tmp_path / "empty.jsonl").touch()
    assert load_spools(fresh, tmp_path) == loader.Loaded(files=1)


def test_a_spool_is_read_while_its_process_writes_it(tmp_path: Path, fresh: Engine) -> None:
    spool = Spool(tmp_path / "spool", "engine", Metrics(), flush_s=0.001, max_file_bytes=20_000)
    written = threading.Event()

    def write() -> None:
        for number in range(500):
            spool.write(device(f"a{number}"))
        spool.close()
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    taken = 0
    while not written.is_set():
        taken += load_spools(fresh, tmp_path / "spool", chunk_bytes=4000).facts
    thread.join()
    taken += load_spools(fresh, tmp_path / "spool").facts
    assert taken == 500
    assert len(contents(fresh)["ledger_charges"]) == 500


def test_two_loaders_at_once_count_nothing_twice(tmp_path: Path, fresh: Engine) -> None:
    facts = [fact for n in range(300) for fact in (device(f"a{n}"), caller(f"a{n}"))]
    write_spool(tmp_path / "spool", facts)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            load_spools(fresh, tmp_path / "spool", chunk_bytes=5000)
        except Exception as error:  # noqa: BLE001 - told to the main thread
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = contents(fresh)
    assert (len(found["ledger_attempts"]), len(found["ledger_charges"])) == (300, 300)
    assert only(fresh, SpoolPosition).offset == (tmp_path / "spool" / "engine-1-0000.jsonl").stat().st_size
