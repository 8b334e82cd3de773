"""What a request is predicted to need, and whom that refuses."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core_engine.contracts import Deadline, GenerateRequest, Head, HeadKind, Pool, SamplingParams
from core_engine.errors import EngineRefused
from core_engine.llm.admission import Unseen, Work, check_admission, predict_finish, with_unseen
from core_engine.llm.messages import Counters, PoolLoad, Snapshot
from core_engine.llm.step_time import StepTime, chunk_shape

MODEL = StepTime(a=0.03, b=7e-4, c=9e-4, d=7e-6, e=8e-7)
SEATS = 8
STEP_TOKENS = 256
IDLE = Snapshot(
    interactive=PoolLoad(max_seats=SEATS),
    bulk=PoolLoad(max_seats=SEATS),
    coefficients=MODEL.coefficients,
    max_step_tokens=STEP_TOKENS,
)

pools = st.sampled_from(Pool)
sizes = st.integers(1, 2000)


@st.composite
def works(draw: st.DrawFn) -> Work:
    most = draw(st.integers(1, 300))
    return Work(draw(pools), draw(sizes), draw(st.integers(1, most)), most)


@st.composite
def loads(draw: st.DrawFn) -> PoolLoad:
    """A class with sequences that wait, prefill and decode."""
    prefilling, decoding = draw(st.integers(0, SEATS // 2)), draw(st.integers(0, SEATS // 2))
    waiting = draw(st.integers(0, 20))
    prompt = draw(sizes)
    return PoolLoad(
        waiting=waiting,
        waiting_tokens=waiting * prompt,
        running=prefilling + decoding,
        prefill_tokens=prefilling * draw(sizes),
        decode_rows=decoding,
        decode_context_tokens=decoding * draw(sizes),
        pairs_left=(waiting + prefilling) * prompt * (prompt + 1) // 2,
        completion_tokens_left=(waiting + prefilling + decoding) * draw(st.integers(1, 300)),
        completion_ratio=draw(st.floats(0.05, 1.0)),
        prefill_share=draw(st.floats(0.0, 1.0)),
        max_seats=SEATS,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    return msgspec.structs.replace(
        IDLE,
        interactive=draw(loads()),
        bulk=draw(loads()),
        predicted_step_s=draw(st.floats(0, 0.5)),
        max_step_s=draw(st.sampled_from([0.0, 0.0, 0.015, 0.2])),
    )


def alone_s(work: Work, completion_tokens: int) -> float:
    """Step by step, what an engine needs that does nothing else."""
    total_s, done = 0.0, work.cached_tokens
    while done < work.prompt_tokens:
        size = min(STEP_TOKENS, work.prompt_tokens - done)
        total_s += MODEL.predict(chunk_shape(done, size, is_decode=False))
        done += size
    for context in range(work.prompt_tokens, work.prompt_tokens + completion_tokens - 1):
        total_s += MODEL.predict(chunk_shape(context, 1, is_decode=True))
    return total_s


def asked(prompt: int = 100, budget_s: float | None = None, **more: object) -> GenerateRequest:
    deadline = Deadline.never() if budget_s is None else Deadline(budget_s, clock=lambda: 0.0)
    sampling = SamplingParams(max_tokens=50)
    return GenerateRequest("a", (1,) * prompt, **({"sampling": sampling, "deadline": deadline} | more))  # type: ignore[arg-type]


@given(work=works(), completion=st.integers(0, 300))
def test_on_an_idle_engine_the_forecast_is_exact(work: Work, completion: int) -> None:
    forecast = predict_finish(IDLE, work, completion)
    assert forecast.first_token_s == pytest.approx(alone_s(work, 1))
    assert forecast.finish_s == pytest.approx(alone_s(work, completion))


@given(work=works(), brought=st.integers(1, 300), late_s=st.floats(0, 1), ratio=st.floats(0, 1))
def test_an_idle_engine_refuses_nothing_that_it_would_finish_in_time(
    work: Work, brought: int, late_s: float, ratio: float
) -> None:
    """Whatever it believes of the length of completions."""
    assume(work.certain_tokens <= brought <= work.max_tokens)
    own = PoolLoad(max_seats=SEATS, completion_ratio=ratio, prefill_share=0.9)
    idle = msgspec.structs.replace(IDLE, interactive=own, bulk=own)
    check_admission(idle, (), work, alone_s(work, brought) + late_s)


@given(work=works(), short_by=st.floats(0.001, 0.999))
def test_what_cannot_be_in_time_even_on_an_idle_engine_is_refused(work: Work, short_by: float) -> None:
    with pytest.raises(EngineRefused):
        check_admission(IDLE, (), work, alone_s(work, work.certain_tokens) * short_by)


@given(snapshot=snapshots(), work=works(), more=st.integers(1, 500), completion=st.integers(0, 300))
def test_a_longer_prompt_is_never_predicted_to_finish_sooner(
    snapshot: Snapshot, work: Work, more: int, completion: int
) -> None:
    longer = Work(work.pool, work.prompt_tokens + more, work.certain_tokens, work.max_tokens)
    before, after = predict_finish(snapshot, work, completion), predict_finish(snapshot, longer, completion)
    assert after.first_token_s >= before.first_token_s
    assert after.finish_s >= before.finish_s


@given(snapshot=snapshots(), work=works(), completion=st.integers(0, 300), more=st.integers(1, 50))
def test_a_longer_completion_is_never_predicted_to_finish_sooner(
    snapshot: Snapshot, work: Work, completion: int, more: int
) -> None:
    forecasts = [predict_finish(snapshot, work, size) for size in (completion, completion + more)]
    assert forecasts[1].finish_s >= forecasts[0].finish_s
    assert forecasts[1].first_token_s == forecasts[0].first_token_s


@given(snapshot=snapshots(), work=works(), others=st.lists(works(), max_size=10), completion=st.integers(0, 300))
def test_nothing_is_predicted_to_finish_sooner_for_what_waits_before_it(
    snapshot: Snapshot, work: Work, others: list[Work], completion: int
) -> None:
    """Of the same class, and no shorter than what waits there in the mean."""
    own = snapshot.interactive if work.pool is Pool.INTERACTIVE else snapshot.bulk
    prompt = -(-own.waiting_tokens // max(own.waiting, 1))
    left = -(-own.completion_tokens_left // max(own.running + own.waiting, 1))
    ahead = [Work(work.pool, max(o.prompt_tokens, prompt), 1, max(o.max_tokens, left)) for o in others]
    before = predict_finish(snapshot, work, completion)
    after = predict_finish(with_unseen(snapshot, ahead), work, completion)
    assert after.first_token_s >= before.first_token_s * (1 - 1e-9)
    assert after.finish_s >= before.finish_s * (1 - 1e-9)


@given(snapshot=snapshots(), work=works(), completion=st.integers(1, 300))
def test_nothing_is_predicted_to_finish_sooner_than_on_an_idle_engine(
    snapshot: Snapshot, work: Work, completion: int
) -> None:
    assert predict_finish(snapshot, work, completion).finish_s >= alone_s(work, completion) * (1 - 1e-9)


@given(snapshot=snapshots(), work=works(), budget_s=st.floats(0, 100), more_s=st.floats(0, 100))
def test_whoever_has_more_time_is_admitted_where_one_with_less_is(
    snapshot: Snapshot, work: Work, budget_s: float, more_s: float
) -> None:
    def is_admitted(remaining_s: float) -> bool:
        try:
            check_admission(snapshot, (), work, remaining_s)
        except EngineRefused:
            return False
        return True

    assert is_admitted(budget_s + more_s) or not is_admitted(budget_s)


def test_bulk_that_waits_does_not_hold_up_an_interactive_request() -> None:
    bulk = PoolLoad(waiting=100, waiting_tokens=50_000, pairs_left=10_000_000, completion_tokens_left=5000, max_seats=8)
    work = Work(Pool.INTERACTIVE, 100, 1, 10)
    assert predict_finish(msgspec.structs.replace(IDLE, bulk=bulk), work, 10) == predict_finish(IDLE, work, 10)
    ahead = msgspec.structs.replace(IDLE, interactive=bulk)
    late = predict_finish(ahead, Work(Pool.BULK, 100, 1, 10), 10)
    assert late.first_token_s > 50_000 * MODEL.b


def test_the_wait_for_a_seat_counts() -> None:
    full = PoolLoad(running=8, decode_rows=8, decode_context_tokens=800, completion_tokens_left=800, max_seats=8)
    free = msgspec.structs.replace(full, max_seats=9)
    work = Work(Pool.INTERACTIVE, 10, 1, 1)
    first_s = [
        predict_finish(msgspec.structs.replace(IDLE, interactive=load), work, 1).first_token_s for load in (free, full)
    ]
    step_s = MODEL.a + 8 * MODEL.c + 800 * MODEL.d
    # 100 tokens are left of each in the mean, so that the first of eight ends after 200 / 9 steps
    assert first_s[1] - first_s[0] == pytest.approx((200 / 9 - 1) * step_s)


def test_a_guess_of_the_length_refuses_nobody_until_somebody_is_there() -> None:
    """Nobody would ever correct it: what is refused brings no completion."""
    work = Work(Pool.INTERACTIVE, 10, 1, 10_000)
    check_admission(IDLE, (), work, 0.1)
    busy = PoolLoad(running=1, decode_rows=1, decode_context_tokens=10, completion_tokens_left=5, max_seats=SEATS)
    with pytest.raises(EngineRefused):
        check_admission(msgspec.structs.replace(IDLE, interactive=busy), (), work, 0.1)
    short = msgspec.structs.replace(busy, completion_ratio=1e-4)
    check_admission(msgspec.structs.replace(IDLE, interactive=short), (), work, 0.1)
    check_admission(msgspec.structs.replace(IDLE, bulk=busy), (), work, 0.1)


def test_an_engine_that_told_no_step_time_refuses_nothing() -> None:
    check_admission(Snapshot(interactive=PoolLoad(waiting=10**6, waiting_tokens=10**9)), (), Work.of(asked(4000)), 0.0)


def test_a_refusal_names_its_figures() -> None:
    load = PoolLoad(waiting=3, waiting_tokens=700, running=2, max_seats=SEATS, completion_ratio=0.5)
    with pytest.raises(EngineRefused) as refused:
        check_admission(msgspec.structs.replace(IDLE, interactive=load), (), Work.of(asked(100)), 0.25)
    sentence = str(refused.value)
    for part in (
        "0.250 s are left",
        "100 prompt and 25 completion",
        "3 waiting interactive",
        "700 prompt",
        "2 running",
    ):
        assert part in sentence
    assert float(re.findall(r"finish in ([\d.]+) s", sentence)[0]) > 0.25


def test_what_was_sent_since_the_snapshot_counts_until_the_engine_has_read_it() -> None:
    unseen = Unseen()
    for sent_ns in range(1, 5):
        unseen.admit(asked(100), IDLE, sent_ns)
    assert [work.prompt_tokens for work in unseen.works] == [100] * 4
    loaded = with_unseen(IDLE, unseen.works)
    assert (loaded.interactive.waiting, loaded.interactive.waiting_tokens) == (4, 400)
    assert loaded.interactive.completion_tokens_left == 200
    assert loaded.interactive.pairs_left == 4 * 5050
    unseen.see(msgspec.structs.replace(IDLE, read_ns=3))
    assert len(unseen.works) == 2
    unseen.clear()
    assert unseen.works == []


def test_what_is_refused_is_not_taken_to_be_sent() -> None:
    unseen = Unseen()
    with pytest.raises(EngineRefused):
        unseen.admit(asked(1000, budget_s=0.01), IDLE, 1)
    assert unseen.works == []
    unseen.admit(asked(1000, budget_s=100.0), IDLE, 2)
    with pytest.raises(EngineRefused):  # alone it would have been in time
        unseen.admit(asked(100, budget_s=alone_s(Work.of(asked(100)), 50)), IDLE, 3)


def test_the_work_of_a_request() -> None:
    assert Work.of(asked(100)) == Work(Pool.INTERACTIVE, 100, 1, 50)
    endless = SamplingParams(max_tokens=50, ignore_eos=True)
    assert Work.of(asked(sampling=endless)).certain_tokens == 50
    for stops in ({"stop": ("x",)}, {"stop_token_ids": (3,)}):
        sampling = SamplingParams(max_tokens=50, ignore_eos=True, min_tokens=7, **stops)
        assert Work.of(asked(sampling=sampling)).certain_tokens == 7
    head = Work.of(asked(head=Head(HeadKind.EMBED), pool=Pool.BULK))
    assert head == Work(Pool.BULK, 100, 0, 0)


def test_where_prompts_are_found_in_the_cache_the_next_one_is_taken_to_be_found_as_well() -> None:
    """Or a long conversation, all of it cached but its last turn, would never be let in."""
    asked_for = asked(1000, budget_s=0.5 * alone_s(Work.of(asked(1000)), 1))
    with pytest.raises(EngineRefused):
        Unseen().admit(asked_for, IDLE, 1)
    counters = {Pool.INTERACTIVE: Counters(prompt_tokens=4000, cached_tokens=3000)}
    unseen = Unseen()
    unseen.admit(asked_for, msgspec.structs.replace(IDLE, counters=counters), 1)
    assert unseen.works[0].new_tokens == 250


@given(prompt=sizes, template=st.integers(0, 3000))
def test_a_template_is_taken_to_be_cached_but_for_the_token_that_is_always_computed(prompt: int, template: int) -> None:
    work = Work.of(asked(prompt, template_tokens=template))
    assert work.new_tokens == max(1, prompt - template)
    assert work.pairs == chunk_shape(work.cached_tokens, work.new_tokens, is_decode=False).attended_pairs
    assert predict_finish(IDLE, work, 1).first_token_s == pytest.approx(alone_s(work, 1))
