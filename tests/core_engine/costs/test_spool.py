"""Facts come back as they were written; a full disk or a killed process costs what is said here, and no request."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from core_engine.contracts import Path as DoorPath
from core_engine.contracts import Pool, ReadCost, Reason, Rung, StageTimes, Usage
from core_engine.costs.facts import CallerFact, DeviceFact, Fact
from core_engine.costs.spool import Spool, decode_line, read_spool
from core_engine.metrics import Metrics

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
USAGE = Usage(
    prompt_tokens=3, computed_tokens=3, completion_tokens=2, batch_size=4, device_s=0.5, kv_block_s=1.5, queue_s=0.25
)
TIMES = ("queue_s", "prefill_s", "decode_s")
NEVER_S = 3600.0


def caller_fact(attempt_id: str = "a1", **changes: Any) -> CallerFact:
    facts: dict[str, Any] = {
        "attempt_id": attempt_id,
        "delivery_key": None,
        "tenant": "local",
        "path": DoorPath.ONLINE,
        "predictor": "delay",
        "version": 1,
        "rung": Rung.STUDENT,
        "reason": Reason.DEADLINE,
        "feature": ReadCost(3, 2, 120, 1),
        "caller_cpu_s": 0.0001,
        "delivered_in_time": True,
        "arrived_at": NOW,
        "answered_at": NOW + timedelta(milliseconds=7),
    }
    return CallerFact(**{**facts, **changes})


def device_fact(attempt_id: str = "a1") -> DeviceFact:
    return DeviceFact.of(
        USAGE,
        attempt_id=attempt_id,
        pool=Pool.BULK,
        replica="engine-0",
        incarnation="first",
        interval=3,
        tenant="local",
        path=DoorPath.BATCH,
        predictor="notice",
        version=2,
        outcome="stop",
        finished_at=NOW,
    )


def ids(facts: Iterable[Fact]) -> list[str]:
    return [fact.attempt_id for fact in facts if isinstance(fact, CallerFact | DeviceFact)]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def spool(tmp_path: Path, metrics: Metrics) -> Iterator[Spool]:
    """One that flushes only when it is told to."""
    spool = Spool(tmp_path / "spool", "door", metrics, flush_s=NEVER_S)
    yield spool
    spool.close()


def value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name)


def test_both_kinds_come_back_as_written(spool: Spool) -> None:
    written: list[Fact] = [caller_fact(), device_fact(), caller_fact("a2", delivery_key="k", reason=None)]
    for fact in written:
        spool.write(fact)
    spool.flush()

    contents = read_spool(spool.path)
    assert list(contents.facts) == written
    assert contents.bad_lines == ()
    assert contents.torn is None
    assert contents.header is not None
    assert (contents.header.role, contents.header.pid, contents.header.part) == ("door", os.getpid(), 0)
    assert contents.header.started_at.tzinfo is not None


def test_a_device_fact_takes_the_device_s_part_of_the_usage() -> None:
    fact = device_fact()
    assert (fact.completion_tokens, fact.batch_size, fact.device_s, fact.kv_block_s) == (2, 4, 0.5, 1.5)


def test_the_file_s_name_says_whose_it_is_and_only_its_owner_reads_it(spool: Spool) -> None:
    spool.write(caller_fact())
    spool.flush()
    assert spool.path.name.startswith(f"door-{os.getpid()}-20")
    assert spool.path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_before_a_fact_comes(spool: Spool) -> None:
    spool.flush()
    assert not spool.path.exists()


def test_closing_writes_what_is_left_and_later_facts_are_counted_as_lost(spool: Spool, metrics: Metrics) -> None:
    spool.write(caller_fact())
    spool.close()
    assert len(read_spool(spool.path).facts) == 1
    spool.write(caller_fact())
    assert value(metrics, "headrace_spool_lost_facts_total") == 1
    spool.close()


def test_the_writer_s_own_thread_flushes_by_time_and_by_size(
    tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = threading.Event()
    append = Spool._append

    def told(self: Spool, data: bytes) -> None:
        append(self, data)
        flushed.set()

    monkeypatch.setattr(Spool, "_append", told)
    for options in ({"flush_s": 0.001}, {"flush_s": NEVER_S, "flush_bytes": 1}):
        flushed.clear()
        spool = Spool(tmp_path / str(options), "door", metrics, **options)  # type: ignore[arg-type]
        spool.write(caller_fact())
        assert flushed.wait(30)
        assert len(read_spool(spool.path).facts) == 1
        spool.close()


def test_a_full_part_is_followed_by_the_next(tmp_path: Path, metrics: Metrics) -> None:
    spool = Spool(tmp_path, "door", metrics, flush_s=NEVER_S, max_file_bytes=1000)
    for index in range(12):
        spool.write(caller_fact(f"a{index}"))
        spool.flush()
    spool.close()

    parts = [read_spool(path) for path in sorted(tmp_path.iterdir())]
    assert len(parts) > 1
    assert [part.header.part for part in parts if part.header] == list(range(len(parts)))
    facts = [fact for part in parts for fact in part.facts]
    assert ids(facts) == [f"a{index}" for index in range(12)]


def test_a_full_disk_is_counted_logged_once_and_made_good_without_a_torn_line(
    spool: Spool, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.write(caller_fact("before"))
    spool.flush()
    write = os.write

    def none_left(file: int, data: bytes) -> int:
        if data.startswith(b'{"type":"caller"'):
            return write(file, data[:10])  # the last bytes that found room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", none_left)
    with capture_logs() as logs:
        for attempt in ("during-1", "during-2"):
            spool.write(caller_fact(attempt))
            spool.flush()
    assert [line["event"] for line in logs] == ["spool_write_failed"]
    assert value(metrics, "headrace_spool_write_failures_total") == 2

    monkeypatch.setattr(os, "write", write)
    spool.write(caller_fact("after"))
    spool.flush()
    contents = read_spool(spool.path)
    assert ids(contents.facts) == ["before", "during-1", "during-2", "after"]
    assert contents.bad_lines == ()
    assert value(metrics, "headrace_spool_lost_facts_total") == 0


def test_a_folder_that_cannot_be_made_loses_facts_by_count_and_raises_nothing(tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "file").write_text("in the way")
    with capture_logs() as logs:
        spool = Spool(tmp_path / "file" / "spool", "door", metrics, flush_s=NEVER_S, max_buffer_bytes=1000)
        for _ in range(10):
            spool.write(caller_fact())
        spool.flush()
        spool.close()
    assert value(metrics, "headrace_spool_lost_facts_total") == 10
    assert [line["event"] for line in logs] == ["spool_write_failed"]


def test_several_threads_lose_nothing(spool: Spool) -> None:
    def write_many(name: int) -> None:
        for index in range(200):
            spool.write(caller_fact(f"{name}-{index}"))

    threads = [threading.Thread(target=write_many, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spool.flush()
    assert len(set(ids(read_spool(spool.path).facts))) == 800


def test_a_killed_writer_leaves_whole_lines_and_at_most_one_torn(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom core_engine.costs.spool import Spool\n"
        "from core_engine.metrics import Metrics\nfrom tests.core_engine.costs.test_spool import caller_fact\n"
        f"spool = Spool(Path({str(tmp_path)!r}), 'door', Metrics(), flush_s=0.001)\n"
        "print(flush=True)\n"
        "while True: spool.write(caller_fact())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not any(path.stat().st_size > 10_000 for path in tmp_path.iterdir()):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    for path in tmp_path.iterdir():
        contents = read_spool(path)
        assert set(contents.facts) == {caller_fact()}
        assert len(contents.bad_lines) <= 1
        assert all(line.is_torn for line in contents.bad_lines)


@given(cut=st.integers(min_value=0, max_value=400))
def test_wherever_the_last_line_is_torn_the_rest_is_read(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("torn") / "spool.jsonl"
    whole = [msgspec.json.encode(caller_fact(name)) + b"\n" for name in ("a1", "a2")]
    end = max(0, len(whole[1]) - 1 - cut)
    path.write_bytes(whole[0] + whole[1][:end])

    contents = read_spool(path)
    if end == 0 or end == len(whole[1]) - 1:  # nothing of the line, or all of it but the line break
        assert contents.bad_lines == ()
    else:
        assert contents.torn is not None
        assert contents.torn.number == 2
    assert contents.facts[0] == caller_fact("a1")


def test_a_damaged_line_inside_is_reported_and_is_not_called_torn(tmp_path: Path) -> None:
    path = tmp_path / "spool.jsonl"
    good = msgspec.json.encode(caller_fact()) + b"\n"
    path.write_bytes(good + b'{"type":"unheard of"}\n' + b"\xff\n" + good)
    contents = read_spool(path)
    assert len(contents.facts) == 2
    assert [(line.number, line.is_torn) for line in contents.bad_lines] == [(2, False), (3, False)]
    assert contents.torn is None


def test_a_fact_holds_no_value_of_an_input_or_a_feature() -> None:
    allowed = {
        "type", "attempt_id", "delivery_key", "tenant", "path", "predictor", "version", "rung", "reason", "feature",
        "caller_cpu_s", "delivered_in_time", "arrived_at", "answered_at", "stages",
    }  # fmt: skip
    assert set(json.loads(msgspec.json.encode(caller_fact()))) == allowed


def test_stages_come_back_as_they_were_and_a_fact_from_before_they_were_told_has_none() -> None:
    told = caller_fact(stages=StageTimes(features_ms=1.5, total_ms=7.0, overran="model"))
    line = msgspec.json.encode(told)
    assert decode_line(line) == told
    older = {name: value for name, value in json.loads(line).items() if name != "stages"}
    assert decode_line(json.dumps(older).encode()) == caller_fact()


def test_a_devices_fact_has_the_times_of_its_usage_and_one_from_before_has_none() -> None:
    fact = device_fact()
    assert (fact.queue_s, fact.prefill_s, fact.decode_s) == (USAGE.queue_s, USAGE.prefill_s, USAGE.decode_s)
    older = {k: v for k, v in json.loads(msgspec.json.encode(fact)).items() if k not in TIMES}
    read = decode_line(json.dumps(older).encode())
    assert isinstance(read, DeviceFact)
    assert (read.queue_s, read.prefill_s, read.decode_s) == (None, None, None)
