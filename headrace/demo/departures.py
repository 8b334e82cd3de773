"""Streams 2,000 real departures through the worker, and shows what the next prediction sees of them.

The worker runs in this process, as `headrace stream run` would in one of its own; the broker is the stack's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import httpx
import msgspec
from kafka import KafkaConsumer, TopicPartition

from core_engine.settings import KafkaSettings, Settings
from examples.flights.departures import DepartureEvent
from examples.flights.features import STREAMED
from headrace.demo.load import DemoFailed
from headrace.demo.summary import Streaming, WindowSeen
from headrace.departures import OPTIONS, PARTITIONS, airport_window, create_departure_topics, produce_departures
from headrace.flights import PREDICT, Flights, Request
from headrace.steps import Bar
from headrace.stream import run_stream
from streaming.events import DeadLetter
from streaming.kafka_topics import servers
from streaming.report import StreamReport

IDLE_S = 2.0  # the stream is over when nothing has come for so long
LETTERS_S = 10.0


async def stream_departures(
    settings: Settings, url: str, flights: Flights, events: tuple[DepartureEvent, ...], bar: Bar
) -> Streaming:
    """Produce, score, and look at one airport before and after.

    Raises:
        DemoFailed: events were lost or scored twice, the malformed one is no dead letter, or the window did not move.
    """
    request = flights.requests[0]
    before = await window_seen(settings, url, flights, request)
    await create_departure_topics(settings)
    await produce_departures(settings, events, malformed=1)
    bar.advance(0, len(events), "scoring")
    report = await run_stream(settings, replace(OPTIONS, stop_after_idle_s=IDLE_S))
    letters = await asyncio.to_thread(read_letters, settings.kafka, OPTIONS.letters)
    after = await window_seen(settings, url, flights, request)
    check(report, len(events), letters, before, after)
    return Streaming(
        n=report.n,
        concurrency=report.concurrency,
        p50_ms=report.p50_ms or 0.0,
        p99_ms=report.p99_ms or 0.0,
        scoring_p50_ms=report.scoring_p50_ms or 0.0,
        scoring_p99_ms=report.scoring_p99_ms or 0.0,
        batch_sizes={str(size): count for size, count in report.batch_sizes.items()},
        rungs=report.rungs,
        windows=report.windows,
        dead_letters=[coordinates(letter) for letter in letters],
        airport=str(request.inputs["origin"]),
        before=before,
        after=after,
    )


async def window_seen(settings: Settings, url: str, flights: Flights, request: Request) -> WindowSeen:
    """The streamed window of a flight's airport, and what a prediction for that flight says of it and with it."""
    window = await airport_window(settings, flights.prepared, str(request.inputs["origin"]))
    async with httpx.AsyncClient(base_url=url, timeout=5.0) as client:
        reply = (await client.post(PREDICT, json={"inputs": request.inputs})).raise_for_status().json()
    return WindowSeen(
        mean_delay=window["mean_delay"].value,
        flights=window["flights"].value,
        state=reply["features"][f"{STREAMED}.mean_delay"]["state"],
        prediction=reply["value"],
    )


def read_letters(settings: KafkaSettings, topic: str) -> list[DeadLetter]:
    """Every dead letter of `topic`, at least one if it comes within `LETTERS_S`; blocking."""
    consumer = KafkaConsumer(bootstrap_servers=servers(settings), enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        letters: list[DeadLetter] = []
        give_up_s = time.monotonic() + LETTERS_S
        while time.monotonic() < give_up_s:
            polled = consumer.poll(timeout_ms=500)
            if letters and not polled:
                break
            letters += [
                msgspec.json.decode(record.value, type=DeadLetter) for records in polled.values() for record in records
            ]
        return letters
    finally:
        consumer.close()


def coordinates(letter: DeadLetter) -> str:
    source = letter.source
    return f"{source.topic}/{source.partition}/{source.offset}: {letter.reason}"


def check(
    report: StreamReport, num_events: int, letters: list[DeadLetter], before: WindowSeen, after: WindowSeen
) -> None:
    """Raises `DemoFailed` naming the promise that was not kept."""
    if report.n != num_events:
        raise DemoFailed(f"{report.n} of {num_events} departures were scored; dead letters: {report.dead_letters}")
    if [letter.reason for letter in letters] != ["malformed"]:
        raise DemoFailed(f"expected one dead letter, malformed; found {[coordinates(letter) for letter in letters]}")
    if set(report.windows) - {"applied", "expired"} or sum(report.windows.values()) != num_events:
        raise DemoFailed(f"a departure was neither applied to its window once nor too old for it: {report.windows}")
    if after.state != "present" or after.mean_delay == before.mean_delay:
        raise DemoFailed(f"the streamed window did not reach the next prediction: before {before}, after {after}")
