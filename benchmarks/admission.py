"""How good is the admission's forecast, and what does a refusal cost?

The real scheduler on a virtual clock, steps that take what the step-time model says, Poisson arrivals at a share of
what the engine can do. Every request is forecast when it arrives, from the snapshot of the last step and what came
since, and runs whatever the forecast says; its deadline is drawn afterwards, so that a judgement and the truth can be
set side by side. Completions end at a length that neither the scheduler nor the forecast knows.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from benchmarks.report import Row, options, publish
from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.errors import EngineRefused
from core_engine.llm.admission import Forecast, Unseen, Work, check_admission, predict_finish, with_unseen
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.messages import Snapshot
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import PRESETS, StepTime, load_calibration

EOS = 2
FILLER = 1
QUEUED = 1 << 30
SLACKS = (0.5, 0.8, 1.25, 2.0, 4.0)  # deadlines, in actual finish times of the same request


@dataclass(slots=True)
class Asked:
    """One request, what was forecast for it, and what came of it."""

    request: GenerateRequest
    arrival_s: float
    completion_tokens: int
    seen: Snapshot
    unseen: list[Work]
    forecast: Forecast
    told: Forecast  # had it known the length of the completion
    first_s: float = math.nan
    finish_s: float = math.nan


class Run:
    """One load on one device: requests in, `Asked` out."""

    def __init__(self, step_time: StepTime, seed: int, max_step_tokens: int, seats: int) -> None:
        pool = PoolLimits(1, seats, 1.0, QUEUED, QUEUED)
        limits = SchedulerLimits(pool, pool, 1 << 20, max_step_tokens, math.inf)
        self.scheduler = Scheduler(limits, BlockPool(1 << 16, 16), step_time)
        self.rng = random.Random(seed)
        self.now = 0.0
        self.unseen = Unseen()
        self.asked: dict[str, Asked] = {}
        self.predicted_step_s = 0.0
        self.snapshot = self._look()

    def go(self, arrivals: list[tuple[float, GenerateRequest, int]]) -> list[Asked]:
        """Arrivals as (instant, request, completion tokens) in order; ends when all of them have."""
        coming = iter(arrivals)
        following = next(coming, None)
        while following or self.scheduler.has_work:
            while following and following[0] <= self.now:
                self._arrive(*following)
                following = next(coming, None)
            if self.scheduler.has_work:
                following = self._step(following, coming)
            elif following:
                self.now = following[0]
        return list(self.asked.values())

    def _arrive(self, at_s: float, request: GenerateRequest, completion_tokens: int) -> None:
        work = Work.of(request)
        loaded = with_unseen(self.snapshot, self.unseen.works)
        own = loaded.interactive if request.pool is Pool.INTERACTIVE else loaded.bulk
        forecast = predict_finish(loaded, work, max(1, round(own.completion_ratio * work.max_tokens)))
        told = predict_finish(loaded, work, completion_tokens)
        asked = Asked(request, at_s, completion_tokens, self.snapshot, self.unseen.works, forecast, told)
        self.asked[request.attempt_id] = asked
        self.scheduler.add(request, at_s)
        self.unseen.admit(request, self.snapshot, int(at_s * 1e9))

    def _step(
        self,
        following: tuple[float, GenerateRequest, int] | None,
        coming: Iterator[tuple[float, GenerateRequest, int]],
    ) -> tuple[float, GenerateRequest, int] | None:
        plan, start_s = self.scheduler.schedule(self.now), self.now
        self.predicted_step_s = plan.predicted_s
        self.now += self.predicted_step_s
        sampling = [item.sequence for item in plan.scheduled if item.samples]
        self.scheduler.commit(plan, {s.id: self._token(s) for s in sampling}, frozenset({EOS}), self.now)
        for sequence in sampling:
            self._note(sequence)
        after = self._look(start_s)
        while following and following[0] <= self.now:  # they came during the step and know the snapshot before it
            self._arrive(*following)
            following = next(coming, None)
        self.snapshot = after
        self.unseen.see(self.snapshot)
        return following

    def _token(self, sequence: Sequence) -> int:
        return EOS if sequence.num_completion_tokens + 1 >= self.asked[sequence.id].completion_tokens else FILLER

    def _note(self, sequence: Sequence) -> None:
        asked = self.asked[sequence.id]
        if sequence.num_completion_tokens == 1:
            asked.first_s = self.now - asked.arrival_s
        if sequence.finish_reason is not None:
            asked.finish_s = self.now - asked.arrival_s

    def _look(self, read_s: float = 0.0) -> Snapshot:
        """The snapshot of a step that began at `read_s`."""
        scheduler = self.scheduler
        return Snapshot(
            interactive=scheduler.load(Pool.INTERACTIVE, self.now),
            bulk=scheduler.load(Pool.BULK, self.now),
            predicted_step_s=self.predicted_step_s,
            coefficients=scheduler.step_time.coefficients,
            max_step_tokens=scheduler.limits.max_step_tokens,
            read_ns=int(read_s * 1e9) + 1,
        )


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    step_time: StepTime
    prompt_tokens: int  # median
    max_tokens: int
    max_step_tokens: int
    seats: int

    def request_s(self) -> float:
        """Device seconds of a mean request when all seats are taken."""
        step_s = self.step_time.a / self.seats + self.step_time.decode_cost(self.prompt_tokens)
        return self.step_time.chunk_cost(0, self.prompt_tokens) + step_s * self.max_tokens * 0.4


def requests(
    device: Device, load: float, num: int, bulk_share: float, seed: int
) -> list[tuple[float, GenerateRequest, int]]:
    """Poisson arrivals at `load` times what the device can do; lognormal prompts, completions of 1 to `max_tokens`."""
    rng, at_s = random.Random(seed), 0.0
    made = []
    for index in range(num):
        at_s += rng.expovariate(load / device.request_s())
        length = max(1, min(16 * device.prompt_tokens, int(device.prompt_tokens * rng.lognormvariate(0, 0.8))))
        most = rng.choice((device.max_tokens // 2, device.max_tokens, device.max_tokens * 2))
        pool = Pool.BULK if rng.random() < bulk_share else Pool.INTERACTIVE
        sampling = SamplingParams(max_tokens=most)
        request = GenerateRequest(f"r{index}", (FILLER,) * length, sampling, Deadline.never(), pool)
        made.append((at_s, request, max(1, int(most * rng.betavariate(2, 3)))))
    return made


def judge(asked: list[Asked]) -> tuple[int, int, int, int]:
    """Of all requests with all slacks: in time and refused, in time, late and admitted, late."""
    refused_in_time = in_time = admitted_late = late = 0
    for each in asked:
        for slack in SLACKS:
            budget_s = slack * each.finish_s
            try:
                check_admission(each.seen, each.unseen, Work.of(each.request), budget_s)
                admitted = True
            except EngineRefused:
                admitted = False
            if slack > 1:
                in_time += 1
                refused_in_time += not admitted
            else:
                late += 1
                admitted_late += admitted
    return refused_in_time, in_time, admitted_late, late


def bench(device: Device, load: float, bulk_share: float, num: int) -> tuple[Row, list[Asked]]:
    run = Run(device.step_time, seed=1, max_step_tokens=device.max_step_tokens, seats=device.seats)
    asked = [a for a in run.go(requests(device, load, num, bulk_share, seed=2)) if a.request.pool is Pool.INTERACTIVE]
    asked = asked[len(asked) // 10 :]  # the ratio of completions has to be seen first
    first = sorted(a.forecast.first_token_s / a.first_s for a in asked)
    finish = sorted(a.forecast.finish_s / a.finish_s for a in asked)
    refused_in_time, in_time, admitted_late, late = judge(asked)
    row: Row = {
        "device": device.name,
        "load": load,
        "bulk": bulk_share,
        "TTFT p50 s": statistics.median(a.first_s for a in asked),
        "TTFT ratio p10": first[len(first) // 10],
        "p50": statistics.median(first),
        "p90": first[9 * len(first) // 10],
        "finish ratio p10": finish[len(finish) // 10],
        "p50 ": statistics.median(finish),
        "p90 ": finish[9 * len(finish) // 10],
        "finish error": statistics.median(abs(ratio - 1) for ratio in finish),
        "length known": statistics.median(abs(a.told.finish_s / a.finish_s - 1) for a in asked),
        "wrongly refused": refused_in_time / in_time,
        "wrongly admitted": admitted_late / late,
    }
    return row, asked


def refusal_ms(asked: list[Asked]) -> list[float]:
    """Milliseconds of each of 10,000 refusals with 512 requests that no snapshot shows yet."""
    taken = []
    rng = random.Random(3)
    unseen = [Work.of(each.request) for each in rng.choices(asked, k=512)]
    for each in rng.choices(asked, k=10_000):
        snapshot = msgspec.structs.replace(each.seen, step=0)
        start = time.perf_counter()
        try:
            check_admission(snapshot, unseen, Work.of(each.request), 0.0)
        except EngineRefused:
            taken.append((time.perf_counter() - start) * 1e3)
    return sorted(taken)


def main() -> None:
    args = options(__doc__ or "")
    devices = (
        Device("this CPU", load_calibration("bfloat16"), 200, 64, 512, 32),
        Device(
            "H200-like, 8B", load_calibration("bfloat16", PRESETS / "h200_like_bfloat16_8b.json"), 1000, 256, 8192, 256
        ),
    )
    rows: list[Row] = []
    every: list[Asked] = []
    for device in devices:
        for load, bulk_share in ((0.1, 0.0), (0.5, 0.0), (0.9, 0.0), (1.5, 0.0), (0.7, 0.5)):
            row, asked = bench(device, load, bulk_share, 300 if args.quick else 2000)
            rows.append(row)
            every += asked
    refused_in_time, in_time, admitted_late, late = judge(every)
    taken = refusal_ms(every)
    headline = {
        "refusal_p99_ms": taken[99 * len(taken) // 100],
        "finish_median_error": statistics.median(abs(a.forecast.finish_s / a.finish_s - 1) for a in every),
        "wrongly_refused": refused_in_time / in_time,
        "wrongly_admitted": admitted_late / late,
    }
    slacks = ", ".join(f"{slack:g}" for slack in SLACKS)
    publish(
        f"Admission: forecast against what came; deadlines at {slacks} x the actual finish", rows, headline, args.json
    )


if __name__ == "__main__":
    main()
