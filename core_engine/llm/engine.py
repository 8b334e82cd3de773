"""One engine: weights + KV blocks + scheduler + runner. Synchronous; a step is schedule -> run -> commit.

It knows requests and events, not clients or sockets: `server` speaks to those.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from core_engine.contracts import FinishReason, GenerateRequest, Pool, Usage
from core_engine.llm.messages import Snapshot
from core_engine.llm.runner import Runner
from core_engine.llm.scheduler import Scheduler, StepPlan
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_result import StepResult


@dataclass(frozen=True, slots=True)
class SequenceEvent:
    """What a step brought to one sequence: a token, its end, or both."""

    sequence: Sequence
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    usage: Usage | None


class Engine:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        eos_token_ids: frozenset[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.eos_token_ids = eos_token_ids
        self.clock = clock
        self.last_step_s = 0.0
        self.last_predicted_s = 0.0
        self.last_run_s = 0.0  # of the step, the part charged to its sequences: the model's run
        self.last_free_block_s = 0.0  # KV blocks that nobody held meanwhile

    def add(self, request: GenerateRequest) -> Sequence:
        """Queue a request; raises what `Scheduler.add` raises."""
        now = self.clock()
        self.scheduler.guard(request.pool, request.deadline, now)
        return self.scheduler.add(request, now)

    def abort(self, sequence: Sequence) -> None:
        """End a sequence now; a finished one is left alone."""
        self.scheduler.abort(sequence)
        self.runner.forget(sequence.id)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def step(self, between: Callable[[], None] | None = None) -> list[SequenceEvent]:
        """Run one step; the events of every sequence that got a token or ended in it.

        `between` is called after each layer of the model; its time is not the step's and is charged to nobody here.
        It must not change the scheduler: the plan stands until it is committed.
        """
        start, paused_s = self.clock(), 0.0

        def pause() -> None:
            nonlocal paused_s
            if between is not None:
                paused_at = self.clock()
                between()
                paused_s += self.clock() - paused_at

        self.last_run_s = self.last_free_block_s = 0.0
        plan = self.scheduler.schedule(start)
        run_start = self.clock()
        try:
            result = self.runner.run(plan, pause) if plan.scheduled else StepResult()
        finally:  # a run that fails has used the device as well
            self._charge(plan, run_start - start, self.clock() - run_start - paused_s)
        self.scheduler.commit(plan, result.tokens, self.eos_token_ids)
        return self._events(plan, result.tokens)

    def snapshot(self, scoring_rows: int = 0) -> Snapshot:
        scheduler = self.scheduler
        return Snapshot(
            step=scheduler.num_steps,
            interactive=scheduler.load(Pool.INTERACTIVE),
            bulk=scheduler.load(Pool.BULK),
            scoring_rows=scoring_rows,
            free_blocks=scheduler.blocks.num_free,
            total_blocks=scheduler.blocks.total,
            step_s=self.last_step_s,
            predicted_step_s=self.last_predicted_s,
            coefficients=scheduler.step_time.coefficients,
        )

    def hold(self, run_s: float) -> float:
        """Charge `run_s` seconds of KV blocks to whoever holds them; the block-seconds that nobody held."""
        for running in self.scheduler.running.values():
            for sequence in running:
                sequence.kv_block_s += len(sequence.block_table) * run_s
        return self.scheduler.blocks.num_free * run_s

    def _charge(self, plan: StepPlan, schedule_s: float, run_s: float) -> None:
        """Charge the run to its sequences: device seconds by the step-time model's shares, KV by blocks held."""
        if not plan.scheduled:
            return
        self.last_step_s, self.last_run_s = schedule_s + run_s, run_s
        self.last_predicted_s = self.scheduler.step_time.predict(plan.shape)
        shares = self.scheduler.step_time.shares([item.shape for item in plan.scheduled], self.last_run_s)
        for item, share in zip(plan.scheduled, shares, strict=True):
            item.sequence.device_s += share
            item.sequence.largest_batch = max(item.sequence.largest_batch, len(plan.scheduled))
        self.last_free_block_s = self.hold(self.last_run_s)

    def _events(self, plan: StepPlan, sampled: dict[str, int]) -> list[SequenceEvent]:
        events = [SequenceEvent(s, (), s.finish_reason, s.usage()) for s in plan.expired]
        for item in plan.scheduled:
            sequence = item.sequence
            if sequence.id in sampled:
                usage = sequence.usage() if sequence.finish_reason else None
                events.append(SequenceEvent(sequence, (sampled[sequence.id],), sequence.finish_reason, usage))
        for event in events:
            if event.finish_reason is not None:
                self.runner.forget(event.sequence.id)
        return events
