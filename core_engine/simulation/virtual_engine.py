"""An engine without a model: the real scheduler, a clock that only steps move, and the step-time model as the device.

    schedule(now) -> the clock moves by predict(plan.shape) -> commit(fake tokens)

A job ends by an end-of-sequence token at its true length, which the scheduler cannot know before. Steps that would be
identical are done many at once: see `fast_forward`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Protocol

from core_engine.contracts import GenerateRequest, Pool
from core_engine.errors import EngineRefused, InvalidRequest
from core_engine.llm.scheduler import Scheduler, StepPlan
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import StepTime
from core_engine.simulation.fast_forward import FastForward
from core_engine.simulation.recording import BACKLOG, REFUSED, TIMED, Attempt, Recording, Sample
from core_engine.simulation.workload import EOS, FILLER, Job

EOS_IDS = frozenset({EOS})
POLL_S = 0.001  # what an engine that can run nothing now waits before it looks again
MAX_POLLS = 100_000  # empty steps in a row before the run is given up


class Stalled(RuntimeError):
    """The scheduler has work and puts none of it into a step: an error in the scheduler, or limits that fit nothing."""


class Blocks(Protocol):
    total: int
    block_size: int

    @property
    def num_free(self) -> int: ...


class StepScheduler(Protocol):
    """What the virtual engine asks of a scheduler: `Scheduler`, or a baseline that a benchmark compares it with."""

    @property
    def blocks(self) -> Blocks: ...
    @property
    def waiting(self) -> Mapping[Pool, Sized]: ...
    @property
    def has_work(self) -> bool: ...
    def add(self, request: GenerateRequest, now: float) -> Sequence: ...
    def schedule(self, now: float) -> StepPlan: ...
    def commit(self, plan: StepPlan, tokens: dict[str, int], eos_token_ids: frozenset[int], now: float) -> None: ...
    def sequences(self) -> Iterator[Sequence]: ...
    def next_expiry_s(self) -> float: ...


class VirtualEngine:
    """Runs jobs once; make a new one for each run. `overhead_s` is added to every step (schedule and commit)."""

    def __init__(
        self,
        scheduler: StepScheduler,
        step_time: StepTime,
        *,
        overhead_s: float = 0.0,
        fast_forward: bool = True,
        keep_samples: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.step_time = step_time
        self.overhead_s = overhead_s
        self.keep_samples = keep_samples
        self.now = 0.0
        self.recording = Recording()
        self._open = {TIMED: 0, BACKLOG: 0}  # attempts that the scheduler holds, by where they came from
        self._polls = 0  # empty steps since the last one that ran anything
        self._fast_forward: FastForward | None = None
        if fast_forward and isinstance(scheduler, Scheduler):
            self._fast_forward = FastForward(scheduler, self.recording.attempts)

    def run(
        self, jobs: Iterable[Job], backlog: Iterable[Job] = (), concurrency: int = 32, until_s: float = math.inf
    ) -> Recording:
        """Run `jobs` as they arrive, and beside them `backlog`, as a batch job does: `concurrency` of it at any time.

        Ends when all of `jobs` have ended (without jobs: all of the backlog), or at the first step after `until_s`.
        """
        arrivals, supply = Arrivals(jobs), iter(backlog)
        counted = BACKLOG if arrivals.next_s == math.inf else TIMED
        while self.now < until_s:
            for job in arrivals.due(self.now):
                self._add(job, TIMED)
            while self._open[BACKLOG] < concurrency and (more := next(supply, None)):
                self._add(replace(more, arrival_s=self.now), BACKLOG)
            if not self._open[counted] and arrivals.next_s == math.inf:
                break
            if self.scheduler.has_work:
                self._step(min(arrivals.next_s, until_s))
            else:
                self._idle_until(min(arrivals.next_s, until_s))
        for sequence in self.scheduler.sequences():
            self.recording.attempts[sequence.id].keep(sequence)
        self.recording.end_s = self.now
        return self.recording

    def _idle_until(self, next_event_s: float) -> None:
        if self.keep_samples:
            self.recording.samples.append(Sample(self.now, 0, 0, 0, 0.0))
        self.now = next_event_s

    def _add(self, job: Job, source: str) -> None:
        attempt = self.recording.attempts[job.id] = Attempt(job, job.output_tokens, source)
        try:
            self.scheduler.add(job.request(), self.now)
        except (EngineRefused, InvalidRequest):
            attempt.outcome = REFUSED
        else:
            self._open[source] += 1

    def _step(self, next_event_s: float) -> None:
        plan = self.scheduler.schedule(self.now)
        for sequence in plan.expired:
            self._end(sequence)
        if plan.is_empty:
            self._wait(next_event_s)
            return
        self._polls = 0
        self._note_use(plan)
        duration_s = self.step_time.predict(plan.shape) + self.overhead_s
        self.now += duration_s
        self.recording.step(plan, duration_s)
        self._commit(plan)
        self._repeat(plan, duration_s, next_event_s)

    def _commit(self, plan: StepPlan) -> None:
        attempts, sampling = self.recording.attempts, [item.sequence for item in plan.decodes]
        sampling += [item.sequence for item in plan.chunks if item.samples]
        tokens = {}
        for sequence in sampling:
            attempt = attempts[sequence.id]
            self.recording.token(attempt, self.now)
            tokens[sequence.id] = FILLER if attempt.tokens_left else EOS
        self.scheduler.commit(plan, tokens, EOS_IDS, self.now)
        for sequence in sampling:
            if sequence.finish_reason is not None:
                self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        attempt = self.recording.attempts[sequence.id]
        attempt.end(sequence)
        self._open[attempt.source] -= 1

    def _wait(self, next_event_s: float) -> None:
        """Nothing can run now: let time pass, as an engine does that polls."""
        self._polls += 1
        if self._polls > MAX_POLLS:
            held = sum(1 for _ in self.scheduler.sequences())
            raise Stalled(f"at {self.now:.3f} s the scheduler holds {held} sequences and has long run none of them")
        self.now = min(self.now + POLL_S, next_event_s)

    def _note_use(self, plan: StepPlan) -> None:
        blocks = self.scheduler.blocks
        kv_share = 1 - blocks.num_free / blocks.total
        self.recording.peak_kv_share = max(self.recording.peak_kv_share, kv_share)
        if self.keep_samples:
            rows = Counter(item.sequence.pool for item in plan.scheduled)
            waiting = sum(map(len, self.scheduler.waiting.values()))
            self.recording.samples.append(Sample(self.now, rows[Pool.INTERACTIVE], rows[Pool.BULK], waiting, kv_share))

    def _repeat(self, plan: StepPlan, duration_s: float, next_event_s: float) -> None:
        """Do at once the steps that are certain to be like this one; see `fast_forward`."""
        if self._fast_forward is None or (limit := self._fast_forward.certain_steps(plan)) < 1:
            return
        grown_s = self.step_time.d * len(plan.decodes)
        stop_s = min(next_event_s, self.scheduler.next_expiry_s(), self.now + self._fast_forward.longest_s())
        durations_s: list[float] = []
        while self.now < stop_s and len(durations_s) < limit:
            duration_s += grown_s
            self.now += duration_s
            durations_s.append(duration_s)
        if durations_s:
            self._fast_forward.advance(plan, len(durations_s))
            self.recording.forwarded([item.sequence for item in plan.decodes], durations_s, self.now)


class Arrivals:
    """Jobs in order of arrival."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)
        self._next = next(self._jobs, None)

    @property
    def next_s(self) -> float:
        return self._next.arrival_s if self._next else math.inf

    def due(self, now: float) -> Iterator[Job]:
        while self._next is not None and self._next.arrival_s <= now:
            job, self._next = self._next, next(self._jobs, None)
            assert self._next is None or self._next.arrival_s >= job.arrival_s, "jobs must come in order of arrival"
            yield job
