"""A cached row is never served past its TTL and the stale window, never after a change that was told, and the bytes are
bounded: for any order of loads, changes, lost connections and time."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_engine.settings import FeatureSettings
from featurestore.online.fetched import StoredPayload
from featurestore.online.read_cache import ENTRY_BYTES, Held, Load, ReadCache, read_cache
from tests.featurestore.rows import PROPERTY

KEYS = [b"a", b"b", b"c"]
TTL_S, STALE_S = 10.0, 5.0
ROW = StoredPayload(1, b"payload")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def make_cache(clock: Clock, max_bytes: int = 1 << 20, stale_s: float = STALE_S, jitter: float = 0.0) -> ReadCache:
    return ReadCache(max_bytes, TTL_S, stale_s, clock, lambda: jitter)


def keep(cache: ReadCache, key: bytes, row: StoredPayload | None = ROW) -> None:
    cache.finish(key, cache.begin(key), row)


class CacheOverTime(RuleBasedStateMachine):
    """Redis holds one version of each key; every version is another event time, 0 is no row at all."""

    @initialize(is_tracked=st.booleans(), stale_s=st.sampled_from([0.0, STALE_S]), room=st.integers(1, 3))
    def start(self, is_tracked: bool, stale_s: float, room: int) -> None:
        self.clock = Clock()
        self.is_tracked, self.stale_s = is_tracked, stale_s
        self.max_bytes = room * (ENTRY_BYTES + 10)
        jitters = iter(lambda: (self.clock.now_s * 7.3) % 1.0, None)
        self.cache = ReadCache(self.max_bytes, TTL_S, stale_s, self.clock, lambda: next(jitters))
        self.version = dict.fromkeys(KEYS, 0)
        self.current_until_s: dict[tuple[bytes, int], float] = {}  # of versions that were replaced
        self.loads: list[tuple[bytes, Load, int]] = []

    @rule(key=st.sampled_from(KEYS))
    def begin(self, key: bytes) -> None:
        self.loads.append((key, self.cache.begin(key), self.version[key]))

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), is_late=st.booleans())
    def finish(self, data: st.DataObject, is_late: bool) -> None:
        """In any order. Redis read the row when it was asked, or just now."""
        key, load, version = self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))
        version = self.version[key] if is_late else version
        self.cache.finish(key, load, StoredPayload(version, b"x" * 9) if version else None)

    @precondition(lambda self: self.loads)
    @rule()
    def abandon(self) -> None:
        key, load, _ = self.loads.pop()
        self.cache.abandon(key, load)

    @rule(key=st.sampled_from(KEYS))
    def change(self, key: bytes) -> None:
        self.current_until_s[key, self.version[key]] = self.clock.now_s
        self.version[key] += 1
        if self.is_tracked:
            self.cache.invalidated([key])

    @rule(seconds=st.sampled_from([0.5, 3.0, 8.9, 10.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @precondition(lambda self: self.is_tracked)
    @rule()
    def lose_the_connection(self) -> None:
        self.cache.invalidated(None)
        assert len(self.cache) == 0

    @invariant()
    def no_row_is_served_past_its_time(self) -> None:
        for key in KEYS:
            held = self.cache.held(key)
            if held is None:
                continue
            version = held.row.event_us if held.row else 0
            if version != self.version[key]:
                assert not self.is_tracked
                replaced_s = self.current_until_s[key, version]
                assert self.clock.now_s < replaced_s + TTL_S + self.stale_s
                assert held.is_stale or self.clock.now_s < replaced_s + TTL_S

    @invariant()
    def the_bytes_are_bounded(self) -> None:
        assert 0 <= self.cache.num_bytes <= self.max_bytes
        assert (self.cache.num_bytes == 0) == (len(self.cache) == 0)


TestCacheOverTime = CacheOverTime.TestCase
TestCacheOverTime.settings = settings(PROPERTY, max_examples=60, stateful_step_count=40)


def test_a_row_is_fresh_then_stale_then_gone() -> None:
    clock = Clock()
    cache = make_cache(clock)
    keep(cache, b"a")
    for waited_s, expected in ((9.999, Held(ROW, False)), (0.001, Held(ROW, True)), (4.999, Held(ROW, True))):
        clock.now_s += waited_s
        assert cache.held(b"a") == expected
    clock.now_s += 0.001
    assert cache.held(b"a") is None
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_time_counts_from_the_question_not_from_the_answer() -> None:
    clock = Clock()
    cache = make_cache(clock, stale_s=0.0)
    load = cache.begin(b"a")
    clock.now_s += TTL_S
    cache.finish(b"a", load, ROW)
    assert cache.held(b"a") is None


def test_jitter_only_shortens() -> None:
    clock = Clock()
    cache = make_cache(clock, stale_s=0.0, jitter=1.0)
    keep(cache, b"a")
    clock.now_s += 0.9 * TTL_S - 0.001
    assert cache.held(b"a") == Held(ROW, False)
    clock.now_s += 0.002
    assert cache.held(b"a") is None


def test_that_there_is_no_row_is_kept_too() -> None:
    cache = make_cache(Clock())
    keep(cache, b"a", None)
    assert cache.held(b"a") == Held(None, False)


def test_a_change_while_a_row_is_on_its_way_keeps_it_out() -> None:
    cache = make_cache(Clock())
    for changed in ([b"a"], None):
        load = cache.begin(b"a")
        cache.invalidated(changed)
        cache.finish(b"a", load, ROW)
        assert cache.held(b"a") is None


def test_the_least_recently_used_row_makes_room() -> None:
    cache = make_cache(Clock(), max_bytes=2 * (ENTRY_BYTES + 8))
    keep(cache, b"a")
    keep(cache, b"b")
    assert cache.held(b"a") is not None
    keep(cache, b"c")
    assert [cache.held(key) is not None for key in KEYS] == [True, False, True]


def test_a_row_larger_than_the_cache_is_not_kept() -> None:
    cache = make_cache(Clock(), max_bytes=ENTRY_BYTES + 100)
    keep(cache, b"a")
    keep(cache, b"b", StoredPayload(1, bytes(200)))
    assert (cache.held(b"b"), cache.num_bytes) == (None, 0)


@pytest.mark.parametrize("payload_bytes", [0, 60, 2000])
def test_a_full_cache_takes_no_more_memory_than_it_says(payload_bytes: int) -> None:
    cache = make_cache(Clock(), max_bytes=4 << 20)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for i in range(20_000):
            keep(cache, f"hr:view:1:{{entity_{i:08}}}".encode(), StoredPayload((1 << 50) + i, bytes(payload_bytes)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) < 20_000
    assert after - before <= 4 << 20


def test_the_cache_is_off_unless_the_settings_give_it_bytes() -> None:
    assert read_cache(FeatureSettings()) is None
    cache = read_cache(FeatureSettings(cache_bytes=1 << 20, cache_ttl_s=2.0))
    assert cache is not None
    keep(cache, b"a")
    assert cache.held(b"a") == Held(ROW, False)
