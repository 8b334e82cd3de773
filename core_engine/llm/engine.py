"""One engine: weights + KV blocks + scheduler + runner. Synchronous; a step is schedule -> run -> commit.

It knows requests and events, not clients or sockets: `server` speaks to those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from core_engine.contracts import FinishReason, GenerateRequest, HeadKind, Pool, TokenLogprob, Usage
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm.head_group import HeadGroup
from core_engine.llm.head_plan import HeadPlan
from core_engine.llm.messages import Snapshot
from core_engine.llm.runner import Runner
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_result import StepResult
from core_engine.llm.step_time_fit import StepTimeFit


@dataclass(frozen=True, slots=True)
class SequenceEvent:
    """What a step brought to one sequence: a token, its head's values, its end, or several of these."""

    sequence: Sequence
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    values: tuple[float, ...] | None = None
    failure: HeadraceError | None = None  # with FinishReason.ERROR: why


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
        self.fit = StepTimeFit(scheduler.step_time)
        self._groups: dict[str, HeadGroup] = {}  # by the id of each of their sequences
        self.last_step_s = 0.0
        self.last_predicted_s = 0.0
        self.last_run_s = 0.0  # of the step, the part charged to its sequences: the model's run
        self.last_free_block_s = 0.0  # KV blocks that nobody held meanwhile

    def add(self, request: GenerateRequest) -> Sequence:
        """Queue a request; raises what `Scheduler.add` and `Grammars.submit` raise."""
        now = self.clock()
        self._begin_schema(request.sampling.json_schema)
        if request.head is None or request.head.kind is not HeadKind.SCORE:
            sequence = self.scheduler.add(request, now)
            if self.runner.grammars is not None:
                self.runner.grammars.watch(sequence)
            return sequence
        group = HeadGroup(HeadPlan(request), self.scheduler, now)
        self._groups.update((sequence.id, group) for sequence in group.sequences)
        return group.lead

    def _begin_schema(self, schema: str | None) -> None:
        """A schema is compiled while its request waits; `_refuse` ends the request if that fails."""
        if schema is not None:
            if self.runner.grammars is None:
                message = "json_schema is set, expected none: this engine has no tokenizer to write JSON by"
                raise InvalidRequest(message, field="json_schema", value=schema, expected="none")
            self.runner.grammars.submit(schema)

    def abort(self, sequence: Sequence, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a sequence now, with those of its score; a finished one is left alone."""
        group = self._groups.get(sequence.id)
        if group is not None:
            self._end_group(group, reason)
        self.scheduler.abort(sequence, reason)
        self._forget(sequence)

    def sequences_of(self, sequence: Sequence) -> list[Sequence]:
        """All that run for the attempt of `sequence`."""
        group = self._groups.get(sequence.id)
        return [sequence] if group is None else group.sequences

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
        refused = self._refuse()
        plan = self.scheduler.schedule(start)
        for sequence in plan.preempted:
            self.runner.forget(sequence.id)
        run_start = self.clock()
        speculation, propose_s = self.scheduler.speculation, 0.0
        try:
            if speculation is not None and plan.num_drafts:
                speculation.propose(plan)
                propose_s = self.clock() - run_start
            result = StepResult() if plan.is_empty else self.runner.run(plan, pause)
        finally:  # a run that fails has used the device as well
            end = self.clock()
            self._charge(plan, run_start - start, end - run_start - paused_s)
        for item in plan.scheduled:
            if item.sequence.id in result.failures:
                self.scheduler.abort(item.sequence, FinishReason.ERROR)
        if speculation is not None:
            speculation.learn(plan, result.accepted, self.last_run_s - propose_s)
        self.scheduler.commit(plan, result.tokens, self.eos_token_ids, end, result.accepted)
        if not plan.num_drafts:  # what drafts take is `speculation`'s to know
            self.fit.observe(plan.shape, self.last_run_s - propose_s)
        self.scheduler.step_time = self.fit.current
        return refused + self._by_attempt(self._events(plan, result))

    def snapshot(self, scoring_rows: int = 0) -> Snapshot:
        scheduler, now = self.scheduler, self.clock()
        cap_s = scheduler.cap_in_force_s(now)
        return Snapshot(
            step=scheduler.num_steps,
            interactive=scheduler.load(Pool.INTERACTIVE, now),
            bulk=scheduler.load(Pool.BULK, now),
            scoring_rows=scoring_rows,
            free_blocks=scheduler.blocks.num_free,
            total_blocks=scheduler.blocks.total,
            unused_slots=scheduler.seating.unused_slots,
            step_s=self.last_step_s,
            predicted_step_s=self.last_predicted_s,
            coefficients=scheduler.step_time.coefficients,
            max_step_tokens=scheduler.limits.max_step_tokens,
            max_step_s=cap_s if cap_s < math.inf else 0.0,
            counters={pool: counters.copy() for pool, counters in scheduler.counters.items()},
        )

    def hold(self, run_s: float) -> float:
        """Charge `run_s` seconds of KV blocks to whoever holds them; the block-seconds that nobody held."""
        blocks = self.scheduler.blocks
        for sequence in self.scheduler.seating.holders():
            sequence.kv_block_s += blocks.share_of(sequence.block_table) * run_s
        return blocks.num_free * run_s

    def _charge(self, plan: StepPlan, schedule_s: float, run_s: float) -> None:
        """Charge the run to its sequences: device seconds by the step-time model's shares, KV by blocks held."""
        if plan.is_empty:
            return
        self.last_step_s, self.last_run_s = schedule_s + run_s, run_s
        self.last_predicted_s = plan.predicted_s
        items = plan.scheduled
        # what every step costs is shared equally, the rest by each part's own cost; together exactly `run_s`
        equal, scale = plan.step_time.a / len(items), run_s / plan.predicted_s if plan.predicted_s else 0.0
        for item in items:
            share = (equal + item.cost_s) * scale if scale else run_s / len(items)
            item.sequence.device_s += share
            item.sequence.largest_batch = max(item.sequence.largest_batch, len(items))
        for pool in {item.sequence.pool for item in items}:
            counters = self.scheduler.counters[pool]
            counters.steps += 1
            counters.step_s_sum += run_s
            counters.predicted_step_s_sum += plan.predicted_s
        self.last_free_block_s = self.hold(run_s)

    def _refuse(self) -> list[SequenceEvent]:
        """End what waited for a schema that cannot be used."""
        refused = [] if self.runner.grammars is None else self.runner.grammars.refused()
        for sequence, _ in refused:
            self.scheduler.abort(sequence, FinishReason.ERROR)
        return [SequenceEvent(s, finish_reason=s.finish_reason, usage=s.usage(), failure=error) for s, error in refused]

    def _forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self.runner.forget(sequence.id)
        if self.scheduler.speculation is not None:
            self.scheduler.speculation.forget(sequence.id)

    def _events(self, plan: StepPlan, result: StepResult) -> list[SequenceEvent]:
        events = [SequenceEvent(s, finish_reason=s.finish_reason, usage=s.usage()) for s in plan.expired]
        for item in plan.scheduled:
            sequence, reason = item.sequence, item.sequence.finish_reason
            if not item.num_new and reason is None:
                continue
            logprobs = result.logprobs.get(sequence.id)
            events.append(
                SequenceEvent(
                    sequence,
                    tuple(sequence.token_ids[len(sequence.token_ids) - item.num_new :]),
                    reason,
                    None if reason is None else sequence.usage(),
                    None if logprobs is None else logprobs[: item.num_new],
                    result.prompt_logprobs.get(sequence.id),
                    result.heads.get(sequence.id),
                    result.failures.get(sequence.id),
                )
            )
        for event in events:
            if event.finish_reason is not None:
                self._forget(event.sequence)
        return events

    def _by_attempt(self, events: list[SequenceEvent]) -> list[SequenceEvent]:
        """Of a score's sequences one event comes out: when the last has its values, or one has ended without."""
        groups = [self._groups.get(event.sequence.id) for event in events]
        told: list[SequenceEvent] = []
        for event, group in zip(events, groups, strict=True):
            if group is None:
                told.append(event)
            elif not group.is_over and event.finish_reason is not None:
                given = event.values if event.finish_reason is FinishReason.STOP else None
                values = None if given is None else group.collect(event.sequence, given)
                if values is not None or given is None:
                    self._end_group(group, event.finish_reason)
                    told.append(replace(event, sequence=group.lead, usage=group.lead.usage(), values=values))
        return told

    def _end_group(self, group: HeadGroup, reason: FinishReason) -> None:
        for sequence in group.sequences:
            self.scheduler.abort(sequence, reason)
            self._forget(sequence)
            del self._groups[sequence.id]
        group.end(reason)
