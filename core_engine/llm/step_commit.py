"""What a step's results do to its sequences: tokens are appended, full blocks get names, what is done goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from core_engine.contracts import FinishReason
from core_engine.llm.messages import Counters
from core_engine.llm.seating import Seating
from core_engine.llm.step_plan import NO_TOKENS, Scheduled, StepPlan
from core_engine.llm.waiting_queue import COMPLETION_WEIGHT

Accepted: TypeAlias = Mapping[str, list[int]]
NOTHING_ACCEPTED: Accepted = MappingProxyType({})


def commit(
    seating: Seating,
    plan: StepPlan,
    tokens: Mapping[str, int],
    accepted: Accepted,
    eos_token_ids: frozenset[int],
    now: float,
) -> None:
    """`tokens` has the next token of every scheduled sequence that samples; `accepted` what of its draft comes before.

    After a token that ends a sequence nothing comes. A sequence with a head ends with the last token of its prompt.
    Blocks that are full now can be found by others.
    """
    counters_of, waiting, publish = seating.counters, seating.waiting, seating.prefixes.publish
    for item in plan.scheduled:
        sequence, num_tokens = item.sequence, item.num_tokens
        if sequence.finish_reason is not None:  # ended while the step ran
            continue
        samples = num_tokens >= len(sequence.token_ids) - sequence.num_computed_tokens
        reason, counters, weight = None, counters_of[sequence.pool], COMPLETION_WEIGHT
        if item.draft is not NO_TOKENS:
            reason = _accept(item, accepted.get(sequence.id, NO_TOKENS), eos_token_ids, counters)
            num_tokens = item.num_new + (reason is None)  # a last token is never computed
        elif num_tokens > 1:
            weight = 1.0
        wasted = sequence.wasted_tokens
        sequence.advance(num_tokens, item.num_tokens - num_tokens)
        counters.computed_tokens += item.num_tokens
        counters.wasted_tokens += sequence.wasted_tokens - wasted
        publish(sequence)
        if item.draft is not NO_TOKENS:
            seating.trim(sequence)
        if samples and sequence.request.head is not None:
            reason = FinishReason.STOP
        elif samples and reason is None:
            reason = sequence.append(tokens[sequence.id], eos_token_ids)
            item.num_new += 1
            counters.generation_tokens += item.num_new
            if sequence.first_token_s == math.inf:
                sequence.first_token_s = now
        if reason is not None:
            seating.finish(sequence, reason)
        waiting[sequence.pool].charge(sequence.tenant, num_tokens * weight)
    for pool, share in seating.prefill_shares.items():
        share.observe(now, sum(item.cost_s for item in plan.chunks if item.sequence.pool is pool))


def _accept(
    item: Scheduled, accepted: list[int], eos_token_ids: frozenset[int], counters: Counters
) -> FinishReason | None:
    """Append the tokens of a draft that are right, up to one that ends the sequence: then why it ends."""
    counters.drafts += bool(item.draft)
    counters.draft_tokens += len(item.draft)
    for token in accepted:
        reason = item.sequence.append(token, eos_token_ids)
        item.num_new += 1
        counters.accepted_tokens += 1
        if reason is not None:
            counters.generation_tokens += item.num_new
            return reason
    return None
