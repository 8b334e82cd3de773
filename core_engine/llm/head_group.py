"""The sequences of one score while they run: one attempt outside, several sequences in the scheduler.

The engine asks it when a sequence ends. What ends one of them without an answer ends all.
"""

from __future__ import annotations

from core_engine.contracts import FinishReason
from core_engine.errors import HeadraceError
from core_engine.llm.head_plan import HeadPlan
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence


class HeadGroup:
    """`lead` has the attempt's own id and stands for the attempt outside the engine."""

    def __init__(self, plan: HeadPlan, scheduler: Scheduler, now: float) -> None:
        """Queue every sequence of the plan, or none: raises what `Scheduler.add` raises."""
        self._plan = plan
        self.is_over = False
        self.sequences: list[Sequence] = []
        try:
            for request in plan.requests:
                self.sequences.append(scheduler.add(request, now))
        except HeadraceError:
            for sequence in self.sequences:
                scheduler.abort(sequence)
            raise

    @property
    def lead(self) -> Sequence:
        return self.sequences[0]

    def collect(self, sequence: Sequence, values: tuple[float, ...]) -> tuple[float, ...] | None:
        """Take what one sequence gave: the score, once all have given."""
        return self._plan.collect(sequence.id, values)

    def end(self, reason: FinishReason) -> None:
        """All have left the scheduler. From now on the lead tells the attempt's end and what all of them have used.

        The prompt counts once. Of it, cached is what the least lucky of them found: the others may have found what that
        one had computed, which is no saving of the attempt's.
        """
        self.is_over, lead, all_of = True, self.lead, self.sequences
        lead.finish_reason = reason
        lead.num_prompt_tokens = len(self._plan.request.prompt_token_ids)
        del lead.token_ids[lead.num_prompt_tokens :]
        cached = min((s.num_cached_tokens for s in all_of if s.has_started), default=0)
        lead.num_cached_tokens = min(cached, lead.num_prompt_tokens)
        lead.first_scheduled_s = min(s.first_scheduled_s for s in all_of)
        lead.largest_batch = max(s.largest_batch for s in all_of)
        lead.num_steps = max(s.num_steps for s in all_of)  # most of them ran in the same ones
        lead.last_step = max(s.last_step for s in all_of)
        lead.num_run_tokens = sum(s.num_run_tokens for s in all_of)
        lead.wasted_tokens = sum(s.wasted_tokens for s in all_of)
        lead.device_s = sum(s.device_s for s in all_of)
        lead.kv_block_s = sum(s.kv_block_s for s in all_of)
