"""The bare server says its events over and over, one for every step that it has seen."""

from __future__ import annotations

from pathlib import Path

from benchmarks.door.bare_stream import Ticker, read_events, said

EVENTS = [b"data: a\n\n", b"data: b\n\n", b"data: c\n\n"]


class ByHand(Ticker):
    """Each wait sees a number of steps at once."""

    def __init__(self, *jumps: int) -> None:
        self.step = 7
        self._jumps = iter(jumps)

    async def next(self) -> None:
        self.step += next(self._jumps)


async def test_a_loop_that_was_held_up_says_what_it_missed() -> None:
    stream = said(EVENTS, ByHand(1, 3, 1))
    assert [await anext(stream) for _ in range(5)] == [EVENTS[at % 3] for at in range(7, 12)]


async def test_steps_go_on_at_the_rate_until_it_is_stopped() -> None:
    ticker = Ticker(1000.0)
    for _ in range(3):
        before = ticker.step
        await ticker.next()
        assert ticker.step > before
    ticker.stop()


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"".join(EVENTS))
    assert read_events(path) == EVENTS
