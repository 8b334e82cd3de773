"""Decides before each step how many draft tokens every decoding sequence gets, and learns from what came of them.

The lengths with the most expected tokens per second (`draft_lengths`), by acceptance as seen (`acceptance`) and by the
seconds that steps of so many rows have been taking (`step_cost`). Not one draft if that is best: then the step is the
plain one. A small share of the time goes to trying other lengths all the same (`trials`), or nobody would ever know
that they pay by now.

The scheduler asks, so there is no tensor here; the engine tells how it went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

from core_engine.contracts import Pool
from core_engine.llm.seating import Seating
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.acceptance import Acceptance
from core_engine.llm.speculation.draft_lengths import Candidate, Costs, best, plain
from core_engine.llm.speculation.proposer import NOTHING, Offer, Proposer
from core_engine.llm.speculation.step_cost import StepCost
from core_engine.llm.speculation.trials import Trials
from core_engine.llm.step_plan import Scheduled, StepPlan

ON_GAIN = 1.01  # in tokens per second, of beginning to draft; hysteresis, since to go on any gain will do


class Speculation:
    """`max_tokens`: the longest draft. Not `is_adaptive`: always as many as are offered, for tests and benchmarks."""

    def __init__(self, proposer: Proposer, max_tokens: int, *, is_adaptive: bool = True) -> None:
        self.proposer = proposer
        self.acceptance = Acceptance()
        self._max_tokens = max_tokens
        self._is_adaptive = is_adaptive
        self._cost: StepCost | None = None  # from the first step on
        self._kinds: dict[str, int] = {}  # of drafts in the step, by sequence id
        self._trials = Trials()
        self._is_on = False

    def lengthen(self, plan: StepPlan, seating: Seating) -> None:
        """Give decode rows of a plan, which has everything else already, drafts to verify where that pays.

        What is left of the step bounds them: its tokens, its cap, bulk's share, the KV blocks.
        """
        offers = [(item, offer) for item in plan.decodes if (offer := self._offer(item.sequence)).num_tokens]
        if not offers:
            return
        costs = self._costs(plan, sum(offer.num_tokens for _, offer in offers))
        lengths = self._choose(costs, plan, offers)
        turns, row_s = max(lengths), costs.drafts_s[sum(lengths)] / max(1, sum(lengths))
        if costs.turn_s and plan.room_s < turns * costs.turn_s:
            turns = max(0, int(plan.room_s / costs.turn_s))
        for (item, offer), length in zip(offers, lengths, strict=True):
            length = _fitting(plan, seating, item, min(length, turns), row_s, reserve_s=turns * costs.turn_s)
            if length > 0:
                self._kinds[item.sequence.id] = offer.kind
                plan.add_draft(item, length, length * row_s)
        plan.add_turns(costs.turn_s)

    def propose(self, plan: StepPlan) -> None:
        """Fill in the tokens; a draft that came out shorter than planned is cut in the plan."""
        items = [item for item in plan.decodes if item.num_drafts]
        for item, tokens in zip(items, self.proposer.propose(items), strict=True):
            plan.set_draft(item, tokens)

    def learn(self, plan: StepPlan, accepted: Mapping[str, Sized], run_s: float) -> None:
        """Take note of a step: what it `accepted` by sequence id, and its seconds without those of `propose`."""
        if plan.num_drafts:
            for item in plan.decodes:
                if item.num_drafts:
                    name = item.sequence.id
                    self.acceptance.observe(name, self._kinds[name], item.num_drafts, len(accepted.get(name, ())))
        if plan.decodes and not plan.chunks:  # a chunk's time would hide what drafts take
            num_rows = len(plan.decodes) + plan.num_drafts
            self._cost_of(plan).observe(num_rows, plan.decode_context_tokens, run_s)

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended."""
        self.proposer.forget(sequence_id)
        self.acceptance.forget(sequence_id)
        self._kinds.pop(sequence_id, None)

    def _offer(self, sequence: Sequence) -> Offer:
        # one token comes without a draft: so no step brings more than `max_tokens` leaves
        left = sequence.max_completion_tokens - sequence.num_completion_tokens - 1
        return self.proposer.offer(sequence, min(self._max_tokens, left)) if left > 0 else NOTHING

    def _costs(self, plan: StepPlan, most: int) -> Costs:
        """Of the decode rows alone, with up to `most` draft tokens: a prompt's chunk is worth its own time."""
        cost, num_rows = self._cost_of(plan), len(plan.decodes)
        plain_s = cost.plain_s(num_rows, plan.decode_context_tokens)
        return Costs(plain_s, cost.drafts_s(num_rows, most), self.proposer.turn_s)

    def _cost_of(self, plan: StepPlan) -> StepCost:
        if self._cost is None:
            self._cost = StepCost(plan.step_time)
        return self._cost

    def _choose(self, costs: Costs, plan: StepPlan, offers: list[tuple[Scheduled, Offer]]) -> list[int]:
        if not self._is_adaptive:
            return [offer.num_tokens for _, offer in offers]
        candidates = [
            Candidate(offer.num_tokens, self.acceptance.estimate(item.sequence.id, offer.kind))
            for item, offer in offers
        ]
        without = plain(costs, len(plan.decodes), candidates)
        with_drafts = best(costs, len(plan.decodes), candidates)
        self._is_on = with_drafts.rate > without.rate * (1.0 if self._is_on else ON_GAIN)
        chosen = with_drafts if self._is_on else without
        return self._trials.lengths(chosen, costs, len(plan.decodes), candidates)


def _fitting(plan: StepPlan, seating: Seating, item: Scheduled, length: int, row_s: float, *, reserve_s: float) -> int:
    """How much of a draft finds tokens, seconds (less those in reserve) and KV blocks in what is left of the step."""
    sequence, room_s = item.sequence, plan.room_s
    length = min(length, plan.tokens_left)
    if sequence.pool is Pool.BULK:
        length = min(length, plan.bulk_tokens_left)
        room_s = min(room_s, plan.bulk_cap_s - plan.predicted_s)
    if row_s > 0 and room_s - reserve_s < length * row_s:
        length = int((room_s - reserve_s) / row_s)
    if length > 0 and not seating.grow(sequence, sequence.num_tokens + length):
        length = min(length, len(sequence.block_table) * seating.blocks.block_size - sequence.num_tokens)
    return length
