"""Events are counted however their bytes are cut; a reply that is none ends the load with its words."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.door.stream_readers import CpuClocks, EventLog, Reading, read
from headrace.loadgen.connections import Failed
from tests.headrace.loadgen.server import Asked, serving


def test_a_process_s_cpu_clock_is_what_the_process_itself_reads() -> None:
    before = time.process_time()
    (read_s,) = CpuClocks({"self": os.getpid()}).read().values()
    assert before <= read_s <= time.process_time()


@given(num_events=st.integers(0, 8), cuts=st.lists(st.integers(0, 200), max_size=12))
def test_every_event_is_seen_once_however_the_stream_is_cut(num_events: int, cuts: list[int]) -> None:
    stream = b'data: {"text":"a\\n\\nb"}\n\n' * num_events
    log, at = EventLog(), 0
    for cut in sorted(cut for cut in cuts if cut < len(stream)):
        log.feed(stream[at:cut])
        at = cut
    log.feed(stream[at:])
    assert len(log.at_s) == num_events
    assert log.at_s == sorted(log.at_s)
    assert log.begun.is_set() == bool(num_events)


async def test_streams_are_left_once_all_have_begun_and_the_window_is_over() -> None:
    async def begin(asked: Asked) -> None:
        """A stream that has no end."""
        asked.writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n")

    async with serving(begin) as server:
        seen = await read(Reading(server.url, "tiny", 3, {"server": os.getpid()}, 8))
        assert [asked.json()["max_tokens"] for asked in server.asked] == [8, 8, 8]
    assert [len(events) for events in seen.events_s] == [1, 1, 1]
    assert seen.start_s <= seen.end_s
    assert seen.cpu_s["server"] >= 0


async def test_replies_in_one_piece_are_read_to_their_end() -> None:
    async def answer(asked: Asked) -> None:
        assert not asked.json().get("stream")
        asked.reply_json({"choices": []})

    async with serving(answer) as server:
        seen = await read(Reading(server.url, "tiny", 2, {"server": os.getpid()}, 8, stream=False))
    assert seen.events_s == [[], []]


async def test_a_refusal_ends_the_load_with_its_status_and_words() -> None:
    async def refuse(asked: Asked) -> None:
        asked.reply_json({"error": "full"}, 503)

    async with serving(refuse) as server:
        with pytest.raises(Failed, match="full") as raised:
            await read(Reading(server.url, "tiny", 2, {}, 8, stream=False))
    assert raised.value.kind == "http_503"
