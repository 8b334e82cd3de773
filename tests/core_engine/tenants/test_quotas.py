"""Quotas: each tenant its own, exact about when there is room, and fair about the streams of one door."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import EngineRefused, HeadraceError, InvalidRequest, QuotaExceeded
from core_engine.tenants.quotas import CROWDING, Lease, Quota, Quotas

NOISY, QUIET = "noisy", "quiet"
MAX_STREAMS = 12


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def quotas(clock: Clock, default: Quota, share: float = 1.0, **own: Quota) -> Quotas:
    made = Quotas(default, share=share, clock=clock)
    made.set(own, is_shared=True)
    return made


def is_taken(made: Quotas, tenant: str) -> bool:
    try:
        made.take_request(tenant)
    except QuotaExceeded:
        return False
    return True


# -- one tenant never makes another's request refused

NOISE = st.lists(
    st.tuples(
        st.floats(0, 3),  # seconds later
        st.sampled_from(["request", "stream", "close"]),
        st.integers(1, MAX_STREAMS + 3),  # streams at once
        st.integers(1, 10**7),  # tokens
    ),
    max_size=60,
)


@given(NOISE)
def test_whatever_one_tenant_does_no_other_is_refused(noise: list[tuple[float, str, int, int]]) -> None:
    """The quiet one asks as often as its quota lets it, and has one stream at a time."""
    clock = Clock()
    made = quotas(clock, Quota(requests_per_s=1.0, tokens_per_minute=600), noisy=Quota(tokens_per_minute=10**9))
    held: list[Lease] = []
    for later_s, what, num_streams, num_tokens in noise:
        clock.now_s += later_s
        disturb(made, held, what, num_streams, num_tokens)
        clock.now_s += 1.0  # the quiet tenant's own pace: a request and ten tokens a second
        made.take_request(QUIET)
        made.close_streams(made.open_streams(QUIET, 1, 10, MAX_STREAMS), 10)


def disturb(made: Quotas, held: list[Lease], what: str, num_streams: int, num_tokens: int) -> None:
    try:
        if what == "stream":
            held.append(made.open_streams(NOISY, num_streams, num_tokens, MAX_STREAMS))
        elif what == "close" and held:
            lease = held.pop()
            made.close_streams(lease, lease.reserved_tokens // 2)
        else:
            for _ in range(20):
                made.take_request(NOISY)
    except HeadraceError:
        pass  # its own affair


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=200))
def test_a_tenant_that_comes_late_finds_room_for_a_stream(openers: list[str]) -> None:
    made = quotas(Clock(), Quota())
    for tenant in openers:
        try:
            made.open_streams(tenant, 1, 1, 64)
        except EngineRefused:
            continue
    made.open_streams("late", 1, 1, 64)


def test_where_there_is_one_tenant_every_stream_may_be_its() -> None:
    made = Quotas(Quota(), clock=Clock())
    for _ in range(MAX_STREAMS):
        made.open_streams("only", 1, 1, MAX_STREAMS)
    with pytest.raises(EngineRefused):
        made.open_streams("only", 1, 1, MAX_STREAMS)


def test_where_there_are_others_a_tenant_leaves_some_free() -> None:
    made = quotas(Clock(), Quota())
    for _ in range(9):
        made.open_streams("greedy", 1, 1, MAX_STREAMS)
    assert CROWDING * (MAX_STREAMS - 10) < 10
    with pytest.raises(EngineRefused):
        made.open_streams("greedy", 1, 1, MAX_STREAMS)
    made.open_streams("modest", 1, 1, MAX_STREAMS)


# -- how much, and when again


def test_requests_come_at_their_rate_and_a_refusal_says_when_there_is_room() -> None:
    clock = Clock()
    made = quotas(clock, Quota(requests_per_s=4.0))
    assert [is_taken(made, "a") for _ in range(5)] == [True, True, True, True, False]
    with pytest.raises(QuotaExceeded, match="4 requests per second") as refused:
        made.take_request("a")
    assert refused.value.quota == "requests"
    assert refused.value.retry_after_s == pytest.approx(0.25)
    clock.now_s += 0.24
    assert not is_taken(made, "a")
    clock.now_s += 0.01
    assert is_taken(made, "a")


def test_less_than_one_request_a_second_is_a_rate_too() -> None:
    clock = Clock()
    made = quotas(clock, Quota(requests_per_s=0.1))
    assert is_taken(made, "a")
    clock.now_s += 9.9
    assert not is_taken(made, "a")
    clock.now_s += 0.1
    assert is_taken(made, "a")


def test_tokens_are_reserved_and_what_was_not_used_comes_back() -> None:
    made = quotas(Clock(), Quota(tokens_per_minute=600))
    lease = made.open_streams("a", 1, 600, MAX_STREAMS)
    with pytest.raises(QuotaExceeded, match="600 tokens per minute") as refused:
        made.open_streams("a", 1, 100, MAX_STREAMS)
    assert refused.value.quota == "tokens"
    assert refused.value.retry_after_s == pytest.approx(10.0)
    made.close_streams(lease, 200)
    made.open_streams("a", 1, 400, MAX_STREAMS)
    with pytest.raises(QuotaExceeded):
        made.open_streams("a", 1, 1, MAX_STREAMS)


@given(st.lists(st.tuples(st.integers(1, 2000), st.floats(0, 1)), min_size=1, max_size=40))
def test_over_any_time_tokens_used_stay_within_the_quota(calls: list[tuple[int, float]]) -> None:
    clock, per_minute, used = Clock(), 600, 0
    made, began_s = quotas(clock, Quota(tokens_per_minute=per_minute)), clock()
    for num_tokens, used_share in calls:
        try:
            lease = made.open_streams("a", 1, num_tokens, MAX_STREAMS)
        except QuotaExceeded as error:
            clock.now_s += error.retry_after_s
            lease = made.open_streams("a", 1, num_tokens, MAX_STREAMS)
        made.close_streams(lease, int(num_tokens * used_share))
        used += int(num_tokens * used_share)
    assert used <= (clock() - began_s) * per_minute / 60 + max(per_minute, 2000) + 1


def test_streams_are_counted_by_tenant_and_several_choices_count_each() -> None:
    made = quotas(Clock(), Quota(streams=3), b=Quota(streams=1))
    lease = made.open_streams("a", 2, 10, MAX_STREAMS)
    with pytest.raises(QuotaExceeded, match="2 generations open and may have 3") as refused:
        made.open_streams("a", 2, 10, MAX_STREAMS)
    assert refused.value.quota == "streams"
    made.open_streams("b", 1, 10, MAX_STREAMS)
    assert (made.streams("a"), made.streams("b"), made.streams("nobody")) == (2, 1, 0)
    made.close_streams(lease, 0)
    assert made.streams("a") == 0
    made.open_streams("a", 2, 10, MAX_STREAMS)


def test_more_choices_than_the_tenant_may_ever_have_are_not_worth_trying_again() -> None:
    made = quotas(Clock(), Quota(streams=3))
    with pytest.raises(InvalidRequest, match="4 generations at once; this tenant may have 3") as refused:
        made.open_streams("a", 4, 10, MAX_STREAMS)
    assert refused.value.field == "n"


def test_a_refusal_takes_nothing() -> None:
    made = quotas(Clock(), Quota(tokens_per_minute=600, streams=1))
    made.open_streams("a", 1, 10, MAX_STREAMS)
    for _ in range(100):
        with pytest.raises(QuotaExceeded):
            made.open_streams("a", 1, 500, MAX_STREAMS)
    assert made.streams("a") == 1


def test_a_tenant_s_own_limits_stand_over_the_default_one_by_one() -> None:
    default = Quota(1.0, 600, 3)
    assert Quota(requests_per_s=9.0).over(default) == Quota(9.0, 600, 3)
    assert Quota(streams=9, tokens_per_minute=7).over(default) == Quota(1.0, 7, 9)
    made = quotas(Clock(), default, a=Quota(streams=9))
    assert made.quota("a") == Quota(1.0, 600, 9)
    assert made.quota("b") == default


def test_without_limits_nothing_is_counted_against_anybody() -> None:
    made = quotas(Clock(), Quota())
    assert all(is_taken(made, "a") for _ in range(1000))


def test_a_new_quota_holds_from_the_next_request_on() -> None:
    clock = Clock()
    made = quotas(clock, Quota(requests_per_s=1.0))
    assert [is_taken(made, "a") for _ in range(3)] == [True, False, False]
    made.set({"a": Quota(requests_per_s=100.0)}, is_shared=True)
    clock.now_s += 1.0
    assert sum(is_taken(made, "a") for _ in range(200)) == 100


def test_tokens_without_a_stream_are_of_the_same_minute_and_come_back_where_they_were_not_used() -> None:
    clock = Clock()
    made = quotas(clock, Quota(tokens_per_minute=60))
    made.take_tokens("a", 40)
    with pytest.raises(QuotaExceeded, match="60 tokens per minute") as refused:
        made.open_streams("a", 1, 30, MAX_STREAMS)
    assert refused.value.quota == "tokens"
    assert refused.value.retry_after_s == pytest.approx(10)
    made.give_back_tokens("a", 10)
    made.open_streams("a", 1, 30, MAX_STREAMS)
    with pytest.raises(QuotaExceeded):
        made.take_tokens("a", 1)
    made.take_tokens("b", 60)


@pytest.mark.parametrize(("streams", "workers", "share"), [(16, 4, 4), (17, 4, 4), (98, 49, 2), (3, 4, 1)])
def test_each_of_several_workers_lets_in_its_share_of_the_streams_and_at_least_one(
    streams: int, workers: int, share: int
) -> None:
    made = quotas(Clock(), Quota(streams=streams), share=1 / workers)
    for _ in range(share):
        made.open_streams("a", 1, 1, MAX_STREAMS)
    with pytest.raises(QuotaExceeded, match=f"may have {share}"):
        made.open_streams("a", 1, 1, MAX_STREAMS)
    with pytest.raises(InvalidRequest, match=f"may have {share}"):
        made.open_streams("b", share + 1, 1, MAX_STREAMS)


def test_each_of_several_workers_enforces_its_share() -> None:
    clock = Clock()
    made = quotas(clock, Quota(requests_per_s=8.0, tokens_per_minute=1200), share=0.25)
    assert sum(is_taken(made, "a") for _ in range(10)) == 2
    lease = made.open_streams("a", 1, 300, MAX_STREAMS)
    with pytest.raises(QuotaExceeded):
        made.open_streams("a", 1, 1, MAX_STREAMS)
    made.close_streams(lease, 300)
